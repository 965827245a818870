#!/usr/bin/env python3
# requirements: tokenizers==0.23.3
"""Writes the ids that the Rust tokenizers library gives to fixed and to seeded random strings.

    pip install tokenizers==0.23.3
    python scripts/tokenizer_fuzz.py OUT TOKENIZER.json... [--variants BASE.json]... [--families BASE.json]... [--count 3000] [--seed 1] [--text FILE]...
    LUTQ_TOKENIZER_VECTORS=$PWD/OUT go test ./calib/tokenizer -run TestFuzzVectors -v

OUT receives NAME.vectors.json for each tokenizer, which is found again by its path relative to OUT.
--variants changes other settings of BASE (split patterns, pre-tokenizers, normalizers, added
tokens, fallbacks) and leaves its vocabulary, which must hold the ids 0 and 1.
--families does the same with the split patterns of model families, other regular expressions and the
remaining components, on strings that also have characters of all Unicode versions. Its BASE, a byte-level
tokenizer, should have tokens across every place where a pattern may cut; --train writes one.
TOKENIZER may be a tekken.json too, whose ids are mistral-common's, or a tiktoken.model beside a
tokenizer_config.json, whose ids are tiktoken's with the pattern of Kimi (pip install mistral-common==1.13.1 tiktoken==0.14.0). --ranks writes small ones of both kinds
from a byte-level BASE.
--text adds the ids of a whole file and prints how fast the library found them, on one thread.
Nothing outside OUT is written. The vectors in calib/tokenizer/testdata were written by

    cd calib/tokenizer/testdata
    python ../../../scripts/tokenizer_fuzz.py . ../../testdata/lutq-tiny/tokenizer.json sp/tokenizer.json --count 240
    python ../../../scripts/tokenizer_fuzz.py . --variants bytelevel/tokenizer.json --variants sp/tokenizer.json --count 12 --no-fixed
    python ../../../scripts/tokenizer_fuzz.py . --train ../../testdata/harbour.txt families/tokenizer.json
    python ../../../scripts/tokenizer_fuzz.py . --families families/tokenizer.json --count 4 --no-fixed
    python ../../../scripts/tokenizer_fuzz.py . tekken/tekken.json kimi/tiktoken.model --ranks families/tokenizer.json . --count 60
"""

import argparse
import base64
import copy
import importlib.metadata
import json
import os
import random
import re
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TIKTOKEN_CACHE_DIR"] = ""  # which would go by the path of a file, whatever is in it

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


# Where characters came in Unicode 9 to 17, and where the parts of the library disagree about them.
NEWER = [(0x7FD, 0x7FD), (0x890, 0x89F), (0x8CA, 0x8D3), (0x9F9, 0x9FE), (0xB55, 0xB57), (0xC3C, 0xC3C), (0x1715, 0x1715),
         (0x1AB0, 0x1ACE), (0x1C89, 0x1C8A), (0x1CF2, 0x1CF7), (0x1DF6, 0x1DFB), (0x2E43, 0x2E5D), (0x2427, 0x2429),
         (0x2FFC, 0x2FFF), (0x32FF, 0x32FF), (0x2160, 0x2188), (0x24B6, 0x24EA), (0xA7CB, 0xA7F4), (0xAB68, 0xAB6B),
         (0x10780, 0x107BA), (0x10D40, 0x10D8F), (0x10EAB, 0x10EFF), (0x10F46, 0x10F59), (0x111C9, 0x111CF),
         (0x11380, 0x113E2), (0x1171D, 0x1172B), (0x11930, 0x11946), (0x11A00, 0x11A47), (0x11BC0, 0x11BF9),
         (0x11D40, 0x11D47), (0x11DE0, 0x11DE9), (0x11F00, 0x11F5A), (0x13460, 0x13470), (0x16100, 0x16139),
         (0x16D40, 0x16D79), (0x16EA0, 0x16ED3), (0x16FF0, 0x16FF6), (0x1CCF0, 0x1CCF9), (0x1E030, 0x1E08F),
         (0x1E130, 0x1E136), (0x1E4EC, 0x1E4EF), (0x1E5D0, 0x1E5FF), (0x1F130, 0x1F189), (0x1FAE0, 0x1FAE9),
         (0x1FBF0, 0x1FBF9), (0x2EBF0, 0x2EBFF), (0x300, 0x36F), (0x80, 0xD7FF), (0x10000, 0x1FFFF)]


