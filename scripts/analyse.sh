#!/usr/bin/env bash
# Static analysis of src/ and cli/: clang-tidy (.clang-tidy) and cppcheck. Any finding fails.
#
#   scripts/analyse.sh [JOBS]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
jobs=${1:-$(nproc)}
failed=0

# clang-tidy wants the compile commands of clang; cppcheck takes the same ones.
cmake --preset clang >/dev/null || exit 1
files=()
while IFS= read -r file; do
    grep -qF "\"$PWD/$file\"" build/clang/compile_commands.json && files+=("$file")
done < <(find src cli -name '*.c' | sort)
if [ "${#files[@]}" -eq 0 ]; then
    echo "analyse: no sources" >&2
    exit 1
fi

# One file per process: with several, the analyser takes every va_list after the first file for
# uninitialized.
log=build/clang-tidy.log
if printf '%s\n' "${files[@]}" | xargs -P "$jobs" -n 1 clang-tidy --quiet -p build/clang >"$log" 2>&1; then
    echo "clang-tidy: ${#files[@]} files, no findings"
else
    grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' "$log" | head -n 200
    echo "clang-tidy: $(grep -cE ': (error|warning): ' "$log") findings (all of them in $log)"
    failed=1
fi

# cppcheck does not know gcc's vector arithmetic: it cannot build its tree for dtype_vector.h.
log=build/cppcheck.log
if cppcheck --quiet -j "$jobs" --std=c11 --language=c --enable=warning,performance,portability \
    --inline-suppr --error-exitcode=1 --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --suppress=internalAstError:src/base/dtype_vector.h \
    --suppress=normalCheckLevelMaxBranches --suppress=checkersReport \
    -D_GNU_SOURCE -D__GNUC__ -DSPARK_COMM_BUILDING=1 -I include -I src \
    "${files[@]}" >"$log" 2>&1; then
    echo "cppcheck: ${#files[@]} files, no findings"
else
    head -n 100 "$log"
    echo "cppcheck: findings (all of them in $log)"
    failed=1
fi
exit "$failed"
