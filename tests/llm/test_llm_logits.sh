#!/usr/bin/env bash
# Logits of 1, 2 and 3 ranks against a run in which all sums and activations are doubles, for every kind
# of weights; the same bits on all ranks.
#
# The tolerance is that of this model: the run in doubles is off by about 1e-15, so what a run in floats
# differs from it by is its own rounding. Over these kinds that was at most 1.06e-4 of logits up to 7,
# whatever the number of ranks; four times as much is allowed.
source "$(dirname "${BASH_SOURCE[0]}")/llm_common.sh"
tolerance=4e-4

# check TYPE RANKS...: the prompt is as long as two chunks, and the steps after it are single tokens.
check() {
    local type=$1 prompt=${prompts[2]} ranks i
    shift
    make_model "$type" model
    llm=$examples/llm_double logits 1 double --model "$folder/model" --prompt "$prompt" -n 128
    for ranks in "$@"; do
        logits "$ranks" "$type.$ranks" --model "$folder/model" --prompt "$prompt" -n 128
        compare 512 "$tolerance" double.0 "$type.$ranks.0"
        for ((i = 1; i < ranks; i++)); do compare 512 0 "$type.$ranks.0" "$type.$ranks.$i"; done
    done
}

check q4_1 1 2 3
check f32 1 3
check f16 2
check q8_0 2
check q4_0 2

# Ranks without heads of their own, and doubles over three ranks: what the split itself adds is nothing.
make_model q4_1 model
llm=$examples/llm_double logits 1 double --model "$folder/model" --prompt "${prompts[1]}" -n 32
llm=$examples/llm_double logits 3 double3 --model "$folder/model" --prompt "${prompts[1]}" -n 32
compare 512 1e-12 double.0 double3.0
logits 5 five --model "$folder/model" --prompt "${prompts[1]}" -n 32
compare 512 "$tolerance" double.0 five.0 five.4

count=0
# Sampling: a seed gives one text, another seed another.
for seed in 1 1 2; do
    run_program run -n 2 --no-labels -- "$llm" --model "$folder/model" --prompt hello -n 40 \
        --ignore-end --temperature 1 --seed "$seed"
    expect_code 0 "seed $seed"
    mv "$folder/out" "$folder/sampled.$seed.$((++count))"
done
cmp -s "$folder/sampled.1.1" "$folder/sampled.1.2" || fail "the same seed gave another text"
cmp -s "$folder/sampled.1.1" "$folder/sampled.2.3" && fail "another seed gave the same text"
finish
