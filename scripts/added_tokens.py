#!/usr/bin/env python3
"""Writes the ids that transformers gives where files beside tokenizer.json tell of added tokens.

    python scripts/added_tokens.py calib/tokenizer/testdata [--count 60] [--seed 1]

OUT/added.json receives cases: the added_tokens put into a tokenizer.json of OUT, tokenizer_config.json,
special_tokens_map.json and added_tokens.json beside it, and what AutoTokenizer makes of texts and of ids. Cases that it
refuses are left out. A case is of the tokenizers library too where nothing lies beside the file.
"""

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
warnings.filterwarnings("ignore")

import tokenizers  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def token(content, **kw):
    return {"content": content, **{f: False for f in FLAGS}, **kw}


def typed(content, **kw):
    return {"__type": "AddedToken", **token(content, **kw)}


def numbered(first, *tokens):
    return [{"id": first + i, **t} for i, t in enumerate(tokens)]


def ask(base, case):
    """Adds what transformers says of a case, or returns None where it refuses it."""
    with tempfile.TemporaryDirectory() as d:
        t = dict(base)
        if "listed" in case:
            t["added_tokens"] = base["added_tokens"] + case["listed"]
        files = {"tokenizer.json": t, "config.json": {"model_type": "llama"}}
        for key, name in (("config", "tokenizer_config.json"), ("map", "special_tokens_map.json"), ("added", "added_tokens.json")):
            if key in case:
                files[name] = case[key]
        for name, content in files.items():
            with open(os.path.join(d, name), "w") as f:
                json.dump(content, f, ensure_ascii=False)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                tok = transformers.AutoTokenizer.from_pretrained(d)
                texts = [
                    {
                        "text": s,
                        "ids": tok(s, add_special_tokens=False)["input_ids"],
                        "special": tok(s, add_special_tokens=True)["input_ids"],
                    }
                    for s in case.pop("texts")
                ]
        except (Exception, BaseException) as e:  # noqa: B014, BLE001 - a panic of the library is no Exception
            print("refused:", case["name"], repr(e)[:100])
            return None
        # This version spells what once matched normalized text as that had it, although it is special or matches so no more.
        odd = {i for i, t in tok.added_tokens_decoder.items() if tok.convert_ids_to_tokens(i) != t.content}
        some = sorted({i for t in texts for i in t["ids"]} - odd | {len(tok) + 1})
        return {
            **case,
            "class": type(tok).__name__,
            "size": max(tok.get_vocab().values()) + 1,
            "bos": tok.bos_token,
            "tokens": [
                {"id": i, **{f: v for f, v in t.__getstate__().items() if v is not False}, "special": not tok.decode([i], skip_special_tokens=True)}
                for i, t in sorted(tok.added_tokens_decoder.items())
            ],
            "odd": sorted(odd),
            "texts": texts,
            "decoded": {"ids": some, "text": tok.decode(some, skip_special_tokens=True)},
        }


