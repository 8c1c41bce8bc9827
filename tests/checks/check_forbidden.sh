#!/usr/bin/env bash
# What a library must not do to its host, and how functions leave.
#
#   - No printing, no ending of the process, no sleeping, no shell, no signal handlers in src/, except
#     for what forbidden.allow lists as "path word  reason".
#   - The environment is read in src/base/settings.c alone.
#   - Labels are called out or fail. From such a label a function runs to its end and returns there;
#     one whose type is spark_comm_status returns st or status.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$source_dir"

mapfile -t sources < <(find src \( -name '*.c' -o -name '*.h' \) | sort)
mapfile -t program < <(find cli -name '*.c' 2>/dev/null | sort)
[ "${#sources[@]}" -gt 0 ] || skip "no sources yet"

allowed() { grep -qE "^$1[[:space:]]+$2([[:space:]]|\$)" "$checks/forbidden.allow" 2>/dev/null; }

words='printf vprintf puts putchar perror stdout stderr exit _exit _Exit quick_exit abort atexit
    sleep usleep system popen signal sigaction getenv secure_getenv environ putenv setenv'
pattern="(^|[^A-Za-z0-9_.>])($(tr -s ' \n' '|' <<<"$words" | sed 's/|$//'))([^A-Za-z0-9_]|\$)"
while IFS= read -r hit; do
    path=${hit%%:*}
    rest=${hit#*:}
    line=${rest%%:*}
    word=$(sed -nE "s/.*$pattern.*/\2/p" <<<"${rest#*:}")
    # stdout and stderr are objects, environ too; the others count when they are called.
    case $word in
    stdout | stderr | environ) ;;
    *) grep -qE "(^|[^A-Za-z0-9_.>])$word *\(" <<<"${rest#*:}" || continue ;;
    esac
    if [[ $word == *getenv || $word == environ ]] && [ "$path" = src/base/settings.c ]; then
        continue
    fi
    allowed "$path" "$word" || complain "$path:$line: $word has no place here"
done < <(c_source code "${sources[@]}" | grep -E ":[0-9]+:.*$pattern" || true)

# One pass over functions and their code: labels and what follows them.
check_labels() {
    { c_source functions "$@" | sed 's/^/F /'; c_source code "$@" | sed 's/^/C /'; } | awk '
        $1 == "F" { n++; file[n] = $2; first[n] = $3; last[n] = $4; name[n] = $5; type[n] = $6; next }
        {
            line = substr($0, 3)
            split(line, part, ":")
            text[part[1], part[2]] = substr(line, length(part[1]) + length(part[2]) + 3)
        }
        END {
            for (f = 1; f <= n; f++) {
                label = ""
                final = ""
                for (l = first[f]; l <= last[f]; l++) {
                    t = text[file[f], l]
                    if (t ~ /^[ \t]*[a-z_][a-z_0-9]*:([ \t]|$)/ && t !~ /^[ \t]*default[ \t]*:/) {
                        label = t
                        gsub(/[ \t:].*$/, "", label)
                        if (label == "") { label = t; gsub(/[ \t:]/, "", label) }
                        if (label != "out" && label != "fail")
                            printf "%s:%d: label %s in %s: out and fail are the names\n", file[f], l, label, name[f]
                    }
                    if (l < last[f] && t !~ /^[ \t]*$/) final = t
                }
                if (label == "" || type[f] == "void") continue
                if (final !~ /^[ \t]*return[ \t(]/)
                    printf "%s:%d: %s does not end with a return after its label\n", file[f], last[f], name[f]
                else if (type[f] == "spark_comm_status" && final !~ /return (st|status);/)
                    printf "%s:%d: %s must return st after its label\n", file[f], last[f], name[f]
            }
        }'
}
while IFS= read -r finding; do complain "$finding"; done < <(check_labels "${sources[@]}" "${program[@]}")

finish check_forbidden
