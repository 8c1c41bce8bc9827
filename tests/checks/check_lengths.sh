#!/usr/bin/env bash
# Files of at most 600 lines, functions of at most 60, in src/ and cli/.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$source_dir"

mapfile -t sources < <(find src cli \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
[ "${#sources[@]}" -gt 0 ] || skip "no sources yet"

while read -r lines path; do
    [ "$path" = total ] || [ "$lines" -le 600 ] || complain "$path: $lines lines (600 at most)"
done < <(wc -l "${sources[@]}")

while read -r path first last name _; do
    lines=$((last - first + 1))
    [ "$lines" -le 60 ] || complain "$path:$first: $name has $lines lines (60 at most)"
done < <(c_source functions "${sources[@]}")

finish check_lengths
