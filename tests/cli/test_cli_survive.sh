#!/usr/bin/env bash
# A job goes on after a rank was killed: run --restart starts it again, the others reconnect, and no
# step is lost.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"
survive=$(dirname "$program")/examples/survive
[ -x "$survive" ] || { echo "skipped: no example at $survive"; exit 77; }
export SPARK_COMM_RENDEZVOUS_TIMEOUT_MS=20000

# kill_once VICTIM: a job of three ranks, in which one is killed once all are at work.
kill_once() {
    local victim=$1 launcher pid code rank
    "$program" run -n 3 --restart 1 --trace "$folder/traces.$victim" -- "$survive" 3000 \
        >"$folder/out" 2>"$folder/err" </dev/null &
    launcher=$!
    started+=("$launcher")
    all_at_work() { [ "$(grep -c 'epoch 1 from step 0$' "$folder/out")" = 3 ]; }
    wait_until 20 all_at_work || fail "rank $victim: the job did not start"
    sleep 0.3 # in the middle of the steps, wherever that is
    pid=$(sed -n "s/.*rank $victim, process \([0-9]*\): epoch 1.*/\1/p" "$folder/out")
    kill -KILL "$pid"
    wait "$launcher"
    code=$?
    expect_code 0 "rank $victim killed"
    expect_line err "rank $victim \(pid $pid\) was killed by signal 9 .*starting it again \(1 of 1\)" "rank $victim killed"
    for rank in 0 1 2; do
        expect_line out "^\[$rank\] rank $rank: 3000 steps, total 9000$" "rank $victim killed"
        expect_line out "rank $rank, process [0-9]+: epoch 2 from step [1-9]" "rank $victim killed"
    done
    run_program trace "$folder/traces.$victim"
    expect_code 0 "rank $victim killed, traces"
    [ "$(grep -c "rank $victim of 3, process" "$folder/out")" = 2 ] || fail "rank $victim: not both its files"
    expect_line out '^no divergence: epoch 2, data lane' "rank $victim killed, traces"
}

kill_once 2
kill_once 0
finish
