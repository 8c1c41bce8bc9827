#!/usr/bin/env bash
# doctor shows settings and backends, tells good from bad by its exit code, and keeps secrets.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

run_program doctor
expect_code 0 "no settings at all"
expect_line out '^\* single +host +yes' "one rank takes single"
for title in kernel 'CPUs allowed' 'open files' 'locked bytes' gnuplot; do
    expect_line out "^  $title " "$title"
done
expect_line out '^  op_timeout_ms +30000 +default' "a default"

SPARK_COMM_OP_TIMEOUT_MS=1234 run_program doctor
expect_line out '^  op_timeout_ms +1234 +SPARK_COMM_OP_TIMEOUT_MS' "a setting from the environment"
run_program doctor --backend single
expect_code 0 "--backend single"
expect_line out '^  backend +single +option' "--backend shows as an option"

run_program doctor --backend no_such_backend
expect_code 1 "a backend that is not there"
expect_line out '^\* no_such_backend +unknown +no: .' "a backend that is not there"
SPARK_COMM_OP_TIMEOUT_MS=soon run_program doctor
expect_code 1 "a setting that is refused"
expect_line out '^    .soon. is refused: must be .*; set SPARK_COMM_OP_TIMEOUT_MS$' "a setting that is refused"
SPARK_COMM_CUDA_LIBRARY=libno_such_thing.so.1 run_program doctor --backend nccl
expect_no_line out '(libno_such_thing.so.1: ){2}' "a library's name is told once"

SPARK_COMM_JOB_TOKEN=very-secret-words run_program doctor
expect_code 0 "with a token"
expect_line out '^  job_token +set ' "with a token"
cat "$folder/err" >>"$folder/out"
expect_no_line out 'very-secret' "the token in the text"
SPARK_COMM_JOB_TOKEN=very-secret-words run_program doctor --json
expect_no_line out 'very-secret' "the token in the JSON"

run_program run -n 2 -- "$program" doctor
expect_code 0 "under run"
expect_line out '^\[1\]   rank +1 +RANK' "under run: the rank's own place"
if (ulimit -l 64) 2>/dev/null; then
    run_program run -n 1 -- bash -c "ulimit -l 64; exec '$program' doctor"
    expect_line out '^\[0\]   locked bytes +65536, can be raised to 65536$' "under run, a limit of its own"
fi

if command -v python3 >/dev/null; then
    for arguments in "" "--backend no_such_backend"; do
        # shellcheck disable=SC2086
        run_program doctor --json $arguments
        python3 - "$folder/out" "$code" <<'END' || fail "--json $arguments"
import json, sys
data = json.load(open(sys.argv[1]))
assert data["good"] == (sys.argv[2] == "0")
assert data["version"] and data["kernel"] and data["cpus"]
assert {"name", "variable", "value", "source", "range", "help", "problem"} <= set(data["settings"][0])
assert {"name", "memory", "can_serve", "wanted", "reason"} <= set(data["backends"][0])
END
    done
else
    echo "not tried: the JSON form (no python3)"
fi

finish
