#!/usr/bin/env bash
# Each contract operation 10,000 times on shm, every result checked, while other processes keep all
# CPUs busy. Part of `make soak`. The first failure ends it.
#
#   scripts/soak_loops.sh [BUILD [WORD...]]     (default: build; words choose among
#                                                OPERATION/shm/threads|processes/RANKS)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:-build}
shift || true
burners=()
trap 'kill "${burners[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < $(nproc); i++)); do
    (while :; do :; done) &
    burners+=($!)
done
SC_TEST_SOAK=1 "$build/tests/contract/test_loops" shm "$@"
echo "soak: each operation 10,000 times with all CPUs busy"
