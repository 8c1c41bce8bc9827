/* The example engine's reader of model files, and its tokenizer on what it read. */
#include "../../examples/llm/llm.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "I'll say 42 t\xc3\xa9sts\xff  \n";
    struct llm_gguf file;
    struct llm_error error;
    struct llm_tokenizer *tokenizer = NULL;
    uint32_t *tokens = NULL;
    size_t count = 0;
    char bytes[16];

    if (!llm_gguf_parse(&file, data, size, &error)) return 0;
    if (llm_tokenizer_open(&tokenizer, &file, &error)) {
        llm_tokenizer_encode(tokenizer, (struct llm_text){text, sizeof text - 1}, &tokens, &count);
        for (size_t i = 0; i < count; i++)
            llm_tokenizer_decode(tokenizer, tokens[i], bytes, sizeof bytes);
    }
    free(tokens);
    llm_tokenizer_close(tokenizer);
    llm_gguf_free(&file);
    return 0;
}
