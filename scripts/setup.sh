#!/usr/bin/env bash
# Installs what spark_comm needs to be built and tested, and says what it does.
#
#   scripts/setup.sh [--dry-run] [build|test|check]
#
#   build   what `make` and `make run` need
#   test    the above, and what `make test` needs (the default)
#   check   the above, and what `make check` needs: clang, analysers, the aarch64 cross tools
#
# Nothing is installed, and no package list is fetched, when nothing is missing. Each need is
# probed by what it is for (a tool that runs, a library that pkg-config finds), so things that did
# not come from apt count as well. SPARK_COMM_NO_INSTALL=1 only reports what is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sysroot=${SPARK_COMM_AARCH64_SYSROOT:-$root/build/aarch64-sysroot}
level="test"
dry_run=${SPARK_COMM_NO_INSTALL:-0}
lock_wait=(-o DPkg::Lock::Timeout=120)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

for argument in "$@"; do
    case $argument in
    build | test | check) level=$argument ;;
    --dry-run) dry_run=1 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument '$argument'; use: scripts/setup.sh [--dry-run] [build|test|check]" ;;
    esac
done

# --- what is needed ------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }
have_library() { have pkg-config && pkg-config --exists "$1" 2>/dev/null; }
have_compiler() { have gcc && have g++ && have make && echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1; }
have_cmake() { have cmake && have ctest; }
have_qemu() { have qemu-aarch64 || have qemu-aarch64-static; }
have_cross() { have aarch64-linux-gnu-gcc && [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ]; }
have_static_cross() { [ -e /usr/aarch64-linux-gnu/include/stdio.h ]; }

# clang alone may come without the sanitizer and fuzzer archives: its answer is a path that exists
# only when they are there.
have_clang_runtime() {
    have clang || return 1
    local archive
    archive=$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)
    [ -f "$archive" ] || [ -f "$(clang --print-runtime-dir 2>/dev/null)/libclang_rt.fuzzer-$(uname -m).a" ] ||
        [ -f "$(clang --print-runtime-dir 2>/dev/null)/libclang_rt.fuzzer.a" ]
}

missing=() # packages by their Debian names
reasons=() # why, in the same order

# need PACKAGE REASON PROBE...
need() {
    local package=$1 reason=$2
    shift 2
    "$@" && return 0
    missing+=("$package")
    reasons+=("$reason")
}

need_for_build() {
    need build-essential "the C compiler, make and the C library's headers" have_compiler
    need cmake "configures the build and runs the tests" have_cmake
    need pkg-config "finds the libraries below" have pkg-config
    need libsodium-dev "authentication between ranks" have_library libsodium
    need libjansson-dev "the program's JSON output" have_library jansson
}

need_for_test() {
    need libcmocka-dev "the test framework" have_library cmocka
}

need_for_check() {
    need clang "second compiler, and the fuzzing engine" have clang
    need clang-tidy "static analysis" have clang-tidy
    need cppcheck "static analysis" have cppcheck
    need spin "checks the models of the lock-free protocols" have spin
    need iproute2 "network namespaces for the fault tests" have ip
    if [ "$(uname -m)" = x86_64 ]; then
        need gcc-aarch64-linux-gnu "builds for aarch64" have_cross
        need libc6-dev-arm64-cross "the C library for aarch64" have_static_cross
        need qemu-user "runs the aarch64 tests" have_qemu
    fi
}

# --- installing ----------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "installing needs root and sudo is not there; run as root: $*"
    fi
}

lists_are_fresh=0
fetch_lists() {
    [ "$lists_are_fresh" -eq 0 ] || return 0
    say "fetching the package lists: apt-get update"
    # apt waits for dpkg's lock by itself, but not for that of the lists.
    local deadline=$((SECONDS + 120))
    until as_root apt-get "${lock_wait[@]}" -qq update 2>"$log"; do
        if ! grep -q 'Could not get lock' "$log" || [ "$SECONDS" -ge "$deadline" ]; then
            cat "$log" >&2
            die "apt-get update failed (above)"
        fi
        say "another apt is running; waiting for it"
        sleep 5
    done
    lists_are_fresh=1
}

install_missing() {
    [ "${#missing[@]}" -gt 0 ] || return 0
    say "missing on this machine:"
    local index
    for index in "${!missing[@]}"; do
        printf '  %-24s %s\n' "${missing[index]}" "${reasons[index]}"
    done
    if [ "$dry_run" != 0 ]; then
        say "nothing installed (asked only to look)"
        exit 1
    fi
    have apt-get || die "this system has no apt-get: install the above with its own package manager, then run this again (the names are Debian's)"
    fetch_lists
    say "installing: apt-get install ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "${lock_wait[@]}" -y -qq \
        -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
        { tail -n 40 "$log" >&2; die "apt-get install failed (above)"; }
    missing=()
    reasons=()
}

