#!/usr/bin/env bash
# run ends all ranks when one fails, within 5 s, with the first failure's code; or starts it again.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

run_program run -n 3 -- true
expect_code 0 "three good ranks"

run_program run -n 3 -- bash -c 'echo $$ >'"$folder"'/pid.$RANK; [ $RANK != 1 ] || { sleep 0.3; exit 7; }; exec sleep 60'
expect_code 7 "one rank exits with 7"
expect_line err 'rank 1 \(pid [0-9]+\) exited with code 7; ending the other ranks' "exit with 7"
noted_gone || fail "a rank outlived the job"
forget_pids

run_program run -n 2 -- bash -c '[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60'
expect_code 139 "one rank is killed by SIGSEGV"
expect_line err 'rank 1 .* killed by signal 11' "killed by SIGSEGV"

# By force, when SIGTERM is not enough, and also a rank that is stopped.
begin=$(now_ms)
run_program run -n 3 -- bash -c 'trap "" TERM; echo $$ >'"$folder"'/pid.$RANK
    [ $RANK = 2 ] && { kill -STOP $$; sleep 60; }
    [ $RANK = 1 ] && { sleep 0.5; exit 9; }
    while :; do sleep 1; done'
took=$(($(now_ms) - begin))
expect_code 9 "ranks that ignore SIGTERM"
[ "$took" -le 5500 ] || fail "ranks that ignore SIGTERM: took $took ms"
noted_gone || fail "a rank that ignores SIGTERM outlived the job"
forget_pids

run_program run -n 2 -- /nonexistent/program
expect_code 127 "a program that is not there"
expect_line err "cannot start '/nonexistent/program' as rank 0: No such file" "program not there"
run_program run -n 2 -- /
expect_code 126 "a program that is a folder"

# The program's options are not read as the launcher's, with and without "--".
run_program run -n 1 printf '%s\n' -n --help
expect_code 0 "options of the program"
[ "$(cat "$folder/out")" = $'[0] -n\n[0] --help' ] || fail "options of the program: $(cat "$folder/out")"

# Restart: rank 1 fails as often as its file says.
cat >"$folder/flaky" <<'END'
[ "$RANK" = 1 ] || exec sleep 1
count=$(cat "$0.count" 2>/dev/null || echo 0)
echo $((count + 1)) >"$0.count"
[ "$count" -ge 2 ] || exit 4
END
run_program run -n 2 --restart 2 -- bash "$folder/flaky"
expect_code 0 "--restart 2, a rank that fails twice"
[ "$(cat "$folder/flaky.count")" = 3 ] || fail "--restart 2: started $(cat "$folder/flaky.count") times"
expect_line err 'starting it again \(2 of 2\)' "--restart 2"
rm "$folder/flaky.count"
run_program run -n 2 --restart 1 -- bash "$folder/flaky"
expect_code 4 "--restart 1, a rank that fails twice"
[ "$(cat "$folder/flaky.count")" = 2 ] || fail "--restart 1: started $(cat "$folder/flaky.count") times"

# K counts the restarts of all ranks together. A rank that starts again finds what it found before.
cat >"$folder/once" <<'END'
env | grep -E '^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SPARK_COMM_)' | sort >"$0.env.$RANK.$(ls "$0".env."$RANK".* 2>/dev/null | wc -l)"
[ -e "$0.env.$RANK.1" ] || exit 6
END
run_program run -n 2 --restart 2 -- bash "$folder/once"
expect_code 0 "--restart 2, two ranks that fail once each"
for rank in 0 1; do
    grep -q '^SPARK_COMM_JOB_TOKEN=................' "$folder/once.env.$rank.0" || fail "rank $rank had no token"
    cmp -s "$folder/once.env.$rank.0" "$folder/once.env.$rank.1" ||
        fail "rank $rank started again with another environment: $(diff "$folder/once.env.$rank".*)"
done
rm "$folder"/once.env.*
run_program run -n 2 --restart 1 -- bash "$folder/once"
expect_code 6 "--restart 1, two ranks that fail once each"

# The others of a rank that is killed and starts again are left alone.
cat >"$folder/killed" <<'END'
[ "$RANK" = 1 ] || exec sleep 2
[ -e "$0.again" ] || { touch "$0.again"; kill -KILL $$; }
END
run_program run -n 3 --restart 1 -- bash "$folder/killed"
expect_code 0 "--restart 1, a rank that is killed"
expect_line err 'rank 1 .* killed by signal 9 \(.*\); starting it again \(1 of 1\)' "a rank that is killed"

finish
