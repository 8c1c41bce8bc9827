#!/usr/bin/env bash
# A rank is killed in mid-generation: the head prints the verdict, the rank is started again, reads the
# model again, and the text is that of an undisturbed run. Sampled, so that the state of the choice
# has to survive too.
source "$(dirname "${BASH_SOURCE[0]}")/llm_common.sh"
make_model q4_1 model
arguments=(--model "$folder/model" --prompt "tell me" -n 100 --ignore-end --temperature 0.8 --seed 5)

run_program run -n 3 --no-labels -- "$llm" "${arguments[@]}"
expect_code 0 "undisturbed"
cp "$folder/out" "$folder/undisturbed"

# The prompt's text is not printed, so bytes are generated tokens.
has_text() { [ "$(stat -c %s "$folder/out")" -ge 30 ]; }
has_verdict() { grep -q "rank 0: lost: SPARK_COMM_PEER_LOST: .*rank $1" "$folder/err"; }

# kill_once VICTIM
kill_once() {
    local victim=$1 launcher pid begin took
    "$program" run -n 3 --restart 1 --no-labels -- "$llm" "${arguments[@]}" --pace 20 \
        >"$folder/out" 2>"$folder/err" </dev/null &
    launcher=$!
    started+=("$launcher")
    wait_until 20 has_text || fail "rank $victim: no text"
    pid=$(sed -n "s/^llm: rank $victim of 3, process \([0-9]*\), epoch 1.*/\1/p" "$folder/err")
    begin=$(now_ms)
    kill -KILL "$pid"
    if [ "$victim" != 0 ]; then
        # The machine's load is part of this second; the library's own part is some milliseconds.
        wait_until 5 has_verdict "$victim" || fail "rank $victim: no verdict"
        took=$(($(now_ms) - begin))
        echo "rank $victim: verdict after $took ms"
        [ "$took" -lt 1000 ] || fail "rank $victim: the verdict took $took ms"
    fi
    wait "$launcher"
    code=$?
    expect_code 0 "rank $victim killed"
    expect_line err "^llm: rank $victim of 3, process [0-9]+, epoch [2-9]" "rank $victim killed"
    expect_line err '100 generated' "rank $victim killed"
}

kill_once 2
cmp "$folder/undisturbed" "$folder/out" || fail "rank 2 killed: another text"
# The head's own tokens die with it: its replacement begins with the prompt, and the text comes whole.
kill_once 0
tail -c "$(stat -c %s "$folder/undisturbed")" "$folder/out" | cmp "$folder/undisturbed" - ||
    fail "rank 0 killed: another text"
finish
