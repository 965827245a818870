#!/usr/bin/env python3
"""Writes what transformers makes of the chat templates beside calib/chat, for its tests.

    scripts/chat_templates.py calib/testdata/lutq-tiny calib/chat/testdata

The templates have the forms of SmolLM2's, Llama 3's, Qwen 2.5's and 3's and Gemma 2's to 4's, and everything.jinja has
what others use besides. Needs transformers and jinja2.
"""

import datetime
import json
import sys
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils


class Then(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 9, 15, 4, 5)


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [message("user", "Name three rivers.")],
    [message("system", " You are terse. "), message("user", "Hi <b>\"there\"</b> & 'you'\n")],
    [message("user", "\n Grüezi, 世界 👋 "), message("assistant", "<think>\nhm\n</think>\n\nHello!"), message("user", "Again?")],
    [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "</think>d")],
    [message("user", "first"), message("user", "second")],
    [message("tool", "{\"rain\": true}"), message("skip", "x"), message("user", "banana")],
    [message("system", "only")],
    [message("user", "a"), message("assistant", "<|channel>thought\nhm<channel|> b "), message("user", "c")],
]


def main():
    model, folder = sys.argv[1:]
    chat_template_utils.datetime = Then
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    golden = []
    for path in sorted(Path(folder).glob("*.jinja")):
        for conversation in CONVERSATIONS:
            for prompt in (True, False):
                case = {"template": path.name, "messages": conversation, "add_generation_prompt": prompt}
                try:
                    case["want"] = tokenizer.apply_chat_template(
                        conversation, chat_template=path.read_text(), tokenize=False, add_generation_prompt=prompt
                    )
                except Exception as e:
                    case["error"] = str(e)
                golden.append(case)
    out = {
        "transformers": transformers.__version__,
        "tokens": {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token},
        "now": Then.now().isoformat() + "Z",
        "cases": golden,
    }
    Path(folder, "golden.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
