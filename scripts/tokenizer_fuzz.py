#!/usr/bin/env python3
# requirements: tokenizers==0.23.3
"""Writes the ids that the Rust tokenizers library gives to fixed and to seeded random strings.

    pip install tokenizers==0.23.3
    python scripts/tokenizer_fuzz.py OUT TOKENIZER.json... [--variants BASE.json]... [--count 3000] [--seed 1] [--text FILE]...
    LUTQ_TOKENIZER_VECTORS=$PWD/OUT go test ./calib/tokenizer -run TestFuzzVectors -v

OUT receives NAME.vectors.json for each tokenizer, which is found again by its path relative to OUT.
--variants changes other settings of BASE (split patterns, pre-tokenizers, normalizers, added
tokens, fallbacks) and leaves its vocabulary, which must hold the ids 0 and 1.
--text adds the ids of a whole file and prints how fast the library found them, on one thread.
Nothing outside OUT is written. The vectors in calib/tokenizer/testdata were written by

    cd calib/tokenizer/testdata
    python ../../../scripts/tokenizer_fuzz.py . ../../testdata/lutq-tiny/tokenizer.json sp/tokenizer.json --count 240
    python ../../../scripts/tokenizer_fuzz.py . --variants bytelevel/tokenizer.json --variants sp/tokenizer.json --count 12 --no-fixed
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

FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "a", " a", "a ", "  a", "a  b", "a\nb", "\n\n  a", "a  \n  \n b",
    "Hello world", " Hello, world!", "Hello  world  ", "The quick brown fox jumps over the lazy dog.",
    "It's don't I'll you've we'RE THEY'D 'tis 's 't 'S ' 'x", "\u2019s it\u2019s", "'\u017fs", "x'\u017f'\u017f",
    "1 12 123 1234 12345 123456 1,234.56 0x7f 1e-9 \u00b2\u00b3 \u00bd \u2163 \u0663\u0664 \u4e00\u4e8c \uff11\uff12\uff13",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n", "for (int i = 0; i < n; ++i) { s += a[i]; }\r\n",
    "SELECT * FROM t WHERE a='b';", "<html><body>&nbsp;</body></html>", '{"k": [1, 2.5, null]}', "a/b\\c|d~e^f`g",
    "!!!???...---===", "\"\"\"'''\"\"\"", "https://example.org/a_b?c=d&e=%20#f",
    "CamelCaseWord snake_case_word kebab-case-word ALLCAPS MiXeD",
    "Ich grüße Ælfric, façade, naïve, Łódź, İstanbul, straße, ﬁnance, ŒUVRE", "Привет, мир! Ёлка", "Γειά σου Κόσμε",
    "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "こんにちは世界。カタカナ、ひらがな", "你好，世界！我是一个模型。",
    "안녕하세요 세계", "កាន់តែពិសេស", "🚀 😶‍🌫️ 👨‍👩‍👧‍👦 🇩🇪 👍🏽 ✅",
    "e\u0301 e\u0301\u0323 a\u0308\u0301 \u1112\u1161\u11ab q\u0307\u0323", "Z\u0351\u0357a\u030b\u0358l\u0327\u0321g\u0334o\u0321\u0338",
    "\u0000\u0001\u0002\u007f\u0080\u0085\u009f", "\ufeffbom \u200bzero\u200dwidth\u2060", "\u00a0nbsp\u00a0\u00a0x\u3000y\u2028z\u2029",
    "\U0001d400\U0001d7d9\U000e0001\U0010ffff\ufffd", "\u1c8a \U00013460\U00013461 \U0002ebf0 \U00010d40", "▁▁a ▁b c▁", "Ġthe Ċ ĉ",
    "<0x0A><0x41> <0xFF>", "<unk><s></s> <s> </s>x<unk>", "<|begin_of_text|>hi<|end_of_text|>", " <|end_of_text|> ",
    "<|begin_of_text|", "<|begin_of_text|><|begin_of_text|>", "<|BEGIN_OF_TEXT|>", "<s", "< s>",
    "a" * 100, "ab" * 100, " " * 100, "\n" * 50, "=" * 80, "the " * 40, "thethethethethethethe",
    "antidisestablishmentarianism" * 4, "1" * 50, "é" * 60, "日本" * 40,
]

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


def changed(base, **changes):
    """The tokenizer with top-level fields replaced; fields of model one by one."""
    t = copy.deepcopy(base)
    t["model"].update(changes.pop("model", {}))
    t.update(changes)
    return t


def is_byte_level(base):
    return "ByteLevel" in json.dumps(base["pre_tokenizer"])


def added_token(i, content, **kw):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **kw}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def literal(s, behavior, invert=False):
    return {"type": "Split", "pattern": {"String": s}, "behavior": behavior, "invert": invert}


def byte_level_variants(base):
    """Yields names and changes for a byte-level tokenizer."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole = dict(byte_level, use_regex=True)

    def split(regex, **kw):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **kw}

    def make(pre_tokenizer=whole, normalizer=None, **kw):
        return dict(pre_tokenizer=pre_tokenizer, normalizer=normalizer, **kw)

    yield "llama3", make(sequence(split(LLAMA3), byte_level))
    yield "llama3-removed", make(sequence(split(LLAMA3, behavior="Removed", invert=True), byte_level))
    yield "qwen", make(sequence(split(LLAMA3.replace("{1,3}", "")), byte_level), {"type": "NFC"})
    yield "gpt2", make()
    yield "gpt2-split", make(sequence(split(GPT2), byte_level))
    yield "gpt2-prefix", make(dict(whole, add_prefix_space=True))
    yield "prefix-only", make(dict(byte_level, add_prefix_space=True))
    for each in (True, False):
        yield f"digits-{each}", make(sequence({"type": "Digits", "individual_digits": each}, whole))
    yield "ignore-merges", make(model={"ignore_merges": True})
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form.lower(), make(normalizer={"type": form})
    yield "steps", make(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "a"},
        {"type": "Replace", "pattern": {"String": "  "}, "content": "\t"}]})
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield f"split-{behavior}-{invert}", make(sequence(literal("  ", behavior, invert), byte_level))

    known = dict(base["model"]["vocab"])
    flags = {"<left>": {"lstrip": True}, "<right>": {"rstrip": True, "special": True}, "the": {"single_word": True},
             "<both>": {"lstrip": True, "rstrip": True}, "<|begin": {"special": True}, "the The": {"normalized": True},
             "Token": {"normalized": True, "single_word": True}, "TOKENIZER": {"normalized": True, "special": True},
             "   ": {"normalized": True}, "é": {"normalized": True}, "\n\n": {}}
    added = base["added_tokens"] + [added_token(known.setdefault(c, len(known)), c, **kw) for c, kw in flags.items()]
    single = [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "<y>", "type_id": 0}}]
    template = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<x>": {"id": "<x>", "ids": [0], "tokens": ["<x>"]},
                            "<y>": {"id": "<y>", "ids": [1, 1], "tokens": ["<y>", "<y>"]}}}]}
    yield "added", make(added_tokens=added, post_processor=template)
    yield "added-lower", make(added_tokens=added, normalizer={"type": "Lowercase"})
    yield "added-nfd", make(added_tokens=added, normalizer={"type": "NFD"})
    yield "no-decoder", make(decoder=None)


