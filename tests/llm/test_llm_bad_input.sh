#!/usr/bin/env bash
# What can't be run is named, and all ranks exit with 1 at once, also when only one of them can't.
source "$(dirname "${BASH_SOURCE[0]}")/llm_common.sh"
make_model q4_1 model
size=$(stat -c %s "$folder/model")

# refused PATTERN DESCRIPTION ARGUMENT...: on three ranks, each of which says so.
refused() {
    local pattern=$1 description=$2 begin=$(now_ms) ranks
    shift 2
    run_program run -n 3 -- "$llm" "$@"
    expect_code 1 "$description"
    ranks=$(grep -Ec "llm: .*$pattern" "$folder/err")
    [ "$ranks" = 3 ] || fail "$description: $ranks of 3 ranks say '$pattern'"
    [ $(($(now_ms) - begin)) -lt 10000 ] || fail "$description: took too long"
    expect_no_line err 'rank [0-9] was killed' "$description"
}

echo "no model" >"$folder/text"
: >"$folder/empty"
refused 'this is no GGUF file' "a text file" --model "$folder/text" --prompt hello
refused 'cannot be mapped, or is empty' "an empty file" --model "$folder/empty" --prompt hello
refused 'No such file' "no file" --model "$folder/missing" --prompt hello
for cut in 3 10 20 100 9000 12000 $((size / 2)) $((size - 64)); do
    head -c "$cut" "$folder/model" >"$folder/cut"
    refused '(cut off|no GGUF)' "cut off after $cut" --model "$folder/cut" --prompt hello
done
make_model q6_k other
refused 'tensor token_embd.weight is Q6_K .*F32, F16, Q8_0, Q4_0 and Q4_1' "an unsupported kind" \
    --model "$folder/other" --prompt hello
refused 'the prompt has 300 tokens, and the context has room for 256' "a long prompt" \
    --model "$folder/model" --raw --prompt "$(printf '7%.0s' {1..300})"
refused '--context 257 is more than' "a large context" --model "$folder/model" --prompt hello --context 257
refused 'the prompt is empty' "no prompt" --model "$folder/model" --raw --prompt ""

# Only one rank's file is bad: the others learn it from that rank.
cat >"$folder/one" <<EOF
#!/bin/sh
model=$folder/model
[ "\$RANK" = 1 ] && model=$folder/text
exec "$llm" --model "\$model" --prompt hello
EOF
chmod +x "$folder/one"
run_program run -n 3 -- "$folder/one"
expect_code 1 "one bad file"
expect_line err '\[1\] llm: .*text: this is no GGUF file' "one bad file"
expect_line err '\[[02]\] llm: rank 1 could not load' "one bad file"

# Two models that are both good.
make_model q4_0 other
sed -i "s|=$folder/text|=$folder/other|" "$folder/one"
run_program run -n 3 -- "$folder/one"
expect_code 1 "two models"
expect_line err 'ranks 0 and 1 have different models' "two models"

run_program run -n 1 -- "$llm" --prompt hello
expect_code 2 "no model"
run_program run -n 1 -- "$llm" --model x --prompt hello -n many
expect_code 2 "no number"
finish
