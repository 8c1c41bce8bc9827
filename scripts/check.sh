#!/usr/bin/env bash
# The long checks behind `make check`, one after the other. A step that fails does not stop the
# others; the end lists each step with its time and fails if one of them did.
#
#   scripts/check.sh [STEP...]     steps: asan tsan fuzz aarch64 clang static models (default: all)
#
# JOBS and TEST_JOBS: how many compilers and tests run at once. FUZZ_SECONDS: in all (default 60).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

jobs=${JOBS:-$(nproc)}
test_jobs=${TEST_JOBS:-2}
fuzz_seconds=${FUZZ_SECONDS:-60}

build_preset() {
    cmake --preset "$1" >"build/configure-$1.log" 2>&1 || { cat "build/configure-$1.log"; return 1; }
    cmake --build --preset "$1" -j "$jobs" "${@:2}" >"build/compile-$1.log" 2>&1 ||
        { tail -n 60 "build/compile-$1.log"; return 1; }
}

# gcc's thread sanitizer cannot lay out its shadow memory where the kernel randomizes addresses
# with more bits than it knows; without randomization it can.
without_randomization() {
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        setarch "$(uname -m)" -R "$@"
    else
        "$@"
    fi
}

# The program's own tests run release binaries again and again: they are left to `make test`.
step_asan() { build_preset asan && ctest --preset asan -j "$test_jobs" -LE '^cli$'; }

# The fakes of the NCCL backend take as long again as all the rest: `ctest --preset tsan -L fakes`.
step_tsan() {
    build_preset tsan &&
        without_randomization ctest --preset tsan -j "$test_jobs" -LE '^(cli|llm|fakes)$'
}

step_fuzz() { build_preset fuzz && scripts/fuzz.sh "$fuzz_seconds"; }

# An emulated rank is 10 to 30 times slower, so only what says something about the architecture,
# without five programs that would take ten minutes more: `ctest --preset aarch64` runs them too.
step_aarch64() {
    if [ "$(uname -m)" != x86_64 ]; then
        echo "this machine is not x86-64: its own tests stand for aarch64"
        return 77
    fi
    build_preset aarch64 &&
        ctest --preset aarch64 -j "$test_jobs" -L '^(unit|contract|fuzz)$' -LE '^slow$' \
            -E '^test_(shm_direct|threads|reports|life|loops)$'
}

# The second compiler has warnings of its own.
step_clang() { build_preset clang; }

step_static() { scripts/analyse.sh "$jobs"; }

step_models() {
    if ! compgen -G 'docs/models/*.pml' >/dev/null; then
        echo "no models in docs/models"
        return 77
    fi
    scripts/models.sh
}

steps=("$@")
[ "${#steps[@]}" -gt 0 ] || steps=(clang static asan tsan fuzz aarch64 models)
mkdir -p build
failed=0
report=()
for step in "${steps[@]}"; do
    printf '\n== check: %s\n' "$step"
    start=$SECONDS
    "step_$step"
    case $? in
    0) outcome=good ;;
    77) outcome=skipped ;;
    *) outcome=FAILED failed=1 ;;
    esac
    report+=("$(printf '%-10s %-8s %5d s' "$step" "$outcome" "$((SECONDS - start))")")
done

printf '\n== check: all steps\n'
printf '  %s\n' "${report[@]}"
exit "$failed"
