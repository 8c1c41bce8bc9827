#!/usr/bin/env bash
# Every public function has a comment with all eight parts, and is mentioned in the documentation.
# The comment stands right before the declaration; declarations that follow each other without an
# empty line share it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$source_dir"

while IFS= read -r finding; do
    complain "$finding"
done < <(awk '
    BEGIN {
        total = split("Units:|Ownership:|Blocking:|Threads:|Stream:|In place:|After failure:|Statuses:", part, "|")
    }
    /^[ \t]*\/\*/ { comment = ""; inside = 1 }
    inside {
        comment = comment "\n" $0
        if (/\*\//) inside = 0
        next
    }
    /^[ \t]*$/ { comment = ""; next }
    /^SPARK_COMM_API/ { declaration = ""; open = 1; line = FNR }
    open {
        declaration = declaration " " $0
        if (!/;/) next
        open = 0
        match(declaration, /spark_comm_[a-z0-9_]* *\(/)
        name = substr(declaration, RSTART, RLENGTH - 1)
        lacking = ""
        for (i = 1; i <= total; i++)
            if (comment !~ ("\n[ \t*/]*" part[i])) lacking = lacking " \"" part[i] "\""
        if (comment == "")
            printf "include/spark_comm.h:%d: %s has no comment\n", line, name
        else if (lacking != "")
            printf "include/spark_comm.h:%d: the comment of %s lacks%s\n", line, name, lacking
    }' include/spark_comm.h)

mapfile -t pages < <(find README.md docs -name '*.md' -o -path '*/man/*' -type f 2>/dev/null)
while IFS= read -r function; do
    if [ "${#pages[@]}" -eq 0 ] || ! grep -qw -- "$function" "${pages[@]}"; then
        complain "$function: no page under docs/ mentions it"
    fi
done < <(declared_functions)

finish check_docs
