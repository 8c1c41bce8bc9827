#!/usr/bin/env bash
# The Rust crate against the built library, which it finds through pkg-config as it would an installed
# one.
#
#   test_rust.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail
source_dir=$1
build_dir=$2

for program in cargo pkg-config; do
    command -v "$program" >/dev/null || { echo "skipped: no $program, so the Rust crate is not tried"; exit 77; }
done
if grep -q '^SPARK_COMM_SANITIZE:[A-Z]*=.' "$build_dir/CMakeCache.txt"; then
    echo "skipped: a library with sanitizers needs their runtime, which a Rust program does not start with"
    exit 77
fi
mkdir -p "$build_dir/rust"
printf 'Name: spark_comm\nDescription: as built\nVersion: 0.1.0\nLibs: -L%s -lspark_comm\n' "$build_dir" \
    >"$build_dir/rust/spark_comm.pc"
for name in $(compgen -e | grep -E '^(SPARK_COMM_|OMPI_COMM_WORLD_|PMI_|SLURM_)'); do unset "$name"; done
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export PKG_CONFIG_PATH=$build_dir/rust LD_LIBRARY_PATH=$build_dir CARGO_TARGET_DIR=$build_dir/rust/target
cargo test --offline --jobs 2 --manifest-path "$source_dir/bindings/rust/Cargo.toml"
echo "the Rust crate is good"
