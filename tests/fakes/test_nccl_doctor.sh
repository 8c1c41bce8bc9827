#!/usr/bin/env bash
# doctor says which NCCL and which driver would be used, and what was tried when there is none; perf
# works on device memory.
set -u
build=$2
doctor=$build/spark-comm
fakes=$build/tests/fakes
fail() {
    echo "test_nccl_doctor: $1" >&2
    exit 1
}
[ -x "$doctor" ] || { echo "built without the program"; exit 77; }

export SPARK_COMM_CUDA_LIBRARY=$fakes/libfake_cuda.so SPARK_COMM_NCCL_LIBRARY=$fakes/libfake_nccl.so
said=$("$doctor" doctor --backend nccl) || fail "exit code $? with a good NCCL"
grep -q "nccl .*yes: NCCL 2.28.9 ($fakes/libfake_nccl.so), CUDA driver 13.0, 8 GPUs" <<<"$said" ||
    fail "no file and version in: $said"

said=$(SPARK_COMM_NCCL_LIBRARY=/nowhere/libnccl.so.2 "$doctor" doctor --backend nccl) &&
    fail "exit code 0 without an NCCL"
grep -q "/nowhere/libnccl.so.2: cannot open shared object file" <<<"$said" ||
    fail "not what was tried in: $said"

said=$(SPARK_COMM_NCCL_LIBRARY=$fakes/libfake_nccl_half.so "$doctor" doctor --backend nccl) &&
    fail "exit code 0 with half an NCCL"
grep -q "has no ncclAllGather" <<<"$said" || fail "not what is missing in: $said"

# Without a wish for it, it is listed, and nothing else changes.
"$doctor" doctor >/dev/null || fail "doctor alone fails"

table=$("$doctor" perf -n 2 --backend nccl --op all -b 8 -e 8K -f 32 --iters 3) || fail "perf: $table"
grep -q "backend nccl, 2 ranks, device memory" <<<"$table" || fail "perf is not on device memory: $table"
for row in "all_reduce 8192 .* nccl$" "broadcast 8192 .* nccl$" "broadcast 8 .* command lane$" "send_recv 8192 "; do
    grep -qE "$row" <<<"$(tr -s ' ' <<<"$table")" || fail "no row like '$row' in: $table"
done
grep -q ", 0 wrong elements," <<<"$table" || fail "wrong elements: $table"