def with_newer(rng, text):
    """The text with characters of all Unicode versions put in, marks among them in a row."""
    chars = list(text)
    for _ in range(rng.choice([0, 1, 3, 10])):
        low, high = rng.choice(NEWER)
        at = rng.randint(0, len(chars))
        chars[at:at] = [chr(rng.randint(low, high))] + rng.choices(MARKS, k=rng.choice([0, 0, 0, 1, 2]))
    return "".join(chars)


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
    for behavior in BEHAVIORS:
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


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}")
# tokenization_kimi.py of moonshotai/Kimi-K2-Instruct.
KIMI_UPPER, KIMI_LOWER = (c[:-1] + r"&&[^\p{Han}]]" for c in (UPPER, LOWER))
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{LINES}")
# The split patterns of families, each a sequence.
FAMILIES = {
    "o200k": [O200K],  # gpt-oss, Llama 4
    "tekken": [O200K.replace(CONTRACTIONS + "?", "").replace("{1,3}", "")],  # Mistral Nemo, Small
    "deepseek": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",  # V3, R1
                 r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                 rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES}"],
    "deepseek-llm": [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
                     r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"],
    "qwen35": [rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}"],
    "cl100k": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"],
    "kimi": [KIMI],  # K2
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "falcon": [r"[0-9][0-9][0-9]"],
}
# One or more of every construct that the translation knows.
REGEXES = [r"x*", r"a*?", r"\b", r"\B", r"^.", r".$", r"^", r"$", r"\A.|.\z|.\Z", r".+", r"(?<=\d)\p{L}|(?<!a)n", r"t(?=h)|e(?!r)",
           r"\p{Han}+|\P{L}", r"[^\W\d_]+", r"\w+|[^\w\s]+", r"[a-z&&[^aeiou]]+", r"[a-z&&aeiou&&[^e]]", r"(?i:[sdmt]|ll|ve|re)",
           r"(?i)the|AN|k", r"(?i:[^s])+", r"(?i:t(?-i:h)e)", r"e{2}+", r"o{2}?", r"(?:th|he){1,2}?", r"(a|e){2,}", r".{,3}", r".{2,3}+",
           r"(?>t|th)e", r"t?+h", r"(?<name>t)h", r"\h+", r"\H", r"\R", r"[\p{^L}\s]", r"\p{^Lu}", r"\x41|\x{e9}|\u0151|\t|\-|\/",
           r"\p{Lu}\p{Ll}*", r"\p{Mn}+|\p{Mc}|\p{Me}", r"\p{Sc}|\p{Sm}|\p{Sk}|\p{So}", r"\p{Cn}+", r"\p{C}", r"\p{greek}+",
           r"\p{Uppercase_Letter}|\p{decimal number}", r"\p{Latin}+", r"\p{Arabic}|\p{Common}+", r"\W+", r"\S\s", r"\D\d",
           r"[\w\-]+", r"[^\n-a]", r"[-a]|[b-]", r"{|}|]", r"e{x", r"[一-龥]", r"\p{P}|[\p{S}&&[^\p{Sm}]]", r"\p{LC}+|\p{Lt}|\p{Lm}|\p{Lo}",
           r"\p{Nd}|\p{Nl}|\p{No}", r"\p{Zs}|\p{Zl}|\p{Zp}", r"\p{Pc}|\p{Pd}|\p{Ps}|\p{Pe}|\p{Pi}|\p{Pf}|\p{Po}", r"\p{Cf}|\p{Cc}|\p{Co}"]