def fixed(base, first):
    """Cases with one thing each."""
    texts = ["<|im_start|>user", "a <ab> b<ab>c", "x<abc><ab>", " <a b> <AB> ab hello", "<s>hi</s>", "plain text"]
    bos = base["added_tokens"][0]["content"]
    vocab = base["model"]["vocab"]
    known = next(t for t in vocab if len(t) == 2 and t.isalpha() and t.isascii())
    at = vocab[known]

    def case(name, **kw):
        return dict(name=name, texts=texts + kw.pop("more", []), **kw)

    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    decoder = {str(first): token("<|im_start|>", special=True)}
    yield case("nothing beside")
    yield case("additional_special_tokens", config={**config, "additional_special_tokens": ["<|im_start|>"]})
    yield case("extra_special_tokens", config={**config, "extra_special_tokens": ["<|im_start|>", "<ab>"]})
    yield case("extra beside additional", config={**config, "extra_special_tokens": ["<ab>"], "additional_special_tokens": ["<|im_start|>"]})
    yield case("empty extra beside additional", config={**config, "extra_special_tokens": [], "additional_special_tokens": ["<|im_start|>"]})
    yield case("extra_special_tokens by name", config={**config, "extra_special_tokens": {"image_token": "<ab>", "user_token": "<|im_start|>"}})
    yield case("extra as objects", config={**config, "extra_special_tokens": [typed("<ab>", lstrip=True), typed("<abc>", special=True, rstrip=True)]})
    yield case("added_tokens_decoder", config={**config, "added_tokens_decoder": decoder})
    yield case("decoder out of order", config={**config, "added_tokens_decoder": {str(first + 5): token("<ab>"), str(first): token("<abc>")}})
    yield case("decoder with flags", config={**config, "added_tokens_decoder": {str(first): token("<ab>", lstrip=True, rstrip=True, special=True)}})
    yield case("decoder without flags", config={**config, "added_tokens_decoder": {str(first): {"content": "<ab>"}, str(first + 1): {"content": "<abc>", "special": True}}})
    yield case("decoder changes flags", listed=numbered(first, token("<ab>")), config={**config, "added_tokens_decoder": {str(first): token("<ab>", lstrip=True, special=True)}})
    yield case("decoder takes a flag away", listed=numbered(first, token("<ab>", lstrip=True, special=True)), config={**config, "added_tokens_decoder": {str(first): token("<ab>")}})
    yield case("decoder names a word", config={**config, "added_tokens_decoder": {str(at): token(known, special=True)}}, more=[f"x{known}y {known}"])
    yield case("decoder is empty", config={**config, "added_tokens_decoder": {}}, map={"bos_token": "<ab>"})
    yield case("bos_token alone", config={**config, "bos_token": "<|im_start|>"})
    yield case("bos_token as object", config={**config, "bos_token": typed(bos, normalized=True)})
    yield case("pad_token alone", config={**config, "pad_token": "<ab>", "eos_token": None})
    yield case("two names, one token", config={**config, "pad_token": typed("<ab>", lstrip=True), "eos_token": "<ab>"})
    yield case("a named token that is listed", listed=numbered(first, token("<ab>", lstrip=True)), config={**config, "eos_token": "<ab>"})
    yield case("a token of a model's own name", config={**config, "image_token": "<ab>", "boi_token": typed("<abc>")})
    yield case("own names before others", config={**config, "image_token": "<ab>", "extra_special_tokens": ["<abc>"], "pad_token": "<|im_start|>"})
    yield case("map", map={"bos_token": bos, "additional_special_tokens": ["<|im_start|>", "<ab>"]}, config=config)
    yield case("map without configuration", map={"bos_token": bos, "pad_token": "<ab>"})
    yield case("map with objects", config=config, map={"pad_token": {k: v for k, v in token("<ab>", lstrip=True).items() if k != "special"}})
    yield case("map with extra", config={**config, "extra_special_tokens": ["<abc>"]}, map={"extra_special_tokens": ["<ab>", "<abc>"]})
    yield case("map with extra objects", config=config, map={"extra_special_tokens": [{"content": "<ab>", "lstrip": True}, {"content": "<abc>"}]})
    yield case("map beside additional", config={**config, "additional_special_tokens": ["<abc>"]}, map={"additional_special_tokens": ["<ab>"]})
    yield case("map against configuration", config={**config, "pad_token": "<abc>"}, map={"pad_token": "<ab>"})
    yield case("map with null", config={**config, "pad_token": "<abc>"}, map={"pad_token": None})
    yield case("three names, one token", config={**config, "bos_token": typed("<ab>", lstrip=True), "eos_token": typed("<ab>"), "pad_token": typed("<ab>", lstrip=True)})
    yield case("a text behind an object", config={**config, "bos_token": "<ab>", "eos_token": typed("<ab>", lstrip=True), "pad_token": "<ab>"})
    bare = {"__type": "AddedToken", "content": "<ab>"}
    yield case("named without flags", config={**config, "pad_token": bare, "extra_special_tokens": [{**bare, "content": "<abc>"}]})
    yield case("decoder without flags, named", config={**config, "pad_token": "<ab>", "added_tokens_decoder": {str(first): {"content": "<ab>"}}})
    yield case("map without flags", config=config, map={"pad_token": {"content": "<ab>"}})
    yield case("extra of both kinds", config={**config, "extra_special_tokens": {"x_token": "<ab>"}}, map={"extra_special_tokens": ["<abc>"]})
    yield case("extra of both kinds, the other way", config={**config, "extra_special_tokens": ["<ab>"]}, map={"extra_special_tokens": {"x_token": "<abc>"}, "additional_special_tokens": ["<|im_start|>"]})
    for name, kw in (
        ("extra texts", dict(config={**config, "extra_special_tokens": ["<ab>"]})),
        ("extra objects", dict(config={**config, "extra_special_tokens": [typed("<ab>", special=True)]})),
        ("extra of the map", dict(config=config, map={"extra_special_tokens": [{"content": "<ab>", "lstrip": True}]})),
        ("additional of the map", dict(config=config, map={"additional_special_tokens": ["<ab>"]})),
        ("a name of the map", dict(config={**config, "pad_token": typed("<ab>")}, map={"pad_token": {"content": "<ab>"}})),
        ("an own name", dict(config={**config, "image_token": "<ab>"})),
    ):
        yield case("added_tokens.json beside " + name, added={"<ab>": first}, **kw)
    yield case("map behind a decoder", config={**config, "added_tokens_decoder": decoder}, map={"pad_token": "<ab>", "additional_special_tokens": ["<abc>"]})
    yield case("added_tokens.json", config=config, added={"<ab>": first + 1, "<|im_start|>": first})
    yield case("added_tokens.json, special", config={**config, "pad_token": "<ab>"}, added={"<ab>": first + 1, "<|im_start|>": first})
    yield case("added_tokens.json behind a decoder", config={**config, "added_tokens_decoder": decoder}, added={"<ab>": first})
    yield case("add_bos_token false", config={**config, "add_bos_token": False, "bos_token": bos})
    yield case("add_eos_token true", config={**config, "add_eos_token": True, "eos_token": bos})
    yield case("add_bos_token null", config={**config, "add_bos_token": None})
    yield case("listed twice", listed=numbered(first, token("<ab>"), token("<ab>", lstrip=True)))
    yield case("listed twice, the other way", listed=numbered(first, token("<ab>", lstrip=True), token("<ab>"))[::-1])
    yield case("listed empty", listed=numbered(first, token("")))
    yield case("listed with a gap", listed=numbered(first + 900, token("<ab>"), token("<abc>")))
    yield case("listed at the id of another", listed=numbered(at, token("hello")))
    yield case("listed with another id", listed=numbered(first, token(known, single_word=True)), more=[f"{known} x{known} {known}"])
    yield case("listed out of order", listed=numbered(first, token("<ab>"), token("<abc>"))[::-1])


