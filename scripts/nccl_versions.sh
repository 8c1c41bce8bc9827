#!/usr/bin/env bash
# Opens the NCCL of several versions, from the oldest that is accepted to the newest, and says what each
# offers: nccl_versions.sh [BUILD [FOLDER]]. Downloads the pip packages (about 1 GB) into FOLDER, a
# temporary one unless it is named; no GPU is needed. Writes a table in Markdown to standard output.
# PACKAGES in the environment names others.
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$source_dir/build}
folder=${2:-}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
packages=${PACKAGES:-nvidia-nccl-cu12==2.19.3 nvidia-nccl-cu12==2.22.3 nvidia-nccl-cu12==2.26.2
    nvidia-nccl-cu13==2.28.9 nvidia-nccl-cu13}

cmake --build "$build" --target gpu_nccl_offers >/dev/null
echo "| package | version | optional functions | unique id without a GPU | warning on x86-64 |"
echo "|---|---|---|---|---|"
failed=0
for package in $packages; do
    place=$folder/${package//=/_}
    if [ ! -e "$place/done" ]; then
        mkdir -p "$place"
        python3 -m pip download -q --no-deps --only-binary :all: -d "$place" "$package" >&2
        (cd "$place" && python3 -m zipfile -e ./*.whl . && rm -f ./*.whl && touch done)
    fi
    file=$(find "$place" -name 'libnccl.so.2' | head -1)
    "$build/tests/gpu/gpu_nccl_offers" "$package" "$file" || failed=1
done
exit "$failed"