BEHAVIORS = ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")


def family_variants(base):
    """Yields names and changes for what model families split by, and for components that few of them use."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole = dict(byte_level, use_regex=True)

    def make(*steps, normalizer=None, **kw):
        return dict(pre_tokenizer=sequence(*steps, *([] if steps and steps[-1] is whole else [byte_level])), normalizer=normalizer, **kw)

    def split(regex, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}

    for name, patterns in FAMILIES.items():
        yield name, make(*map(split, patterns))
    yield "command-r", make({"type": "Digits", "individual_digits": True}, whole, normalizer={"type": "NFC"})
    yield "phi4", make(split(LLAMA3, "Removed", True))
    for i, regex in enumerate(REGEXES):
        yield f"regex-{i}", make(split(regex))
    for behavior in BEHAVIORS:
        for invert in (False, True):
            yield f"words-{behavior}-{invert}", make(split(r"\w+|\d", behavior, invert))
            yield f"empty-{behavior}-{invert}", make(split(r"e*", behavior, invert))
            yield f"llama3-{behavior}-{invert}", make(split(LLAMA3, behavior, invert))
        yield f"punctuation-{behavior}", make({"type": "Punctuation", "behavior": behavior})
    for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
        yield kind, make({"type": kind})
    for each in (True, False):
        yield f"digits-{each}", make({"type": "Digits", "individual_digits": each})
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"):
        yield kind, make(normalizer={"type": kind})
    yield "accents", make(normalizer={"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "NFC"}]})
    for i, regex in enumerate([r"\s+", r"\p{N}", r"(?<=t)h"]):
        yield f"replace-{i}", make(normalizer={"type": "Replace", "pattern": {"Regex": regex}, "content": "aé"})
    yield "replace-decoder", make(decoder={"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": r"[aeiou]+|Ġ$"}, "content": "_"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}]})
    known = dict(base["model"]["vocab"])
    added = [added_token(known.setdefault(c, len(known)), c, single_word=True) for c in ("the", "x", "é", "1")]
    yield "single-word", make(added_tokens=base["added_tokens"] + added)
    tokens = {"cls": [base["added_tokens"][0]["content"], 0], "sep": ["!", known["!"]]}
    yield "roberta", make(post_processor={"type": "RobertaProcessing", **tokens, "trim_offsets": True, "add_prefix_space": False})
    yield "bert", make(post_processor={"type": "BertProcessing", **tokens})


def train(text, path, args):
    """Writes a byte-level tokenizer whose tokens go across all that patterns split: it was trained without splitting."""
    rng = random.Random(args.seed)
    with open(text, encoding="utf-8") as f:
        lines = f.read().split("\n\n")
    lines = lines[:200] + [with_newer(rng, random_text(rng, ["<|end|>"])) for _ in range(1500)]
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(
        vocab_size=640, special_tokens=["<|end|>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    t.save(path, pretty=False)


def gpt2_bytes():
    """The byte that each letter of GPT-2's alphabet stands for."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def write_ranks(base, out):
    """Writes tekken/tekken.json and kimi/tiktoken.model, with the tokens of a byte-level tokenizer in the order of its ids."""
    alphabet = gpt2_bytes()
    special = {t["content"] for t in base["added_tokens"]}
    vocab = sorted((i, t) for t, i in base["model"]["vocab"].items() if t not in special)
    tokens = [bytes(alphabet[c] for c in t) for _, t in vocab]
    # Those with a special token in them are no others' merges.
    longer = [t for t in tokens if len(t) > 1 and not any(s.encode() in t for s in special)]
    tekken, kimi = ([bytes([b]) for b in range(256)] + longer, [t for t in tokens if len(t) == 1] + longer)
    os.makedirs(os.path.join(out, "tekken"), exist_ok=True)
    os.makedirs(os.path.join(out, "kimi"), exist_ok=True)

    def text_of(token):
        try:
            return token.decode()
        except UnicodeDecodeError:
            return None

    listed = [{"rank": i, "token_str": t, "is_control": t != "[THINK]"} for i, t in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]"])]
    size = len(tekken) + 8 - 16  # the last tokens are cut off, as in published files
    with open(os.path.join(out, "tekken", "tekken.json"), "w", encoding="utf-8") as f:
        json.dump({"config": {"pattern": FAMILIES["tekken"][0], "num_vocab_tokens": len(tekken), "default_vocab_size": size,
                              "default_num_special_tokens": 8, "version": "v11"},
                   "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": text_of(t)} for i, t in enumerate(tekken)],
                   "special_tokens": listed}, f, separators=(",", ":"))
    with open(os.path.join(out, "kimi", "tiktoken.model"), "w") as f:
        f.writelines(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(kimi))
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 9: "[EOT]", 254: "[UNK]", 255: "[PAD]"}
    with open(os.path.join(out, "kimi", "tokenizer_config.json"), "w") as f:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        json.dump({"added_tokens_decoder": {str(len(kimi) + i): {"content": t, **flags} for i, t in names.items()},
                   "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
                   "tokenizer_class": "TikTokenTokenizer"}, f, indent=1)
        f.write("\n")


