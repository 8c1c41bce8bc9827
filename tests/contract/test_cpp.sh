#!/usr/bin/env bash
# The public headers from C++17: compiles cpp_compile.cpp, links it with the built library, runs it.
#
#   test_cpp.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail
source_dir=$1
build_dir=$2
cxx=${CXX:-c++}

if ! command -v "$cxx" >/dev/null; then
    echo "skipped: no C++ compiler ($cxx)"
    exit 77
fi
sanitizers=$(sed -n 's/^SPARK_COMM_SANITIZE:[A-Z]*=//p' "$build_dir/CMakeCache.txt")
flags=(-std=c++17 -Wall -Wextra -Wshadow -pedantic -Werror)
[ -z "$sanitizers" ] || flags+=("-fsanitize=$sanitizers")
program=$(mktemp "${TMPDIR:-/tmp}/spark_comm_cpp.XXXXXX")
trap 'rm -f "$program"' EXIT
"$cxx" "${flags[@]}" -I "$source_dir/include" "$source_dir/tests/contract/cpp_compile.cpp" \
    -L "$build_dir" -Wl,-rpath,"$build_dir" -lspark_comm -o "$program"
"$program"
echo "the headers are good C++17"
