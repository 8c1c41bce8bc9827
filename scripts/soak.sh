#!/usr/bin/env bash
# What shows only at times: `make soak`. Random faults, long fuzzing, then the suites over and over, in
# random order, until the time is up. The first failure ends it.
#
#   SOAK_MINUTES=N scripts/soak.sh     (default 120: a third of it fuzzing)
#   SOAK_ROUNDS=N SOAK_SEED=S          rounds of random faults (500), and where their seeds begin
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

minutes=${SOAK_MINUTES:-120}
jobs=${JOBS:-$(nproc)}
presets=(release asan tsan)
faults=(--rounds "${SOAK_ROUNDS:-500}")
[ -z "${SOAK_SEED:-}" ] || faults+=(--seed "$SOAK_SEED")
end=$((SECONDS + minutes * 60))

mkdir -p build
for preset in "${presets[@]}" fuzz; do
    echo "soak: building $preset"
    cmake --preset "$preset" -D SPARK_COMM_TESTS=ON >"build/soak-$preset.log" 2>&1 &&
        cmake --build --preset "$preset" -j "$jobs" >>"build/soak-$preset.log" 2>&1 ||
        { tail -n 60 "build/soak-$preset.log" >&2; exit 1; }
done

build/tests/faults/test_soak "${faults[@]}"

echo "soak: fuzzing for $((minutes / 3)) minutes"
scripts/fuzz.sh $((minutes * 20))

# The thread sanitizer of gcc needs its addresses at their usual places.
steady=()
if setarch "$(uname -m)" -R true 2>/dev/null; then steady=(setarch "$(uname -m)" -R); fi

# Loops that a test offers for this: it sees SC_TEST_SOAK=1 and goes thousands of times round.
export SC_TEST_SOAK=1
round=0
while [ "$SECONDS" -lt "$end" ]; do
    round=$((round + 1))
    for preset in "${presets[@]}"; do
        [ "$SECONDS" -lt "$end" ] || break
        echo "soak: round $round, $preset"
        "${steady[@]}" ctest --preset "$preset" --schedule-random -LE checks --repeat until-fail:5 \
            >"build/soak-$preset.log" 2>&1 || { tail -n 200 "build/soak-$preset.log" >&2; exit 1; }
    done
done
echo "soak: $round rounds, nothing failed"
