#!/usr/bin/env bash
# What the tests of the example engine share, on top of those of the program. Sourced with the
# program's path as the first argument.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/cli_common.sh"
examples=$(dirname "$program")/examples
llm=$examples/llm
export SPARK_COMM_RENDEZVOUS_TIMEOUT_MS=20000

# Some text in which words, digits, contractions and other scripts meet.
prompts=(
    "What is the capital of France?"
    "Write 3 lines about the year 1848, don't use commas."
    "def add(a, b):  # Straße, naïve, 東京"
)

# make_model TYPE FILE
make_model() {
    "$examples/llm_random_model" --shape tiny --type "$1" --seed 7 "$folder/$2" || fail "no model of $1"
}

# logits RANKS NAME ARGUMENT...: runs the engine; the logits are in $folder/NAME.RANK.
logits() {
    local ranks=$1 name=$2
    shift 2
    run_program run -n "$ranks" --no-labels -- "$llm" --ignore-end --logits "$folder/$name" "$@"
    expect_code 0 "$name"
}

# compare VOCABULARY TOLERANCE REFERENCE NAME...: files in $folder.
compare() {
    local vocabulary=$1 tolerance=$2 reference=$3
    shift 3
    "$examples/llm_compare_logits" "$vocabulary" "$tolerance" "$folder/$reference" "${@/#/$folder/}" ||
        fail "$* and $reference differ"
}
