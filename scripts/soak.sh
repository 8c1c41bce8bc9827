#!/usr/bin/env bash
# What shows only at times: `make soak`. Long fuzzing, then the suites over and over, in random
# order, until the time is up. The first failure ends it.
#
#   SOAK_MINUTES=N scripts/soak.sh     (default 120: a third of it fuzzing)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

minutes=${SOAK_MINUTES:-120}
jobs=${JOBS:-$(nproc)}
presets=(release asan tsan)
end=$((SECONDS + minutes * 60))

mkdir -p build
for preset in "${presets[@]}" fuzz; do
    echo "soak: building $preset"
    cmake --preset "$preset" -D SPARK_COMM_TESTS=ON >"build/soak-$preset.log" 2>&1 &&
        cmake --build --preset "$preset" -j "$jobs" >>"build/soak-$preset.log" 2>&1 ||
        { tail -n 60 "build/soak-$preset.log" >&2; exit 1; }
done

echo "soak: fuzzing for $((minutes / 3)) minutes"
scripts/fuzz.sh $((minutes * 20))

scripts/soak_loops.sh build >build/soak-loops.log 2>&1 || { tail -n 200 build/soak-loops.log >&2; exit 1; }

# Loops that a test offers for this: it sees SC_TEST_SOAK=1 and goes thousands of times round.
export SC_TEST_SOAK=1
round=0
while [ "$SECONDS" -lt "$end" ]; do
    round=$((round + 1))
    for preset in "${presets[@]}"; do
        [ "$SECONDS" -lt "$end" ] || break
        echo "soak: round $round, $preset"
        ctest --preset "$preset" --schedule-random -LE checks --repeat until-fail:5 \
            >"build/soak-$preset.log" 2>&1 || { tail -n 200 "build/soak-$preset.log" >&2; exit 1; }
    done
done
echo "soak: $round rounds, nothing failed"
