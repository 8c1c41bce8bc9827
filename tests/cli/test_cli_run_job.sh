#!/usr/bin/env bash
# What run gives its ranks: their place, the token, the port, the trace folder, the CPU.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

show='echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $SPARK_COMM_JOB_TOKEN"'
run_program run -n 3 -- bash -c "$show"
expect_code 0 "environment"
for rank in 0 1 2; do
    expect_line out "^\[$rank\] $rank 3 $rank 3 127\.0\.0\.1 [0-9]+ [0-9a-f]{64}\$" "environment of rank $rank"
done
[ "$(cut -d' ' -f6- "$folder/out" | sort -u | wc -l)" -eq 1 ] || fail "the ranks differ in port or token"
first=$(cut -d' ' -f8 "$folder/out" | head -n 1)
run_program run -n 1 -- bash -c "$show"
[ "$first" != "$(cut -d' ' -f8 "$folder/out")" ] || fail "two jobs have one token"

# What this process inherited must not give all ranks one place.
SPARK_COMM_RANK=5 SPARK_COMM_WORLD_SIZE=9 SPARK_COMM_MASTER_PORT=1 SPARK_COMM_MASTER_ADDR=x RANK=7 \
    TORCHELASTIC_USE_AGENT_STORE=True run_program run -n 1 -- bash -c \
    'echo "$RANK<${SPARK_COMM_RANK-}${SPARK_COMM_WORLD_SIZE-}${SPARK_COMM_MASTER_PORT-}${SPARK_COMM_MASTER_ADDR-}${TORCHELASTIC_USE_AGENT_STORE-}>"'
[ "$(cat "$folder/out")" = "[0] 0<>" ] || fail "inherited place: $(cat "$folder/out")"

# Several nodes: the second one's ranks, the token kept, the default port.
SPARK_COMM_JOB_TOKEN=shared-token run_program run -n 2 --nnodes 3 --node-rank 1 --master-addr 10.1.2.3 -- bash -c "$show"
expect_code 0 "second node"
expect_line out '^\[2\] 2 6 0 2 10\.1\.2\.3 29500 shared-token$' "first rank of the second node"
expect_line out '^\[3\] 3 6 1 2 10\.1\.2\.3 29500 shared-token$' "second rank of the second node"
run_program run -n 1 --master-port 12345 -- bash -c "$show"
expect_line out ' 12345 ' "--master-port"

# The token is in no argument list: of the launcher, its helper, the ranks.
cat >"$folder/look" <<'END'
printf '%s' "$SPARK_COMM_JOB_TOKEN" >"$1/token"
for file in /proc/[0-9]*/cmdline; do
    grep -aqFf "$1/token" "$file" 2>/dev/null && echo "seen in $file"
done
exit 0
END
run_program run -n 1 -- bash "$folder/look" "$folder"
expect_no_line out 'seen in' "token in an argument list"

# Its rank 0 can bind the port, nobody else can: not before it listens, not with a bind that asks
# for any port.
if command -v python3 >/dev/null; then
    cat >"$folder/port.py" <<'END'
import os, socket
port = int(os.environ["MASTER_PORT"])
def bind(reuse):
    s = socket.socket()
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    return s
try:
    bind(False)
    print("stranger bound it")
except OSError:
    pass
listener = bind(True)
listener.listen()
try:
    bind(True).listen()
    print("second listener")
except OSError:
    pass
client = socket.create_connection(("127.0.0.1", port), timeout=5)
listener.accept()
print("connected")
END
    run_program run -n 1 -- python3 "$folder/port.py"
    [ "$(cat "$folder/out")" = "[0] connected" ] || fail "port: $(cat "$folder/out" "$folder/err")"
else
    echo "not tried: the reserved port (no python3)"
fi

# A folder for traces, made with its parents and handed on as an absolute name.
cd "$folder" || exit 1
run_program run -n 1 --trace deep/er/traces -- bash -c 'echo "$SPARK_COMM_TRACE_DIR"'
expect_line out "^\[0\] $(cd "$folder/deep/er/traces" && pwd -P)\$" "--trace"
: >"$folder/plain"
run_program run -n 1 --trace "$folder/plain" -- true
expect_code 1 "--trace on a file"
expect_line err 'Not a directory' "--trace on a file"

# Binding: rank i on the i-th CPU that the launcher may use.
mapfile -t cpus < <(grep -i '^Cpus_allowed_list' /proc/self/status | awk '{ print $2 }' | tr ',' '\n' |
    awk -F- '{ for (c = $1; c <= ($2 == "" ? $1 : $2); c++) print c }')
ranks=$((${#cpus[@]} < 2 ? 1 : 2))
run_program run -n "$ranks" --bind core -- grep '^Cpus_allowed_list' /proc/self/status
for ((rank = 0; rank < ranks; rank++)); do
    expect_line out "^\[$rank\] Cpus_allowed_list:[[:space:]]+${cpus[rank]}\$" "--bind core, rank $rank"
done
run_program run -n $((${#cpus[@]} + 1)) --bind core -- true
expect_code 0 "--bind core, more ranks than CPUs"
expect_line err 'not binding' "--bind core, more ranks than CPUs"

finish
