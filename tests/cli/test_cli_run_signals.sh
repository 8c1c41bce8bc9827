#!/usr/bin/env bash
# SIGINT, SIGTERM and SIGHUP to the launcher reach the ranks, and the ranks decide.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

# start SCRIPT: one job of two ranks; each notes that it is ready.
start() {
    forget_pids
    rm -f "$folder"/got.*
    "$program" run -n 2 ${options[@]+"${options[@]}"} -- bash -c "$1" rank "$folder" >"$folder/out" 2>"$folder/err" </dev/null &
    launcher=$!
    started+=("$launcher")
    wait_until 20 has_files 'pid.*' 2 || fail "the ranks did not start: $(cat "$folder/err")"
}

options=()
for signal in INT TERM HUP; do
    # shellcheck disable=SC2016 # for the ranks' shell
    start 'for s in INT TERM HUP; do trap "echo $s >$1/got.$RANK; exit 0" $s; done
        echo $$ >"$1/pid.$RANK"; while :; do sleep 0.1; done'
    kill "-$signal" "$launcher"
    wait "$launcher"
    code=$?
    expect_code 0 "ranks that end well on SIG$signal"
    for rank in 0 1; do
        [ "$(cat "$folder/got.$rank" 2>/dev/null)" = "$signal" ] || fail "SIG$signal did not reach rank $rank"
    done
done

# Not handled: the ranks die of it, and that is the code. Restarting is not what the user wants.
options=(--restart 3)
for signal in INT:130 TERM:143 HUP:129; do
    # shellcheck disable=SC2016
    start 'echo $$ >"$1/pid.$RANK"; exec sleep 60'
    kill "-${signal%:*}" "$launcher"
    wait "$launcher"
    code=$?
    expect_code "${signal#*:}" "ranks that die of SIG${signal%:*}"
    expect_no_line err 'starting it again' "SIG${signal%:*} with --restart"
    noted_gone || fail "SIG${signal%:*}: a rank is left"
done

# Under nohup SIGHUP stays ignored.
options=()
trap '' HUP
# shellcheck disable=SC2016
start 'echo $$ >"$1/pid.$RANK"; exec sleep 2'
trap - HUP
kill -HUP "$launcher"
wait "$launcher"
code=$?
expect_code 0 "SIGHUP that the caller ignores"

finish
