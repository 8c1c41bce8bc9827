#!/usr/bin/env bash
# The library, stripped and without the embedded GPU kernels, stays below 400 KiB.
#   check_size.sh SOURCE BUILD
set -euo pipefail
build=$2
limit=$((400 * 1024))

if ! grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release$' "$build/CMakeCache.txt" ||
    grep -q '^SPARK_COMM_SANITIZE:[A-Z]*=..*$' "$build/CMakeCache.txt" ||
    [ "$(uname -m)" != x86_64 ]; then
    echo "the limit is for a release on x86-64"
    exit 77
fi
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
strip -o "$copy" "$build/libspark_comm.so.0"
size=$(stat -c %s "$copy")
for image in "$build"/kernels/*.fatbin; do
    [ -e "$image" ] && size=$((size - $(stat -c %s "$image")))
done
echo "$size bytes of at most $limit"
[ "$size" -le "$limit" ]
