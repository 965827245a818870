#!/usr/bin/env python3
# requirements: tokenizers==0.23.3
"""Writes the ids that the Rust tokenizers library gives to seeded random strings.

    pip install tokenizers==0.23.3
    python scripts/tokenizer_fuzz.py OUT TOKENIZER.json... [--variants BASE.json] [--count 3000] [--seed 1] [--text FILE...]
    LUTQ_TOKENIZER_VECTORS=$PWD/OUT go test ./calib/tokenizer -run TestFuzzVectors -v

OUT receives one vector file per tokenizer, and the tokenizer.json beside it for the variants.
--variants derives tokenizers with other split patterns, pre-tokenizers, normalizers and added
tokens from BASE, which must be a byte-level BPE; their vocabulary stays, so that most of what
they meet is spelled in short tokens: it is the splitting that they test.
--text adds the ids of whole files. --speed prints how long the library took for them.
Nothing outside OUT is written.
"""

import argparse
import copy
import json
import os
import random
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402

WORDS = """the The THE a of and to in is was it for on with as I he his at by had this not are
token Tokenizer unbelievably counter-revolutionary antidisestablishmentarianism Zürich naïve
don't can't I'll you've he's THEY'RE we'd I'm it'S 'tis rock'n'roll o'clock DON'T 'LL 'Re
def return class import self.x += 0x1F lambda: for(int i=0;i<n;++i){} #include <stdio.h>
http://example.com/a?b=c&d=%20 user@example.org C:\\dir\\file.txt /usr/bin/env -- == != <= >= -> => :: ... !!! ???
1 12 123 1234 12345 3.14159 1,000,000 2024-01-31 10:30 ½ ¾ ² ³ ① Ⅳ ٣ ४२ 〇 １２３ 𝟙𝟚
""".split()
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", " \n \n", "\t\t", "\v", "\f",
          "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "\u200b", "\ufeff", "\u180e"]
SCRIPTS = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA1, 0x17F), (0x391, 0x3C9), (0x400, 0x45F), (0x5D0, 0x5EA),
           (0x620, 0x64A), (0x905, 0x939), (0xE01, 0xE30), (0x10A0, 0x10FF), (0x1100, 0x1112), (0x1E00, 0x1EFF),
           (0x2010, 0x2027), (0x2070, 0x2079), (0x20A0, 0x20BF), (0x2100, 0x214F), (0x2160, 0x2188), (0x2190, 0x21FF),
           (0x2460, 0x24FF), (0x2581, 0x2583), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
           (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x1D400, 0x1D454), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x20000, 0x2A6D6)]
MARKS = ["\u0300", "\u0301", "\u0308", "\u0323", "\u0327", "\u0345", "\u05b0", "\u064b", "\u093e", "\u094d", "\u0e31",
         "\u200d", "\ufe0f", "\u20e3", "\u3099", "\U0001f3fd", "\u1161", "\u11a8"]
ODD = ["\u017f", "'\u017f", "'S", "'ſt", "ﬁ", "ﬆ", "ß", "ẞ", "İ", "ı", "ŉ", "K", "Å", "Ǆ", "ǅ", "\u0000", "\u0001", "\u007f", "\ufffd",
       "▁", "▁▁", "Ġ", "Ċ", "é", "e\u0301", "가", "각", "👨‍👩‍👧", "🇩🇪", "❤️", "<0x0A>", "<0x41>", "\U0010ffff", "\ue000"]


