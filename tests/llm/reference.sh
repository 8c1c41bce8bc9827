#!/usr/bin/env bash
# Opt-in: asks llama.cpp (the package xllamacpp) about the real model anew, and compares with the
# engine; with --write also replaces the committed tests/llm/reference.txt.
#
#   tests/llm/reference.sh BUILD [--write]
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
model=$("$source_dir/scripts/fetch_model.sh")
venv=$(dirname "$model")/venv
if [ ! -d "$venv" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --only-binary :all: xllamacpp==2026.10.11549 gguf==0.19.0 numpy ||
        { rm -rf "$venv"; exit 1; }
fi
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
"$venv/bin/python" "$source_dir/tests/llm/reference.py" "$model" "$fresh"
SC_LLM_MODEL=$model "$build/tests/llm/test_llm_reference" - "$fresh"
[ "${2:-}" != --write ] || cp "$fresh" "$source_dir/tests/llm/reference.txt"
