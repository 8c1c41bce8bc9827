#!/usr/bin/env bash
# Checks every model in docs/models/*.pml with spin, to the end: no assertion fails, no state is a dead end.
#
#   scripts/models.sh [full]     full: also the long checks, some minutes each
#
# Lines at the head of a model say what to run; one without them is checked once, as it is. Options are macros for spin,
# and -O1 for the compiler where the search is long; most searches are so short that compiling takes the time.
#   /* pan: OPTIONS */                 the first line: options for every search, such as -m100000
#   /* check: NAME [OPTION...] */      must hold
#   /* cycles: NAME [OPTION...] */     no run goes on for ever
#   /* mutant: NAME [OPTION...] */     a model with a fault in it: an assertion must fail
#   /* full check: ... */, /* full cycles: ... */      only with `full`
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kinds='check|cycles|mutant'
limit=300
if [ "${1-}" = full ]; then
    kinds='check|cycles|mutant|full check|full cycles'
    limit=1800
fi

# run MODEL KIND NAME [OPTION...]: builds the checker in a folder of its own, lets it run, and judges its log.
run() {
    local model=$1 kind=${2#full } name=$3 start=$SECONDS label work states option
    shift 3
    label="models: $(basename "$model" .pml) $name"
    work=$root/build/models/$(basename "$model" .pml)/$name
    local macros=() compile=(-O0) search=()
    for option in "$@"; do
        case $option in
        -O*) compile+=("$option") ;;
        *) macros+=("$option") ;;
        esac
    done
    if [ "$kind" = cycles ]; then
        compile+=(-DNP)
        search+=(-l)
    else
        compile+=(-DSAFETY)
    fi
    read -ra pan_options < <(sed -n '1s/.*pan:\(.*\)\*\/.*/\1/p' "$model") || true
    rm -rf "$work"
    mkdir -p "$work"
    cd "$work"
    spin -a "${macros[@]}" "$model" >spin.log 2>&1 || { cat spin.log; return 1; }
    cc -w "${compile[@]}" -DMEMLIM=4096 -o pan pan.c # generated code: its warnings are spin's
    timeout "$limit" ./pan "${search[@]}" "${pan_options[@]}" >pan.log 2>&1 || { cat pan.log; return 1; }
    if [ "$kind" = mutant ]; then
        grep -q 'assertion violated' pan.log || { cat pan.log; echo "$label: its fault was not found" >&2; return 1; }
        echo "$label: its fault was found"
        return
    fi
    if ! grep -q 'errors: 0' pan.log; then
        cat pan.log
        echo "$label has an error; how it comes about: cd $work && spin -t -p -g ${macros[*]} $model" >&2
        return 1
    fi
    if grep -q -e 'Search not completed' -e 'max search depth too small' pan.log; then
        cat pan.log
        echo "$label was not searched to the end: it needs more depth (-m in its first line) or memory" >&2
        return 1
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    echo "$label: good, $states states, $((SECONDS - start)) s"
}

for model in "$root"/docs/models/*.pml; do
    mapfile -t lines < <(sed -nE "s,^/\* ($kinds): (.*) \*/\$,\1|\2,p" "$model")
    [ "${#lines[@]}" -gt 0 ] || lines=('check|plain')
    for line in "${lines[@]}"; do
        read -ra words <<<"${line#*|}"
        run "$model" "${line%%|*}" "${words[@]}"
    done
done
