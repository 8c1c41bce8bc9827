#!/usr/bin/env bash
# What the tests of the program share. Sourced by each test, which gets the program's path as its
# first argument. Every run of the program is bounded; what a test starts is ended with it.
set -u
program=${1:-}
if [ ! -f "$program" ] || [ ! -x "$program" ]; then
    echo "skipped: no program at '$program' (it needs jansson to be built)"
    exit 77
fi
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")

folder=$(mktemp -d "${TMPDIR:-/tmp}/spark-comm-cli.XXXXXX")
started=()
failures=0

# Everything that is started from here carries this mark, so that a pid noted earlier and since gone
# to a stranger is left alone.
export SC_CLI_TEST_FOLDER=$folder

# Ranks note their pids in files pid.*; these make room for the next job's.
forget_pids() {
    cat "$folder"/pid.* >>"$folder/forgotten" 2>/dev/null
    rm -f "$folder"/pid.*
}

cleanup() {
    local pid
    forget_pids
    for pid in ${started[@]+"${started[@]}"} $(cat "$folder/forgotten"); do
        grep -aqF "SC_CLI_TEST_FOLDER=$folder" "/proc/$pid/environ" 2>/dev/null &&
            kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$folder"
}
trap cleanup EXIT

# A job of our own, whatever launcher this test itself runs under.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
for name in $(compgen -e | grep -E '^(SPARK_COMM_|OMPI_COMM_WORLD_|PMI_|SLURM_)'); do
    unset "$name"
done

fail() {
    printf 'FAIL: %s\n' "$*"
    failures=$((failures + 1))
}

# run_program ARGUMENT...: sets code; standard output and error are in $folder/out and $folder/err.
run_program() {
    timeout -k 5 60 "$program" "$@" >"$folder/out" 2>"$folder/err" </dev/null
    code=$?
}

# expect_code CODE DESCRIPTION: of the last run_program.
expect_code() {
    [ "$code" -eq "$1" ] && return
    fail "$2: exit code $code, expected $1"
    sed 's/^/    out: /' "$folder/out" | head -n 20
    sed 's/^/    err: /' "$folder/err" | head -n 20
}

# expect_line FILE PATTERN DESCRIPTION: a line of $folder/FILE matches.
expect_line() {
    grep -Eq -- "$2" "$folder/$1" && return
    fail "$3: no line of $1 matches '$2'"
    sed 's/^/    /' "$folder/$1" | head -n 20
}

expect_no_line() {
    grep -Eq -- "$2" "$folder/$1" || return 0
    fail "$3: a line of $1 matches '$2'"
    sed 's/^/    /' "$folder/$1" | head -n 20
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# wait_until SECONDS COMMAND...: true as soon as the command is.
wait_until() {
    local end=$(($(now_ms) + $1 * 1000))
    shift
    while ! "$@"; do
        [ "$(now_ms)" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# A zombie whose parent has not looked yet is dead.
is_gone() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    stat=${stat##*) }
    [ "${stat%% *}" = Z ]
}

all_gone() {
    local pid
    for pid in "$@"; do is_gone "$pid" || return 1; done
}

# children_of PID
children_of() {
    local file stat
    for file in /proc/[0-9]*/stat; do
        stat=$(cat "$file" 2>/dev/null) || continue
        stat=${stat##*) }
        stat=${stat#* }
        [ "${stat%% *}" != "$1" ] || basename "$(dirname "$file")"
    done
}

# has_files PATTERN COUNT
has_files() { [ "$(compgen -G "$folder/$1" | wc -l)" -ge "$2" ]; }

# The processes that noted their pids in pid.* files are gone.
noted_gone() {
    local pids
    mapfile -t pids < <(cat "$folder"/pid.*)
    all_gone "${pids[@]}"
}

finish() {
    [ "$failures" -eq 0 ] || { echo "$failures failure(s)"; exit 1; }
    echo "good"
    exit 0
}
