#!/usr/bin/env bash
# The built library exports exactly the functions that the public headers declare, and the symbol
# map lists exactly these.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

library=$build_dir/libspark_comm.so
map=$source_dir/src/spark_comm.map
[ -e "$library" ] || skip "there is no $library"
command -v nm >/dev/null || skip "nm is not installed"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
declared_functions >"$work/declared"
sed -n 's/^[[:space:]]*\([A-Za-z_][A-Za-z0-9_]*\);.*/\1/p' "$map" | sort >"$work/mapped"
# The version itself is an absolute symbol.
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"

[ -s "$work/declared" ] || complain "no function found in include/*.h"
compare() {
    local name
    while IFS= read -r name; do complain "$name: $3"; done < <(comm -23 "$work/$1" "$work/$2")
}
compare declared mapped "declared in include/, missing in src/spark_comm.map"
compare mapped declared "in src/spark_comm.map, not declared in include/"
compare mapped exported "in src/spark_comm.map, but the library does not define it"
compare exported mapped "exported, but not in src/spark_comm.map"
[ -z "$(uniq -d "$work/mapped")" ] || complain "listed twice in the map: $(uniq -d "$work/mapped" | tr '\n' ' ')"

finish check_exports