def sentencepiece_variants(base):
    """Yields names and changes for a SentencePiece-style tokenizer with byte fallback."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    vocab = base["model"]["vocab"]

    def make(normalizer=prepend, pre_tokenizer=None, normalized=False, **kw):
        added = [dict(t, normalized=normalized) for t in base["added_tokens"]]
        return dict(normalizer=normalizer, pre_tokenizer=pre_tokenizer, added_tokens=added, **kw)

    def meta(scheme, cut=True, steps=(), normalizer=None, **kw):
        m = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
        return make(normalizer, sequence(*steps, m) if steps else m, decoder=m, **kw)

    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield f"metaspace-{scheme}-{cut}", meta(scheme, cut)
    yield "metaspace-first-normalized", meta("first", normalizer={"type": "NFKC"}, normalized=True)
    yield "metaspace-first-digits", meta("first", steps=[{"type": "Digits", "individual_digits": True}])
    yield "metaspace-first-replace", meta("first", normalizer=replace, normalized=True)
    yield "sp", make()
    yield "normalized", make(normalized=True)
    yield "ignore-merges", make(model={"ignore_merges": True})
    # Tokens of the upper bytes go by another name, so that some characters fall back and some do not.
    some = {("?" + t if t[:3] == "<0x" and t >= "<0xD0>" else t): i for t, i in vocab.items()}
    for fuse in (True, False):
        yield f"no-bytes-fuse-{fuse}", make(model={"byte_fallback": False, "fuse_unk": fuse})
        yield f"some-bytes-fuse-{fuse}", make(model={"vocab": some, "fuse_unk": fuse})
    yield "dropped", make(model={"byte_fallback": False, "unk_token": None})
    yield "gemma", make(replace, literal(" ", "MergedWithPrevious"))
    yield "no-decoder", make(decoder=None)


def suite(name, path, base, changes, args):
    """The library's answers for a tokenizer with changes."""
    t = tokenizers.Tokenizer.from_str(json.dumps(changed(base, **changes)))
    specials = [a.content for a in t.get_added_tokens_decoder().values()]
    rng = random.Random(f"{args.seed} {name}")
    texts = ([] if args.no_fixed else FIXED) + [random_text(rng, specials) for _ in range(args.count)]
    # What the post-processor puts around a text is the same for all texts.
    probe = next(p for p in ("a", "  ") if t.encode(p, add_special_tokens=False).ids)
    one, alone = t.encode(probe, add_special_tokens=True).ids, t.encode(probe, add_special_tokens=False).ids
    at = next(i for i in range(len(one)) if one[i:i + len(alone)] == alone)
    prefix, suffix = one[:at], one[at + len(alone):]
    cases = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        special = t.encode(text, add_special_tokens=True).ids
        assert special == prefix + ids + suffix, (name, text, special, prefix, ids, suffix)
        case = {"text": text, "ids": ids}
        decoded = t.decode(ids, skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    for file in args.text:
        with open(file, encoding="utf-8", newline="") as f:
            text = f.read()
        start = time.perf_counter()
        ids = t.encode(text, add_special_tokens=False).ids
        seconds = time.perf_counter() - start
        print(f"{name}: {file}: {len(ids)} ids, {len(text.encode()) / seconds / 1e6:.2f} MB/s", file=sys.stderr)
        cases.append({"file": os.path.relpath(file, args.out), "ids": ids})
    return {"name": name, "tokenizer": os.path.relpath(path, args.out), "changes": changes,
            "vocab_size": t.get_vocab_size(), "prefix": prefix, "suffix": suffix, "cases": cases}


def write(out, name, suites):
    parts = []
    for s in suites:
        cases = ",\n".join(json.dumps(c, separators=(",", ":")) for c in s.pop("cases"))
        parts.append(json.dumps(s, separators=(",", ":"))[:-1] + ',"cases":[\n' + cases + "]}")
    with open(os.path.join(out, f"{name}.vectors.json"), "w", encoding="utf-8") as f:
        f.write(f'{{"library":"tokenizers {tokenizers.__version__}","suites":[\n' + ",\n".join(parts) + "]}\n")


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def name_of(path):
    name = os.path.basename(path).removesuffix(".json")
    return name if name != "tokenizer" else os.path.basename(os.path.dirname(os.path.abspath(path)))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("tokenizer", nargs="*")
    p.add_argument("--variants", metavar="BASE", action="append", default=[])
    p.add_argument("--count", type=int, default=3000, help="random strings per tokenizer")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-fixed", action="store_true", help="random strings only")
    p.add_argument("--text", metavar="FILE", action="append", default=[])
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for path in args.tokenizer:
        write(args.out, name_of(path), [suite(name_of(path), path, load(path), {}, args)])
    for path in args.variants:
        base = load(path)
        variants = byte_level_variants(base) if is_byte_level(base) else sentencepiece_variants(base)
        write(args.out, f"{name_of(path)}-variants", [suite(name, path, base, changes, args) for name, changes in variants])


if __name__ == "__main__":
    main()
