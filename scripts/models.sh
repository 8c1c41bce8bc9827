#!/usr/bin/env bash
# Checks every model in docs/models/*.pml with spin: no assertion fails, no state is a dead end.
# A model's first line may give options for the search: /* pan: -m100000 */
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

for model in "$root"/docs/models/*.pml; do
    name=$(basename "$model" .pml)
    work=$root/build/models/$name
    mkdir -p "$work"
    options=$(sed -n '1s/.*pan:\(.*\)\*\/.*/\1/p' "$model")
    cd "$work"
    spin -a "$model"
    cc -O2 -DSAFETY -DMEMLIM=4096 -o pan pan.c
    # shellcheck disable=SC2086  # several options in one line
    timeout 300 ./pan $options >pan.log 2>&1 || { cat pan.log; exit 1; }
    if ! grep -q 'errors: 0' pan.log; then
        cat pan.log
        echo "models: $name has an error" >&2
        exit 1
    fi
    if grep -q 'max search depth too small' pan.log; then
        echo "models: $name was not searched to the end; raise -m in its first line" >&2
        exit 1
    fi
    echo "models: $name good, $(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log) states"
done