def tekken_oracle(path):
    """mistral-common's tokenizer. It takes no special token in a text for one: they are cut out before."""
    from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
    t = Tekkenizer.from_file(path)
    special = {s["token_str"]: s["rank"] for s in t._all_special_tokens}
    cut = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")

    def encode(text):
        parts = cut.split(text)
        return [i for n, p in enumerate(parts) for i in ([special[p]] if n % 2 else t.encode(p, bos=False, eos=False))]

    def decode(ids):
        return t.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP)

    return encode, decode, t.n_words, t.encode("", bos=True, eos=False), list(special)


def tiktoken_oracle(path):
    """tiktoken, with the pattern and the special tokens that tokenization_kimi.py gives it."""
    import tiktoken
    import tiktoken.load
    ranks = tiktoken.load.load_tiktoken_bpe(path)
    named = {int(i): t["content"] for i, t in load(os.path.join(os.path.dirname(path), "tokenizer_config.json"))["added_tokens_decoder"].items()}
    special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
    t = tiktoken.Encoding(name="kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    return lambda text: t.encode(text, allowed_special="all"), t.decode, t.n_vocab, [], [named[i] for i in sorted(named)]


def ranks_suite(name, path, args):
    """The answers of the library for a file of ranks."""
    path = os.path.abspath(path)
    encode, decode, size, prefix, specials = (tekken_oracle if path.endswith("tekken.json") else tiktoken_oracle)(path)
    rng = random.Random(f"{args.seed} {name}")
    texts = [random_text(rng, specials) for _ in range(args.count)]
    texts = (FIXED + ["aba" * 20, "ababa abab babab", "aaaaaaa aaaaa aaa", "  " * 7 + "\n  \n   "] if not args.no_fixed else []) \
        + texts + [with_newer(rng, text) for text in texts]
    cases = []
    for text in texts:
        ids = encode(text)
        case = {"text": text, "ids": ids}
        if decode(ids) != text:
            case["decoded"] = decode(ids)
        cases.append(case)
    for file in args.text:
        with open(file, encoding="utf-8", newline="") as f:
            text = f.read()
        start = time.perf_counter()
        ids = encode(text)
        seconds = time.perf_counter() - start
        print(f"{name}: {file}: {len(ids)} ids, {len(text.encode()) / seconds / 1e6:.2f} MB/s", file=sys.stderr)
        cases.append({"file": os.path.relpath(file, args.out), "ids": ids})
    for file in args.inp:
        with open(file, encoding="utf-8", newline="") as f:
            cases += [{"text": text, "ids": encode(text)} for text in f.read().split("\n__ggml_vocab_test__\n")]
    return {"name": name, "tokenizer": os.path.relpath(path, os.path.abspath(args.out)), "changes": {},
            "vocab_size": size, "prefix": prefix, "suffix": [], "cases": cases}


def suite(name, path, base, changes, args, newer=False):
    """The library's answers for a tokenizer with changes."""
    t = tokenizers.Tokenizer.from_str(json.dumps(changed(base, **changes)))
    specials = [a.content for a in t.get_added_tokens_decoder().values()]
    rng = random.Random(f"{args.seed} {name}")
    texts = [random_text(rng, specials) for _ in range(args.count)]
    if newer:
        texts = [with_newer(rng, text) for text in texts]
    if not args.no_fixed:
        texts = FIXED + texts
    # What the post-processor puts around a text is the same for all texts.
    probe = next((p for p in ("a", "  ", *texts) if t.encode(p, add_special_tokens=False).ids), "")
    one, alone = t.encode(probe, add_special_tokens=True).ids, t.encode(probe, add_special_tokens=False).ids
    at = next(i for i in range(len(one) + 1) if one[i:i + len(alone)] == alone)
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


def library(path):
    """Whose answers a file has."""
    package = {"tekken.json": "mistral-common", "tiktoken.model": "tiktoken"}.get(os.path.basename(path), "tokenizers")
    return f"{package} {importlib.metadata.version(package)}"


def write(out, name, suites):
    parts = []
    for s in suites:
        cases = ",\n".join(json.dumps(c, separators=(",", ":")) for c in s.pop("cases"))
        parts.append(json.dumps(s, separators=(",", ":"))[:-1] + ',"cases":[\n' + cases + "]}")
    with open(os.path.join(out, f"{name}.vectors.json"), "w", encoding="utf-8") as f:
        f.write(f'{{"library":"{library(suites[0]["tokenizer"])}","suites":[\n' + ",\n".join(parts) + "]}\n")


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def name_of(path):
    name = os.path.basename(path).removesuffix(".json")
    return name if name not in ("tokenizer", "tekken", "tiktoken.model") else os.path.basename(os.path.dirname(os.path.abspath(path)))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("tokenizer", nargs="*")
    p.add_argument("--variants", metavar="BASE", action="append", default=[])
    p.add_argument("--families", metavar="BASE", action="append", default=[])
    p.add_argument("--train", nargs=2, metavar=("TEXT", "BASE"))
    p.add_argument("--ranks", nargs=2, metavar=("BASE", "FOLDER"))
    p.add_argument("--count", type=int, default=3000, help="random strings per tokenizer")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-fixed", action="store_true", help="random strings only")
    p.add_argument("--text", metavar="FILE", action="append", default=[])
    p.add_argument("--inp", metavar="FILE", action="append", default=[], help="texts as llama.cpp's tests have them, for files of ranks")
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.train:
        train(*args.train, args)
    if args.ranks:
        write_ranks(load(args.ranks[0]), args.ranks[1])
    for path in args.tokenizer:
        if os.path.basename(path) in ("tekken.json", "tiktoken.model"):
            write(args.out, name_of(path), [ranks_suite(name_of(path), path, args)])
            continue
        write(args.out, name_of(path), [suite(name_of(path), path, load(path), {}, args)])
    for path in args.variants:
        base = load(path)
        variants = byte_level_variants(base) if is_byte_level(base) else sentencepiece_variants(base)
        write(args.out, f"{name_of(path)}-variants", [suite(name, path, base, changes, args) for name, changes in variants])
    for path in args.families:
        base = load(path)
        suites = [suite(name, path, base, changes, args, newer=True) for name, changes in family_variants(base)]
        write(args.out, name_of(path), suites)


if __name__ == "__main__":
    main()
