# Shared by the checks: arguments, reporting, and the list of public functions.
# shellcheck shell=bash
set -euo pipefail

checks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_dir=$(cd "${1:-$checks/../..}" && pwd)
build_dir=${2:-$source_dir/build}
findings=0

# complain TEXT...: one finding.
complain() {
    printf '%s\n' "$*"
    findings=$((findings + 1))
}

# skip REASON: this check cannot run here.
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# finish WHAT: ends the check.
finish() {
    if [ "$findings" -gt 0 ]; then
        printf '%s: %d findings\n' "$1" "$findings"
        exit 1
    fi
    printf '%s: good\n' "$1"
}

c_source() { awk -v mode="$1" -f "$checks/c_source.awk" "${@:2}"; }

# The functions that the public headers declare, one name per line, sorted.
declared_functions() {
    c_source code "$source_dir"/include/*.h | sed 's/^[^:]*:[0-9]*://' | grep -v '^ *#' | tr '\n' ' ' | tr ';{}' '\n\n\n' |
        sed -n 's/.*SPARK_COMM_API[^(]*[ *]\(spark_comm_[a-z0-9_]*\) *(.*/\1/p' | sort -u
}