def drawn(rng, first):
    """A case of many things."""
    contents = ["<ab>", "<abc>", "<|im_start|>", "<a", "ab", "AB", " <a", "<a b>", "hello", "  "]

    def one(**kw):
        flags = {f: rng.random() < p for f, p in zip(FLAGS, (0.1, 0.2, 0.2, 0.2, 0.4))}
        return token(rng.choice(contents), **flags, **kw)

    def some(most):
        return [one() for _ in range(rng.randint(0, most))]

    def named(most, make):
        return {n: make() for n in rng.sample(["bos_token", "eos_token", "unk_token", "pad_token", "image_token"], rng.randint(0, most))}

    def either():
        t = one()
        return rng.choice([t["content"], {"__type": "AddedToken", **t}])

    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named(3, either)}
    for key in ("extra_special_tokens", "additional_special_tokens"):
        if rng.random() < 0.3:
            config[key] = [either() for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.4:
        config["added_tokens_decoder"] = {str(first + rng.randint(0, 9)): one() for _ in range(rng.randint(0, 4))}
    case = {"config": config}
    if rng.random() < 0.7:
        case["listed"] = [{"id": first + rng.randint(0, 9), **t} for t in some(4)]
    if rng.random() < 0.5:
        case["map"] = named(2, lambda: rng.choice([one()["content"], one()]))
        if rng.random() < 0.5:
            case["map"]["additional_special_tokens"] = [rng.choice(contents) for _ in range(2)]
    if rng.random() < 0.3:
        case["added"] = {rng.choice(contents): first + i for i in range(2)}
    case["texts"] = ["".join(rng.choice(contents + ["x", " ", "y z", "\n"]) for _ in range(12)) for _ in range(3)]
    return case


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out")
    p.add_argument("--count", type=int, default=60)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    suites = []
    for path in ("bytelevel/tokenizer.json", "sp/tokenizer.json"):
        with open(os.path.join(a.out, path), encoding="utf8") as f:
            base = json.load(f)
        first = max([*base["model"]["vocab"].values(), *(t["id"] for t in base["added_tokens"])]) + 1
        cases = list(fixed(base, first)) + [dict(name=f"drawn {i}", **drawn(rng, first)) for i in range(a.count)]
        suites.append({"tokenizer": path, "cases": [c for c in (ask(base, c) for c in cases) if c]})
        print(path, len(suites[-1]["cases"]), "cases")
    with open(os.path.join(a.out, "added.json"), "w", encoding="utf8") as f:
        f.write(f'{{"libraries":"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}","suites":[\n')
        for i, s in enumerate(suites):
            f.write(",\n" if i else "")
            f.write(f'{{"tokenizer":{json.dumps(s["tokenizer"])},"cases":[\n')
            f.write(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in s["cases"]) + "\n]}")
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
