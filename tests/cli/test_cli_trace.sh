#!/usr/bin/env bash
# run --trace leaves the files of all ranks, however they end, and trace reads them.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"
cd "$folder" || exit 1
traces=$folder/traces

run_program run -n 3 --trace "$traces" -- "$program" perf --op all_reduce,send_recv,broadcast -b 8 -e 64 --iters 20
expect_code 0 "a job with traces"
expect_line err "^spark-comm run: 3 of 3 ranks left 3 trace file\(s\) in .*/traces; 'spark-comm trace .*/traces' shows" "a job with traces"
run_program trace "$traces"
expect_code 0 "trace of a good job"
expect_line out '^no divergence: epoch 1, data lane, #[0-9]+ to #[0-9]+$' "trace of a good job"
expect_line out '^no divergence: epoch 1, messages from rank 0 to rank 1' "trace of a good job"
expect_no_line out 'DIVERGENCE|NO FILE|DAMAGED' "trace of a good job"
expect_line out 'rank 2 of 3, process [0-9]+, shm, spark_comm [0-9.]+, [0-9]+ records' "trace of a good job"
expect_line out 'clock of rank 1 .*as it is, right within' "trace of a good job"
short=$(wc -l <"$folder/out")
run_program trace --all "$traces"
[ "$(wc -l <"$folder/out")" -gt "$((short + 100))" ] || fail "--all shows no more rows"

# Files one by one, and one too few.
run_program trace "$traces"/spark_comm.[01].*.trace
expect_code 0 "two files of three"
expect_line out '^NO FILE of rank 2$' "two files of three"

run_program trace --chrome "$folder/chrome.json" "$traces"
expect_code 0 "--chrome"
if command -v python3 >/dev/null; then
    python3 - "$folder/chrome.json" <<'END' || fail "--chrome: not as it should be"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
calls = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in calls} == {1, 2, 3} and {e["tid"] for e in calls} == {0, 1}
assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["args"]["status"] == "SPARK_COMM_OK" for e in calls)
assert {e["name"] for e in calls} >= {"send_to", "recv_from", "broadcast"}
END
else
    grep -q '"traceEvents"' "$folder/chrome.json" || fail "--chrome: no events"
fi
run_program trace --chrome /nonexistent/x "$traces"
expect_code 1 "--chrome into nowhere"
expect_line err 'cannot write /nonexistent/x' "--chrome into nowhere"

# Damage: the rest is shown, what is wrong is named, the exit code says so.
mkdir damaged
cp "$traces"/*.trace damaged
for file in damaged/spark_comm.1.*; do truncate -s 300000 "$file"; done
for file in damaged/spark_comm.2.*; do printf '\002' | dd of="$file" bs=1 seek=8 conv=notrunc status=none; done
: >damaged/empty.trace
run_program trace damaged
expect_code 1 "damaged files"
expect_line err 'spark_comm.1.*cut off: 300000 of 528384 bytes' "damaged files"
expect_line err 'spark_comm.2.*version 2 of the format, this program reads version 1' "damaged files"
expect_line err 'empty.trace: empty' "damaged files"
expect_line out '^no divergence: epoch 1, command lane' "damaged files"
expect_line out '^NO FILE of rank 2$' "damaged files"
mkdir none
run_program trace none
expect_code 1 "a folder without traces"
expect_line err 'no files named' "a folder without traces"
run_program trace /nonexistent/x.trace
expect_code 1 "a file that is not there"
expect_line err 'cannot be opened: No such file' "a file that is not there"

# A rank is killed in the middle: its file tells its last call too.
cat >"$folder/rank" <<END
echo \$\$ >"$folder/pid.\$RANK"
exec "$program" perf --op all_reduce -b 8 -e 8 --iters 100000000
END
"$program" run -n 3 --trace "$folder/killed" -- bash "$folder/rank" >"$folder/out" 2>"$folder/err" </dev/null &
launcher=$!
started+=("$launcher")
has_work() { [ "$(find "$folder/killed" -name '*.trace' | wc -l)" = 3 ] && grep -q 'all_reduce' <("$program" trace "$folder/killed"); }
wait_until 30 has_files 'pid.*' 3 && wait_until 30 has_work || fail "the ranks did not start"
kill -KILL "$(cat "$folder/pid.1")"
wait "$launcher"
[ $? -eq 137 ] || fail "rank killed: wrong exit code"
expect_line err '3 of 3 ranks left 3 trace file' "rank killed"
run_program trace "$folder/killed"
expect_code 0 "trace of a killed rank"
expect_line out "rank 1 of 3, process $(cat "$folder/pid.1")," "trace of a killed rank"
expect_line out 'rank 1 has not entered it|rank 1: not complete, in it since|1:waits' "trace of a killed rank"
expect_no_line out 'DAMAGED' "trace of a killed rank"
forget_pids

# A rank that starts again leaves two files, and both are shown.
run_program run -n 1 --restart 1 --trace "$folder/twice" -- bash -c "
    '$program' perf --op barrier --iters 5 >/dev/null; [ -e again ] || { touch again; exit 3; }"
expect_code 0 "a rank that starts again"
expect_line err '1 of 1 ranks left 2 trace file' "a rank that starts again"
run_program trace "$folder/twice"
expect_code 0 "two files of one rank"
[ "$(grep -c 'rank 0 of 1, process' "$folder/out")" = 2 ] || fail "two files of one rank: not both"
expect_line out 'communicator 2, epoch 1' "two files of one rank"

# Files of an earlier job are not counted as this one's.
run_program run -n 1 --trace "$folder/twice" -- true
expect_line err 'no rank left a trace in .*/twice: none opened' "old files"

finish
