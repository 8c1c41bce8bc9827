#!/usr/bin/env bash
# Nothing outlives the job: not when it ends, not when the launcher or its helper is killed.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

# A rank with a child in its group, a child in a session of its own, and one that has lost its
# parent; all of them deaf to SIGTERM and SIGHUP.
cat >"$folder/rank" <<'END'
trap '' TERM HUP
note=$1/pid.$RANK
( trap '' TERM HUP; exec sleep 300 ) & echo $! >"$note.group"
setsid bash -c 'trap "" TERM HUP; echo $$ >'"$note"'.session; exec sleep 300' &
( setsid bash -c 'trap "" TERM HUP; echo $$ >'"$note"'.adopted; exec sleep 300' & )
echo $$ >"$note"
while :; do sleep 1; done
END

# start: begins a job of two ranks, sets launcher, helper and noted.
start() {
    forget_pids
    "$@" "$program" run -n 2 -- bash "$folder/rank" "$folder" >/dev/null 2>"$folder/err" </dev/null &
    launcher=$!
    started+=("$launcher")
    wait_until 20 has_files 'pid.*' 8 || fail "the ranks did not start: $(cat "$folder/err")"
    noted=$(cat "$folder"/pid.*)
    helper=$(children_of "$launcher")
}

expect_all_gone() {
    # shellcheck disable=SC2086 # words on purpose
    wait_until 5 all_gone $noted $helper && return
    fail "$1: left behind: $(for pid in $noted $helper; do is_gone "$pid" || echo "$pid"; done)"
}

start
kill -KILL "$launcher"
expect_all_gone "launcher killed"
wait "$launcher" 2>/dev/null

start
kill -KILL "$helper"
wait "$launcher" 2>/dev/null
[ $? -eq 137 ] || fail "helper killed: wrong exit code"
expect_all_gone "helper killed"
expect_line err 'was killed by signal 9' "helper killed"

# The launcher's whole process group, as a shell or a service manager may do it.
start setsid
kill -KILL -- "-$launcher"
expect_all_gone "group of the launcher killed"
wait "$launcher" 2>/dev/null

start
kill -KILL "$(cat "$folder/pid.1")"
wait "$launcher" 2>/dev/null
[ $? -eq 137 ] || fail "rank killed: wrong exit code"
expect_all_gone "rank killed"

start
begin=$(now_ms)
kill -TERM "$launcher"
sleep 1.2
kill -TERM "$launcher"
wait "$launcher" 2>/dev/null
[ $(($(now_ms) - begin)) -le 6500 ] || fail "ended twice: took too long"
expect_all_gone "asked to end twice"

# Both at once: then only the kernel is left to end the ranks, and it does that for them alone.
start
kill -KILL "$launcher" "$helper"
wait "$launcher" 2>/dev/null
noted=$(cat "$folder/pid.0" "$folder/pid.1")
expect_all_gone "launcher and helper killed"
forget_pids

# The memory that ranks share has no name that could outlive them.
"$program" run -n 2 -- bash -c 'echo $$ >'"$folder"'/pid.$RANK; exec "$0" perf --op all_reduce -b 8 -e 8 --iters 100000000' \
    "$program" >/dev/null 2>"$folder/err" </dev/null &
launcher=$!
started+=("$launcher")
helper=
shares_memory() { has_files 'pid.*' 2 && for pid in $(cat "$folder"/pid.*); do grep -q '/memfd:' "/proc/$pid/maps" 2>/dev/null || return 1; done; }
wait_until 20 shares_memory || fail "the ranks' shared memory: they did not start: $(cat "$folder/err")"
noted=$(cat "$folder"/pid.*)
for pid in $noted; do
    grep '/dev/shm/' "/proc/$pid/maps" && fail "the ranks' shared memory: process $pid maps a named file"
done
kill -KILL "$launcher"
expect_all_gone "the ranks' shared memory"
wait "$launcher" 2>/dev/null
forget_pids

# Ranks that end well and leave things behind.
run_program run -n 2 -- bash -c 'sleep 300 & echo $! >'"$folder"'/pid.$RANK.a
    setsid sleep 300 & echo $! >'"$folder"'/pid.$RANK.b'
expect_code 0 "good ranks that leave processes behind"
noted=$(cat "$folder"/pid.?.?)
helper=
expect_all_gone "good ranks that leave processes behind"

# Children of the shell that became the launcher are not ours to kill.
bash -c 'sleep 60 & echo $! >'"$folder"'/pid.shell; exec "$0" run -n 1 -- true' "$program" </dev/null
is_gone "$(cat "$folder/pid.shell")" && fail "a child of the calling shell was killed"

finish
