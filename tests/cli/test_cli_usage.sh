#!/usr/bin/env bash
# Wrong usage ends with 2 and says what to do; help and version end with 0.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

# refuse PATTERN ARGUMENT...
refuse() {
    local pattern=$1
    shift
    run_program "$@"
    expect_code 2 "spark-comm $*"
    expect_line err "$pattern" "spark-comm $*"
    [ ! -s "$folder/out" ] || fail "spark-comm $*: wrote to standard output"
}

refuse "no command given"
refuse "no command 'bogus'" bogus
refuse "no command 'trace2'" trace2

refuse "how many ranks" run -- true
refuse "which program" run -n 2
refuse "1 to 4096, not '0'" run -n 0 -- true
refuse "not 'two'" run -n two -- true
refuse "not '2x'" run -n 2x -- true
refuse "not '99999999999999999999'" run -n 99999999999999999999 -- true
refuse "unrecognized option" run -n 2 --bogus -- true
refuse "'core' or 'none'" run -n 1 --bind socket -- true
refuse "1 to 65535" run -n 1 --master-port 65536 -- true
refuse "number from 0" run -n 1 --restart -1 -- true
refuse "--node-rank" run -n 1 --nnodes 2 -- true
refuse "only 2 node" run -n 1 --nnodes 2 --node-rank 2 -- true
refuse "--master-addr" run -n 1 --nnodes 2 --node-rank 0 -- true
refuse "SPARK_COMM_JOB_TOKEN" run -n 1 --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 -- true

refuse "no operation 'bogus'" perf --op all_reduce,bogus
refuse "no operation ''" perf --op all_reduce,
refuse "no element type" perf --dtype f33
refuse "sum, max, min or avg" perf --redop prod
refuse "takes a size" perf -b -1
refuse "takes a size" perf -b 0
refuse "takes a size" perf -e 8T
refuse "takes a size" perf -e 99999999999999999999G
refuse "more than -e" perf -b 1K -e 512
refuse "2 to" perf -f 1
refuse "'extra' is no option" perf extra
timeout_program=$(command -v timeout)
PATH=/nonexistent "$timeout_program" 60 "$program" perf --plot "$folder/x.svg" >"$folder/out" 2>"$folder/err"
code=$?
expect_code 2 "perf --plot without gnuplot"
expect_line err "needs gnuplot" "perf --plot without gnuplot"

refuse "'extra' is no option" doctor extra
refuse "unrecognized option" doctor --bogus

refuse "which files or folders" trace
refuse "number from 0" trace --rows -1 x
refuse "unrecognized option" trace --bogus x

for arguments in --help -h help --version -V "run --help" "run -h" "perf --help" "perf -h" \
    "doctor --help" "trace --help" "trace -h" "run --version"; do
    # shellcheck disable=SC2086 # words on purpose
    run_program $arguments
    expect_code 0 "spark-comm $arguments"
    [ -s "$folder/out" ] || fail "spark-comm $arguments: says nothing"
    [ ! -s "$folder/err" ] || fail "spark-comm $arguments: wrote to standard error"
done
run_program --version
expect_line out '^spark-comm [0-9]+\.[0-9]+\.[0-9]+$' "--version"

"$program" --help >/dev/full 2>"$folder/err"
code=$?
expect_code 1 "--help on a full disk"

finish