# The archives of sanitizers and libFuzzer are a package of their own from clang 14 on in Debian,
# named after clang's version; in Ubuntu 22.04 they are part of libclang-common-14-dev.
need_clang_runtime() {
    have_clang_runtime && return 0
    local major package
    major=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
    package=libclang-rt-$major-dev
    if have apt-cache; then
        fetch_lists
        apt-cache show "$package" >/dev/null 2>&1 || package=libclang-common-$major-dev
    fi
    need "$package" "libFuzzer and the sanitizers of clang" false
}

# --- the aarch64 libraries -----------------------------------------------------------------------

# The arm64 development packages are not installed but unpacked into a folder of their own: it asks
# for no root, adds no architecture to the machine's dpkg, and works where the two architectures'
# packages cannot be installed side by side. apt runs on state of its own under that folder.
private_apt() {
    apt-get -qq \
        -o Dir::State="$sysroot/apt" -o Dir::State::status="$sysroot/apt/status" \
        -o Dir::Cache="$sysroot/apt/cache" -o Dir::Etc::sourcelist="$1" -o Dir::Etc::sourceparts="$2" \
        -o APT::Architecture=arm64 -o APT::Architectures="arm64" -o APT::Sandbox::User="" \
        -o Acquire::Languages=none "${@:3}"
}

fill_sysroot() {
    [ "$(uname -m)" = x86_64 ] || return 0
    [ ! -e "$sysroot/complete" ] || return 0
    if [ "$dry_run" != 0 ]; then
        say "missing: the aarch64 libraries in $sysroot"
        exit 1
    fi
    have apt-get || { say "no apt-get: put arm64 libsodium, jansson and cmocka under $sysroot yourself for 'make check'"; return 0; }
    say "unpacking arm64 libsodium, jansson and cmocka into ${sysroot#"$root"/} (nothing is installed)"
    mkdir -p "$sysroot/apt/lists/partial" "$sysroot/apt/cache/archives/partial" "$sysroot/debs"
    : >"$sysroot/apt/status"

    # Debian serves every architecture from one address; Ubuntu keeps arm64 on another.
    local list=/etc/apt/sources.list parts=/etc/apt/sources.list.d codename
    if grep -qs '^ID=ubuntu' /etc/os-release; then
        # shellcheck source=/dev/null
        codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
        list=$sysroot/apt/sources.list parts=/dev/null
        printf 'deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://ports.ubuntu.com/ubuntu-ports %s main universe\n' \
            "$codename" "$codename-updates" >"$list"
    fi
    private_apt "$list" "$parts" update
    local names=() name
    for name in libsodium-dev libjansson-dev libcmocka-dev; do
        names+=("$name" "$(runtime_of "$list" "$parts" "$name")")
    done
    (cd "$sysroot/debs" && private_apt "$list" "$parts" download "${names[@]}")
    for name in "$sysroot"/debs/*.deb; do
        dpkg-deb -x "$name" "$sysroot"
    done
    rm -rf "$sysroot/apt" "$sysroot/debs"
    touch "$sysroot/complete"
}

# The library package that a -dev package depends on, such as libsodium23.
runtime_of() {
    apt-cache -o Dir::State="$sysroot/apt" -o Dir::State::status="$sysroot/apt/status" \
        -o Dir::Cache="$sysroot/apt/cache" -o Dir::Etc::sourcelist="$1" -o Dir::Etc::sourceparts="$2" \
        -o APT::Architecture=arm64 -o APT::Architectures="arm64" depends "$3" 2>/dev/null |
        awk -v stem="${3%-dev}" '$1 == "Depends:" && index($2, stem) == 1 { sub(/:.*/, "", $2); print $2; exit }'
}

# --- main ----------------------------------------------------------------------------------------

log=$(mktemp "${TMPDIR:-/tmp}/spark-comm-setup.XXXXXX")
trap 'rm -f "$log"' EXIT

need_for_build
[ "$level" = build ] || need_for_test
[ "$level" != check ] || need_for_check
install_missing
if [ "$level" = check ]; then
    need_clang_runtime
    install_missing
    fill_sysroot
fi
say "everything that '$level' needs is here"
