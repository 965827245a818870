#!/usr/bin/env python3
"""Writes what transformers writes with a model, taking the most likely token, for the tests of calib/decode.

    scripts/greedy.py calib/testdata/lutq-tiny ../shared/models/lutq-11m .cache/smollm2 > calib/decode/testdata/greedy.json

256 tokens in float32 after each prompt, whatever ends a text, with the margin of the most likely token at each: where
it is small, rounding may decide. Needs torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

PROMPTS = ["Once upon a time", "The harbour was quiet", "“Who is there?” she", "1. "]
TOKENS = 256


def greedy(model, ids):
    """Returns the tokens, and how far the most likely one is ahead of the next."""
    tokens, margins, past, x = [], [], None, torch.tensor([ids])
    for _ in range(TOKENS):
        out = model(x, past_key_values=past, use_cache=True)
        past = out.past_key_values
        top = out.logits[0, -1].topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 6))
        x = top.indices[:1][None]
    return tokens, margins


def main():
    torch.set_num_threads(1)
    golden = []
    with torch.no_grad():
        for path in sys.argv[1:]:
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
            for prompt in PROMPTS:
                ids = tokenizer(prompt)["input_ids"]
                tokens, margins = greedy(model, ids)
                golden.append({
                    "model": Path(path).name, "prompt": prompt, "ids": ids, "tokens": tokens, "least_margin": min(margins),
                    "text": tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False),
                })
    text = json.dumps({"transformers": transformers.__version__, "cases": golden}, ensure_ascii=False, indent=1)
    print(text)


main()
