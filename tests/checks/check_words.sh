#!/usr/bin/env bash
# No path of one machine, and no note to oneself, in what is shipped.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$source_dir"

folders=()
for folder in src cli include; do [ ! -d "$folder" ] || folders+=("$folder"); done
while IFS= read -r hit; do complain "$hit"; done < <(grep -rnwE 'TODO|FIXME|XXX|HACK' "${folders[@]}" || true)

# The pattern is put together so that it does not find itself.
private_path="(^|[^A-Za-z0-9_.])/wor""k(/|[^A-Za-z0-9_-]|\$)"
while IFS= read -r hit; do complain "$hit"; done < <(
    find . \( -path ./build -o -path ./.git -o -path ./.bench -o -path ./shared \) -prune -o -type f -print0 |
        xargs -0 grep -nIE "$private_path" || true)

finish check_words
