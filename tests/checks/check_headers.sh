#!/usr/bin/env bash
# Each public header compiles alone as strict C17 and C++17, each internal header alone as our C.
# An internal header without an include guard that says in its opening comment what its users define
# "before they include this file" is a template; its users' compilation tries it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$source_dir"

cc=${CC:-cc}
cxx=${CXX:-c++}
strict=(-Wall -Wextra -Werror -pedantic -fsyntax-only)

# compiles HEADER COMPILER FLAGS...
compiles() {
    local header=$1 output
    shift
    if ! output=$(printf '#include "%s"\n' "$header" | "$@" - 2>&1); then
        complain "$header: does not compile alone with: $*"
        printf '%s\n' "$output" | head -n 20
    fi
}

for header in include/*.h; do
    compiles "$(basename "$header")" "$cc" -x c -std=c17 "${strict[@]}" -I include
    if command -v "$cxx" >/dev/null; then
        compiles "$(basename "$header")" "$cxx" -x c++ -std=c++17 "${strict[@]}" -I include
    else
        echo "no C++ compiler here: $header was tried as C alone"
    fi
done

is_template() {
    ! grep -qE '^#(ifndef|pragma once)' "$1" && head -n 20 "$1" | grep -q 'before they include this file'
}

while IFS= read -r header; do
    ! is_template "$header" || continue
    compiles "${header#src/}" "$cc" -x c -std=gnu17 -Wall -Wextra -Werror -Wno-unused-function \
        -fsyntax-only -D_GNU_SOURCE -DSPARK_COMM_BUILDING=1 -I include -I src
done < <(find src -name '*.h' ! -path 'src/gpu/kernels/*' | sort)

while IFS= read -r header; do
    compiles "$(basename "$header")" "$cc" -x c -std=gnu17 -Wall -Wextra -Werror -Wno-unused-function \
        -fsyntax-only -D_GNU_SOURCE -I include -I cli
done < <(find cli -name '*.h' 2>/dev/null | sort)

finish check_headers
