#!/usr/bin/env bash
# Installs what the comparison with other libraries needs, and says what it does: two MPI libraries
# side by side, gloo, and gnuplot for the plot. Debian's and Ubuntu's names. Nothing is installed
# when nothing is missing. SPARK_COMM_NO_INSTALL=1 only reports.
#
#   bench/setup.sh
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }
have_gloo() {
    echo '#include <gloo/context.h>' | g++ -std=c++17 -fsyntax-only -x c++ - 2>/dev/null
}

missing=()
need() {
    local package=$1
    shift
    "$@" || missing+=("$package")
}
need g++ have g++
need python3 have python3
need openmpi-bin have mpirun.openmpi
need libopenmpi-dev have mpicc.openmpi
need mpich have mpirun.mpich
need libmpich-dev have mpicc.mpich
need libgloo-dev have_gloo
need gnuplot-nox have gnuplot

if [ "${#missing[@]}" -eq 0 ]; then
    say "everything is here"
    exit 0
fi
say "missing: ${missing[*]}"
if [ "${SPARK_COMM_NO_INSTALL:-0}" != 0 ]; then
    say "nothing installed (asked only to look)"
    exit 1
fi
have apt-get || { say "no apt-get here: install the above yourself" >&2; exit 1; }

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    have sudo || { say "installing needs root, and sudo is not there" >&2; exit 1; }
    as_root=(sudo)
fi
wait_for_lock=(-o DPkg::Lock::Timeout=300)
say "apt-get update, then apt-get install ${missing[*]}"
"${as_root[@]}" apt-get "${wait_for_lock[@]}" -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${wait_for_lock[@]}" -y -qq \
    -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" >/dev/null
say "done"
