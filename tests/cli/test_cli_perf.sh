#!/usr/bin/env bash
# perf verifies and times every operation; the outcome is in the table, the JSON and the exit code.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

# A backend that serves two ranks on this machine is what this test is about.
"$program" doctor --backend shm >"$folder/out" 2>&1 || {
    echo "skipped: shm cannot serve here:"
    grep -E '^\*' "$folder/out"
    exit 77
}
quick=(--iters 20 --warmup 1)

# check_json FILE RANKS ROWS WRONG: its form, and whether wrong elements are in it.
check_json() {
    if ! command -v python3 >/dev/null; then
        echo "not tried: the JSON form (no python3)"
        return
    fi
    python3 - "$@" <<'END' || fail "JSON of $1"
import json, sys
path, ranks, rows, wrong = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "wrong"
data = json.load(open(path))
assert data["world_size"] == ranks, data["world_size"]
assert isinstance(data["backend"], str) and data["backend"]
assert len(data["results"]) == rows, len(data["results"])
for row in data["results"]:
    for key in ("op", "dtype", "path"):
        assert isinstance(row[key], str) and row[key], row
    for key in ("bytes", "wrong"):
        assert isinstance(row[key], int), row
    for key in ("time_us_median", "time_us_min", "time_us_p99", "algbw_gbps", "busbw_gbps"):
        assert isinstance(row[key], float) and row[key] >= 0, row
    assert 0 < row["time_us_min"] <= row["time_us_median"], row
assert any(row["wrong"] for row in data["results"]) == wrong, data
END
}

# 8, 512, 32K and 64K for six operations, and one barrier.
run_program perf -n 2 --backend shm --op all -b 8 -e 64K -f 64 "${quick[@]}" --json "$folder/all.json"
expect_code 0 "all operations"
expect_line out '^# 25 rows, 0 wrong elements' "all operations"
check_json "$folder/all.json" 2 25 right
for op in all_reduce all_gather reduce_scatter broadcast barrier send_recv command; do
    expect_line out "^  $op +[0-9]+ " "row of $op"
done

# JSON alone on standard output, the table on the other.
run_program perf -n 3 --op send_recv,all_reduce -b 100 -e 100 "${quick[@]}" --json -
expect_code 0 "--json -"
cp "$folder/out" "$folder/stdout.json"
check_json "$folder/stdout.json" 3 2 right
expect_line err '^  all_reduce ' "table beside --json -"

for dtype in bf16 f16 f32 f64 i8 u8 i32 i64; do
    for redop in sum max min avg; do
        run_program perf -n 2 --op all_reduce,reduce_scatter --dtype "$dtype" --redop "$redop" \
            -b 8 -e 4104 -f 600 --iters 2 --warmup 0
        expect_code 0 "$dtype $redop"
    done
done

run_program perf -n 2 --symmetric --op all_reduce,all_gather -b 4K -e 64K -f 16 "${quick[@]}"
expect_code 0 "--symmetric"
run_program perf --op all -b 8 -e 1K -f 128 "${quick[@]}"
expect_code 0 "one rank by itself"
expect_line out ' 1 rank,' "one rank by itself"
run_program run -n 2 -- "$program" perf --op all_reduce -b 8 -e 8 "${quick[@]}"
expect_code 0 "under run"
expect_line out '^\[0\]   all_reduce ' "under run"
expect_no_line out '^\[1\]' "under run: only rank 0 prints"

# Ranks that were given different work say so instead of waiting for each other.
run_program run -n 2 -- bash -c 'exec "$0" perf --op all_reduce -e $((64 << RANK))' "$program"
expect_code 1 "different options"
expect_line err 'rank 1 was started with other options' "different options"

run_program perf -n 2 --backend no_such_backend --op barrier
expect_code 1 "a backend that is not there"
run_program perf -n 2 --op barrier --json "$folder/missing/x.json" "${quick[@]}"
expect_code 1 "a JSON file that cannot be written"
expect_line err 'No such file or directory' "a JSON file that cannot be written"

# A model's communication: two all-reduces per layer of batch x hidden elements of 2 bytes.
run_program perf -n 2 --workload smollm2-135m --batch 4 --chunk 64 --json "$folder/workload.json"
expect_code 0 "--workload"
expect_line out '^  decode of 4 +60 x +4608 +196608 ' "--workload"
expect_line out '^  prefill of 64 +60 x +73728 +49152 ' "--workload"
expect_line out 'config.json of HuggingFaceTB/SmolLM2-135M-Instruct' "--workload"
command -v python3 >/dev/null || echo "not tried: the JSON form of --workload (no python3)"
! command -v python3 >/dev/null || python3 - "$folder/workload.json" <<'EOF' || fail "--workload: the JSON is wrong"
import json, sys
r = json.load(open(sys.argv[1]))
d, p = r["decode"], r["prefill"]
assert r["workload"] == "smollm2-135m" and r["world_size"] == 2 and r["dtype"] == "bf16", r
assert d["all_reduces"] == 60 and d["tokens"] == 4 and p["tokens"] == 64, r
for part in d, p:
    assert part["time_us_median"] >= part["time_us_min"] > 0, part
    assert abs(part["time_us_per_token"] * part["tokens_per_second_bound"] - 1e6) < 100, part
EOF
run_program perf --workload gpt-oss-120b --chunk 8
expect_code 0 "--workload, one rank"
expect_line out '^  decode of 1 +72 x +5760 +402176 ' "--workload, one rank"
for bad in "--workload gpt-5" "--batch 2" "--workload deepseek-v3 --op barrier" "--workload deepseek-v3 --batch 0"; do
    run_program perf $bad
    expect_code 2 "perf $bad"
done

# What asks for nothing has verified nothing.
run_program perf -n 2 --op send_recv -b 1 -e 1 --dtype f32 "${quick[@]}"
expect_code 1 "no size that fits"
expect_line err 'nothing was verified' "no size that fits"
run_program perf -n 2 --op barrier --plot "$folder/plot.png" "${quick[@]}"
expect_code 2 "--plot of another format"
expect_line err 'ends in \.svg' "--plot of another format"

if command -v gnuplot >/dev/null; then
    run_program perf -n 2 --op barrier --plot "$folder/missing/x.svg" "${quick[@]}"
    expect_code 1 "a plot that cannot be written"
    expect_line err 'No such file or directory' "a plot that cannot be written"
    expect_no_line out ' barrier ' "a plot that cannot be written: found before the work"
    run_program perf -n 2 --op all_reduce -b 8 -e 32K "${quick[@]}" --plot "$folder/it's a plot.svg"
    expect_code 0 "--plot"
    grep -q '<svg' "$folder/it's a plot.svg" || fail "--plot drew nothing"
else
    echo "not tried: --plot (no gnuplot)"
fi

# A library that computes wrongly: the last byte of each sum on rank 1 is flipped.
if [ -n "${2:-}" ] && [ -f "$2" ]; then
    export LD_PRELOAD=$2
    run_program perf -n 2 --workload smollm2-135m --chunk 8
    expect_code 1 "wrong elements of a workload"
    expect_line err ' wrong elements' "wrong elements of a workload"
    run_program perf -n 2 --op all_reduce -b 8 -e 64 -f 8 "${quick[@]}" --json "$folder/wrong.json"
    unset LD_PRELOAD
    expect_code 1 "wrong elements"
    expect_line out ' wrong elements \(FAILED\)' "wrong elements"
    check_json "$folder/wrong.json" 2 2 wrong
else
    echo "not tried: wrong elements (the library that makes them is not built here)"
fi

finish