def random_text(rng, specials):
    """A string of up to about 200 characters, of one of several kinds or a mixture."""
    def one():
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(WORDS)
        if kind < 0.60:
            return rng.choice(SPACES[:12] if rng.random() < 0.8 else SPACES) * rng.choice([1, 1, 1, 2, 3, 9])
        if kind < 0.72:
            low, high = rng.choice(SCRIPTS)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
        if kind < 0.78:
            return rng.choice(MARKS) * rng.choice([1, 1, 1, 2, 3])
        if kind < 0.84:
            return rng.choice(ODD)
        if kind < 0.90:
            return rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") * rng.choice([1, 1, 2, 3, 8])
        if kind < 0.95:
            return str(rng.randint(0, 10 ** rng.randint(1, 12)))
        if specials:
            s = rng.choice(specials)
            cut = rng.random()
            if cut < 0.15:
                return s[:rng.randint(1, len(s))]
            if cut < 0.25:
                return s.upper()
            return s
        return ""

    sep = rng.choice(["", "", " ", " ", "\n"])
    return sep.join(one() for _ in range(rng.randint(0, 25)))


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def variants(base):
    """Yields (name, tokenizer.json as a dictionary) for many settings."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

    def split(regex, **kw):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **kw}

    def literal(s, behavior, invert=False):
        return {"type": "Split", "pattern": {"String": s}, "behavior": behavior, "invert": invert}

    def sequence(*steps):
        return {"type": "Sequence", "pretokenizers": list(steps)}

    def make(**changes):
        t = copy.deepcopy(base)
        t["normalizer"], t["decoder"] = None, decoder
        model = changes.pop("model", {})
        t.update(changes)
        t["model"].update(model)
        return t

    whole = dict(byte_level, use_regex=True)
    yield "llama3", make(pre_tokenizer=sequence(split(LLAMA3), byte_level))
    yield "llama3-removed", make(pre_tokenizer=sequence(split(LLAMA3, behavior="Removed", invert=True), byte_level))
    yield "qwen", make(pre_tokenizer=sequence(split(LLAMA3.replace("{1,3}", "")), byte_level), normalizer={"type": "NFC"})
    yield "gpt2", make(pre_tokenizer=whole)
    yield "gpt2-split", make(pre_tokenizer=sequence(split(GPT2), byte_level))
    yield "gpt2-prefix", make(pre_tokenizer=dict(whole, add_prefix_space=True))
    yield "prefix-only", make(pre_tokenizer=dict(byte_level, add_prefix_space=True))
    for each in (True, False):
        digits = {"type": "Digits", "individual_digits": each}
        yield f"digits-{each}", make(pre_tokenizer=sequence(digits, whole))
    yield "ignore-merges", make(pre_tokenizer=whole, model={"ignore_merges": True})
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form.lower(), make(pre_tokenizer=whole, normalizer={"type": form})
    steps = [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "a"},
             {"type": "Replace", "pattern": {"String": "  "}, "content": "\t"}]
    yield "steps", make(pre_tokenizer=whole, normalizer={"type": "Sequence", "normalizers": steps})
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield f"split-{behavior}-{invert}", make(pre_tokenizer=sequence(literal("  ", behavior, invert), byte_level))

    def token(i, content, **kw):
        return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": False, **kw}

    known = dict(base["model"]["vocab"])
    flags = {"<left>": {"lstrip": True}, "<right>": {"rstrip": True, "special": True}, "the": {"single_word": True},
             "<both>": {"lstrip": True, "rstrip": True}, "<|begin": {"special": True}, "the The": {"normalized": True},
             "Token": {"normalized": True, "single_word": True}, "TOKEN": {"normalized": True, "special": True},
             "   ": {"normalized": True}, "é": {"normalized": True}, "\n\n": {}}
    extra = [token(known.setdefault(content, len(known)), content, **kw) for content, kw in flags.items()]
    added = base["added_tokens"] + extra
    template = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "<y>", "type_id": 0}}], "pair": [],
         "special_tokens": {"<x>": {"id": "<x>", "ids": [0], "tokens": ["<x>"]}, "<y>": {"id": "<y>", "ids": [1, 1], "tokens": ["<y>", "<y>"]}}}]}
    template["processors"][1]["pair"] = template["processors"][1]["single"] + [{"Sequence": {"id": "B", "type_id": 1}}]
    yield "added", make(pre_tokenizer=whole, added_tokens=added, post_processor=template)
    yield "added-lower", make(pre_tokenizer=whole, added_tokens=added, normalizer={"type": "Lowercase"})
    yield "added-nfd", make(pre_tokenizer=whole, added_tokens=added, normalizer={"type": "NFD"})

    # SentencePiece style: the same merges, spelled as text.
    def spell(s):
        return s.replace("Ġ", "▁")

    vocab, merges = {}, []
    for s, i in base["model"]["vocab"].items():
        if s in [t["content"] for t in base["added_tokens"]] or all(c in "Ġ" or c.isascii() and c.isprintable() for c in s):
            vocab[spell(s)] = len(vocab)
    for m in base["model"]["merges"]:
        a, b = m if isinstance(m, list) else m.split(" ")
        a, b = spell(a), spell(b)
        if a in vocab and b in vocab and a + b in vocab:
            merges.append(f"{a} {b}")
    for s in ("é", "日", "本", "\n"):
        vocab.setdefault(s, len(vocab))
    unknown = base["added_tokens"][0]["content"]
    bytes_ = {f"<0x{i:02X}>": len(vocab) + i for i in range(256)}
    names = {t["content"]: vocab[t["content"]] for t in base["added_tokens"]}
    tokens = [dict(t, id=names[t["content"]]) for t in base["added_tokens"]]

    def sp(scheme=None, split_=True, fallback=True, unk=unknown, fuse=True, normalized=False, norm=None, steps=(), **model):
        meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split_}
        legacy = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                  {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        full = vocab | bytes_ if fallback is True else vocab | {k: v for k, v in bytes_.items() if fallback and k < "<0xD0>"}
        return make(normalizer=norm, pre_tokenizer=sequence(*steps, meta) if scheme else None, post_processor=None,
                    decoder=meta if scheme else {"type": "Sequence", "decoders": legacy},
                    added_tokens=[dict(t, normalized=normalized) for t in tokens],
                    model={"vocab": full, "merges": merges, "byte_fallback": bool(fallback), "unk_token": unk, "fuse_unk": fuse, **model})

    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield f"metaspace-{scheme}-{cut}", sp(scheme, cut)
    yield "metaspace-first-normalized", sp("first", normalized=True, norm={"type": "NFKC"})
    yield "metaspace-first-digits", sp("first", steps=[{"type": "Digits", "individual_digits": True}])
    yield "metaspace-first-replace", sp("first", norm=replace, normalized=True)
    yield "sp", sp(norm=prepend)
    yield "sp-normalized", sp(norm=prepend, normalized=True)
    yield "sp-ignore-merges", sp(norm=prepend, ignore_merges=True)
    yield "sp-unk", sp(norm=prepend, fallback=False)
    yield "sp-unk-apart", sp(norm=prepend, fallback=False, fuse=False)
    yield "sp-unk-dropped", sp(norm=prepend, fallback=False, unk=None)
    yield "sp-some-bytes", sp(norm=prepend, fallback="some")
    yield "sp-some-bytes-apart", sp(norm=prepend, fallback="some", fuse=False)
    gemma = sp(norm=replace)
    gemma["pre_tokenizer"] = literal(" ", "MergedWithPrevious")
    yield "gemma", gemma
    bare = sp(norm=prepend)
    bare["decoder"] = None
    yield "no-decoder", bare


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("tokenizer", nargs="*")
    p.add_argument("--variants", metavar="BASE")
    p.add_argument("--count", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--text", action="append", default=[])
    p.add_argument("--speed", action="store_true")
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)

    jobs = []
    for path in args.tokenizer:
        path = os.path.abspath(path)
        name = os.path.basename(path).removesuffix(".json")
        if name == "tokenizer":
            name = os.path.basename(os.path.dirname(path))
        jobs.append((name, path))
    if args.variants:
        with open(args.variants, encoding="utf-8") as f:
            base = json.load(f)
        for name, t in variants(base):
            path = os.path.join(args.out, f"variant-{name}.tokenizer.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(t, f, ensure_ascii=False)
            jobs.append((f"variant-{name}", path))

    for name, path in jobs:
        t = tokenizers.Tokenizer.from_file(path)
        specials = [a.content for a in t.get_added_tokens_decoder().values()]
        rng = random.Random(f"{args.seed} {name}")
        cases = []
        for _ in range(args.count):
            text = random_text(rng, specials)
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "special": t.encode(text, add_special_tokens=True).ids,
                          "decoded": t.decode(ids, skip_special_tokens=False)})
        for file in args.text:
            with open(file, encoding="utf-8", newline="") as f:
                text = f.read()
            start = time.perf_counter()
            ids = t.encode(text, add_special_tokens=False).ids
            seconds = time.perf_counter() - start
            cases.append({"file": os.path.abspath(file), "ids": ids})
            if args.speed:
                print(f"{name}: {os.path.basename(file)}: {len(ids)} ids, {len(text.encode()) / seconds / 1e6:.2f} MB/s", file=sys.stderr)
        vectors = {"library": f"tokenizers {tokenizers.__version__}",
                   "tokenizer": os.path.relpath(path, args.out) if args.variants and path.startswith(args.out) else path,
                   "vocab_size": t.get_vocab_size(), "cases": cases}
        with open(os.path.join(args.out, f"{name}.vectors.json"), "w", encoding="utf-8") as f:
            json.dump(vectors, f, ensure_ascii=True)


if __name__ == "__main__":
    main()
