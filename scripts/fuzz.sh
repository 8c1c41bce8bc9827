#!/usr/bin/env bash
# Looks for inputs that break a parser: SECONDS of libFuzzer, split over all targets.
#
#   scripts/fuzz.sh SECONDS [BUILD_FOLDER]     after: cmake --build --preset fuzz
#
# New inputs stay in BUILD_FOLDER/corpus. What breaks a target is printed as bytes and kept in
# BUILD_FOLDER/found: put it into tests/fuzz/corpus/<target>/ with the fix, as its test.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:?how many seconds}
build=${2:-$root/build/fuzz}

targets=()
for target in "$build"/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] && targets+=("$target")
done
if [ "${#targets[@]}" -eq 0 ]; then
    echo "fuzz: no targets under $build/tests/fuzz" >&2
    exit 1
fi

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
each=$((seconds / ${#targets[@]}))
[ "$each" -ge 1 ] || each=1
failed=0
mkdir -p "$build/found"
for target in "${targets[@]}"; do
    name=$(basename "$target")
    corpus=$build/corpus/${name#fuzz_}
    seeds=$root/tests/fuzz/corpus/${name#fuzz_}
    mkdir -p "$corpus"
    folders=("$corpus")
    [ ! -d "$seeds" ] || folders+=("$seeds")
    log=$build/found/$name.log
    if "$target" -max_total_time="$each" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/found/$name-" "${folders[@]}" >"$log" 2>&1; then
        printf 'fuzz: %-28s %3d s  %s runs, none broke it\n' "$name" "$each" \
            "$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")"
    else
        failed=1
        printf 'fuzz: %-28s BROKEN, see %s\n' "$name" "$log" >&2
        tail -n 40 "$log" >&2
    fi
done
exit "$failed"
