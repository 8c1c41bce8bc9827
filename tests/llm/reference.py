#!/usr/bin/env python3
"""Writes what llama.cpp says about the real model: tokens of some texts, and the log-probabilities of
the likeliest tokens along greedy generation. tests/llm/reference.sh runs it; it needs the packages
xllamacpp (llama.cpp in a wheel), gguf and numpy.

llama.cpp rounds activations to 8 bits before it multiplies them with 4-bit weights, which moves a logit by
a tenth. So it gets the same weights widened to F32 (by the gguf package), and then computes in F32.

    reference.py MODEL OUT
"""
import json
import os
import struct
import sys
import tempfile
import urllib.request

import gguf
import numpy
import xllamacpp

STEPS, CANDIDATES = 16, 24
TEXTS = [
    "What is the capital of France?",
    "Write 3 lines about the year 1848, don't use commas.",
    "def add(a, b):  # Straße, naïve, 東京",
    "  leading and trailing  ",
    "a\n\n\tb  c\r\n d",
    "I'll say we've won; she's 'quoted' it's 'S",
    "3.14159 x10 10x 1,000,000",
    "naïve café — “quoted” … €5 🙂🙂",
    "Привет, мир! 你好世界 مرحبا",
    "<|im_start|> is only text here",
    "!!!??? ... --- ___ a_b-c/d\\e",
]


def widen(source, target):
    """The same file with every tensor in F32."""
    reader = gguf.GGUFReader(source)
    first = min(t.field.offset for t in reader.tensors)
    with open(source, "rb") as file, open(target, "wb") as out:
        out.write(file.read(first))
        offset = 0
        for t in reader.tensors:
            name = t.name.encode()
            out.write(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(t.shape)))
            out.write(struct.pack(f"<{len(t.shape)}Q", *t.shape) + struct.pack("<IQ", 0, offset))
            offset += int(t.n_elements) * 4  # a multiple of the alignment for these shapes
        out.write(b"\0" * (-out.tell() % 32))
        for t in reader.tensors:
            out.write(gguf.quants.dequantize(t.data, t.tensor_type).astype(numpy.float32).tobytes())


class Llama:
    def __init__(self, path):
        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_parallel, p.n_gpu_layers, p.cpuparams.n_threads, p.warmup = 512, 1, 0, 2, False
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(p)

    def post(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)

    def tokens(self, text):
        return self.post("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]

    def generate(self, tokens):
        """A list of (chosen, [(token, log-probability), ...])."""
        result = self.post("/completion", {
            "prompt": tokens, "n_predict": STEPS, "n_probs": CANDIDATES, "temperature": 0, "top_k": 1,
            "post_sampling_probs": False, "cache_prompt": False, "ignore_eos": False, "return_tokens": True})
        return [(step["id"], [(c["id"], c["logprob"]) for c in step["top_logprobs"]])
                for step in result["completion_probabilities"]]


def main():
    model, target = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, open(target, "w", encoding="ascii") as out:
        wide = os.path.join(folder, "wide.gguf")
        widen(model, wide)
        llama = Llama(wide)
        out.write(f"# tests/llm/reference.py with xllamacpp {xllamacpp.__version__}; texts are in hexadecimal\n")
        for text in TEXTS:
            out.write(f"text {text.encode().hex()}\n")
            out.write("tokens " + " ".join(map(str, llama.tokens(text))) + "\n")
        for text in TEXTS[:3]:
            prompt = [1] + llama.tokens("user\n" + text) + [2] + llama.tokens("\n") + [1]
            prompt += llama.tokens("assistant\n")
            out.write("prompt " + " ".join(map(str, prompt)) + "\n")
            for chosen, candidates in llama.generate(prompt):
                out.write(f"step {chosen} " + " ".join(f"{t}:{p:.7g}" for t, p in candidates) + "\n")
        del llama
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the server's own threads may still run
