# Reads C sources for the checks, well enough for code in our style; run with -v mode=...
#
#   code        FILE:LINE:TEXT  of every line, comments and the contents of literals blanked out
#   functions   FILE FIRST LAST NAME RETURN-TYPE  of every function definition
#
# A function begins with its first line at column 0 and ends with a closing brace at column 0.

# The line without comments, and with empty literals. in_comment lasts over lines.
function blank(line,    out, i, n, two, c, quote) {
    out = ""
    n = length(line)
    for (i = 1; i <= n; i++) {
        c = substr(line, i, 1)
        two = substr(line, i, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; i++ }
        } else if (two == "/*") {
            in_comment = 1; i++
            out = out " "
        } else if (two == "//") {
            break
        } else if (c == "\"" || c == "'") {
            quote = c
            for (i++; i <= n && substr(line, i, 1) != quote; i++)
                if (substr(line, i, 1) == "\\") i++
            out = out quote quote
        } else {
            out = out c
        }
    }
    return out
}

function count(text, character,    copy) {
    copy = text
    return gsub("[" character "]", "", copy)
}

# At the opening brace of a definition: is it a function, and which?
function open_definition(    head, at) {
    head = pending
    sub(/[{].*/, "", head)
    sub(/[ \t]+$/, "", head)
    name = ""
    if (head ~ /\)$/ && head !~ /=/) {
        gsub(/__attribute__ *\(\(([^()]|\([^()]*\))*\)\)/, "", head)
        at = match(head, /[A-Za-z_][A-Za-z_0-9]* *\(/)
        if (at) {
            name = substr(head, at, RLENGTH - 1)
            sub(/ +$/, "", name)
            type = substr(head, 1, at - 1)
            gsub(/(static|inline|extern|const|_Noreturn)[ \t]+/, "", type)
            gsub(/[ \t]+/, "", type)
            if (type == "") name = ""
        }
    }
}

FNR == 1 { in_comment = 0; depth = 0; pending = ""; directive = 0; opened = 0; name = "" }

{
    text = blank($0)
    if (mode == "code") {
        print FILENAME ":" FNR ":" text
        next
    }
    if (directive || text ~ /^[ \t]*#/) {
        directive = (text ~ /\\$/)
        next
    }
    if (depth == 0) {
        if (text ~ /^[ \t]*$/) next
        if (text ~ /^extern ""/) next
        if (pending == "") first = FNR
        pending = pending " " text
        if (text ~ /[{]/) {
            open_definition()
            opened = 1
        } else if (text ~ /;[ \t]*$/) {
            pending = ""
            next
        }
    }
    depth += count(text, "{") - count(text, "}")
    if (opened && (depth <= 0 || text ~ /^}/)) {
        if (name != "") print FILENAME, first, FNR, name, type
        depth = 0; pending = ""; opened = 0; name = ""
    }
}
