#!/usr/bin/env bash
# A language model over several ranks of this machine (examples/llm).
#
#   scripts/demo.sh BUILD             generate, and say how fast
#   scripts/demo.sh BUILD --failure   the same, with a worker killed in the middle
#
# RANKS (2) and PROMPT choose. Without the real model the same engine runs on random weights.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "$1" && pwd)
ranks=${RANKS:-2}
prompt=${PROMPT:-Explain in a few sentences why the sky is blue.}
run=("$build/spark-comm" run -n "$ranks" --no-labels)
export SPARK_COMM_RENDEZVOUS_TIMEOUT_MS=30000

if ! model=$("$source_dir/scripts/fetch_model.sh"); then
    model=${SPARK_COMM_MODEL_CACHE:-$source_dir/.cache/llm}/random-135m.gguf
    echo "demo: the real model cannot be had; random weights of its shape instead, so the text means nothing" >&2
    mkdir -p "$(dirname "$model")"
    [ -f "$model" ] || { "$build/examples/llm_random_model" --shape smollm2-135m --type q4_1 --seed 1 \
        "$model.new" && mv "$model.new" "$model"; }
    set -- "$@" --random
fi
engine=("$build/examples/llm" --model "$model" --prompt "$prompt" --tokens 128)
[ "${*: -1}" != --random ] || engine+=(--ignore-end)

if [ "${2:-}" != --failure ]; then
    exec "${run[@]}" -- "${engine[@]}"
fi

folder=$(mktemp -d)
job=
trap 'rm -rf "$folder"; [ -z "$job" ] || kill "$job" 2>/dev/null || true' EXIT
now_ms() { echo $(($(date +%s%N) / 1000000)); }
# wait_for DESCRIPTION COMMAND...
wait_for() {
    local end=$(($(now_ms) + 60000)) what=$1
    shift
    until "$@"; do
        kill -0 "$job" 2>/dev/null || { cat "$folder/err" >&2; echo "demo: ended before $what" >&2; exit 1; }
        [ "$(now_ms)" -lt "$end" ] || { echo "demo: no $what" >&2; exit 1; }
        sleep 0.01
    done
}
has_text() { [ "$(stat -c %s "$folder/out")" -ge 80 ]; }
has_verdict() { grep -q 'rank 0: lost' "$folder/err"; }

echo "demo: undisturbed, for comparison" >&2
"${run[@]}" -- "${engine[@]}" >"$folder/expected" 2>"$folder/err"
victim=$((ranks - 1))
echo "demo: once more, slowly; rank $victim will be killed" >&2
: >"$folder/out"
"${run[@]}" --restart 1 -- "${engine[@]}" --pace 50 >"$folder/out" 2>"$folder/err" &
job=$!
wait_for "text" has_text
pid=$(sed -n "s/^llm: rank $victim of $ranks, process \([0-9]*\), epoch 1.*/\1/p" "$folder/err")
begin=$(now_ms)
kill -KILL "$pid"
wait_for "verdict" has_verdict
echo "demo: process $pid killed; the verdict was there after $(($(now_ms) - begin)) ms" >&2
wait "$job"
job=
cat "$folder/err" >&2
cat "$folder/out"
cmp "$folder/expected" "$folder/out" || { echo "demo: the text differs from the undisturbed run" >&2; exit 1; }
echo "demo: the same text as the undisturbed run" >&2
