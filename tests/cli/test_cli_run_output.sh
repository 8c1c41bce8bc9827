#!/usr/bin/env bash
# run labels each line, keeps lines whole and the two streams apart, and delays nothing.
source "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

run_program run -n 2 -- bash -c 'echo "to out $RANK"; echo "to err $RANK" >&2'
expect_code 0 "two ranks that write"
[ "$(sort "$folder/out")" = $'[0] to out 0\n[1] to out 1' ] || fail "standard output: $(cat "$folder/out")"
[ "$(sort "$folder/err")" = $'[0] to err 0\n[1] to err 1' ] || fail "standard error: $(cat "$folder/err")"

# Lines longer than any pipe or buffer, from four ranks at once, into one pipe.
cat >"$folder/writer" <<'END'
text=$(head -c 200000 /dev/zero | tr '\0' "$RANK")
for i in 1 2 3 4 5; do
    printf '%s\n' "$text"
    printf 'e%s\n' "$text" >&2
done
END
timeout -k 5 60 "$program" run -n 4 -- bash "$folder/writer" 2>&1 </dev/null |
    awk '{
        rank = substr($0, 2, 1); text = substr($0, 5); sub(/^e/, "", text)
        if (substr($0, 1, 4) != "[" rank "] " || length(text) != 200000) bad++
        gsub(rank, "", text); if (text != "") bad++
        lines[rank]++
    }
    END { exit bad || lines[0] != 10 || lines[1] != 10 || lines[2] != 10 || lines[3] != 10 }'
[ "${PIPESTATUS[1]}" -eq 0 ] || fail "long lines of several ranks were broken or lost"

run_program run -n 1 -- printf 'no newline'
[ "$(cat "$folder/out")" = "[0] no newline" ] || fail "a last line without newline: $(cat "$folder/out")"
run_program run -n 1 -- printf 'a\n\nb\n'
[ "$(cat "$folder/out")" = $'[0] a\n[0] \n[0] b' ] || fail "an empty line: $(cat "$folder/out")"

# A line is there while its rank still runs.
"$program" run -n 1 -- bash -c 'echo $$ >'"$folder"'/pid.0; echo early; exec sleep 60' >"$folder/early" </dev/null &
launcher=$!
started+=("$launcher")
wait_until 10 grep -q '^\[0\] early$' "$folder/early" || fail "a line was held back"
kill -TERM "$launcher"
wait "$launcher"

# The last words of a rank that fails come before the message about it.
run_program run -n 2 -- bash -c '[ $RANK = 1 ] || exec sleep 60; echo "last words" >&2; exit 3'
[ "$(head -n 1 "$folder/err")" = "[1] last words" ] || fail "last words: $(cat "$folder/err")"

# Output of what a rank left in the background for a moment is not lost.
run_program run -n 1 -- bash -c 'exec > >(sleep 0.2; cat); echo through a helper'
expect_line out '^\[0\] through a helper$' "output through a process substitution"

# Standard input goes to rank 0, the others see its end.
printf 'hello\n' | timeout -k 5 60 "$program" run -n 2 -- cat >"$folder/out" 2>"$folder/err"
[ "$(cat "$folder/out")" = "[0] hello" ] || fail "standard input: $(cat "$folder/out")"

# Without labels a word is there before its line is whole.
"$program" run -n 1 --no-labels -- bash -c 'printf half; until [ -e "$0" ]; do sleep 0.05; done; echo " done"' \
    "$folder/go" >"$folder/out" 2>"$folder/err" </dev/null &
launcher=$!
started+=("$launcher")
is_half() { [ "$(cat "$folder/out")" = half ]; }
wait_until 10 is_half || fail "--no-labels: $(cat "$folder/out")"
touch "$folder/go"
wait "$launcher" || fail "--no-labels: exit code $?"
[ "$(cat "$folder/out")" = "half done" ] || fail "--no-labels: $(cat "$folder/out")"

# A reader that goes away ends the job like any program in a pipe.
timeout -k 5 60 "$program" run -n 2 -- yes 2>/dev/null </dev/null | head -n 1 >/dev/null
[ "${PIPESTATUS[0]}" -eq 141 ] || fail "a closed pipe: exit code is not 141"

# A reader that only stops must not keep a failing job alive.
mkfifo "$folder/fifo"
# shellcheck disable=SC2217 # it only holds the pipe open
sleep 60 <"$folder/fifo" &
reader=$!
started+=("$reader")
"$program" run -n 2 -- bash -c 'echo $$ >'"$folder"'/pid.$RANK; [ $RANK = 1 ] || exec yes; sleep 1; exit 5' \
    >"$folder/fifo" 2>/dev/null </dev/null &
launcher=$!
started+=("$launcher")
wait_until 10 has_files 'pid.*' 2 || fail "the ranks did not start"
wait_until 10 is_gone "$(cat "$folder/pid.0")" || fail "a reader that stopped keeps a rank alive"
kill -KILL "$reader"
wait "$launcher"
[ $? -eq 5 ] || fail "a reader that stopped: wrong exit code"

finish
