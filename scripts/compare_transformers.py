#!/usr/bin/env python3
"""Evaluates a Hugging Face folder with transformers, in float32 on the CPU, as a reference for lutq.

    scripts/compare_transformers.py MODEL TEXT [--ctx 2048] [--windows N] [--threads 2] [--out REF.json]
    scripts/compare_transformers.py MODEL TEXT --lutq ./lutq …      runs `lutq eval-ppl` too and compares

The protocol is lutq's `raw`: the file tokenized once without special tokens, consecutive windows of
--ctx tokens, the tail dropped, every token after a window's first scored; with --bos window BOS is
the first of each, before --ctx - 1 tokens of text. The JSON on stdout, or in
--out, has the ids and two rows of logits of the first 64 tokens (keys as in a golden.json), the mean
NLL of each window, the perplexity and the time; with --lutq also lutq's report and the differences.

The same model in float32 on both sides agrees in ln(ppl) to about 1e-7; the exit code is 3 when it
is off by more than --tolerance. Timing: forward passes with all logits, under whichever of eager and sdpa
attention is quicker on the first window.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def load(model: Path, attention: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=attention).eval()


@torch.inference_mode()
def logits_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@torch.inference_mode()
def window_nll(model: torch.nn.Module, ids: list[int]) -> tuple[list[float], float]:
    """Negative log likelihoods of ids[1:] in nats, and the seconds that the model's forward took.

    The likelihoods are taken in float64; that work is lavish and is left out of the time.
    """
    start = time.perf_counter()
    logits = logits_of(model, ids)
    took = time.perf_counter() - start
    out = []
    for rows, targets in zip(logits[:-1].split(256), torch.tensor(ids[1:]).split(256), strict=True):
        out += torch.nn.functional.cross_entropy(rows.double(), targets, reduction="none").tolist()
    return out, took


def fastest(path: Path, ids: list[int]) -> tuple[torch.nn.Module, str, dict[str, float]]:
    """The model under the attention implementation that is quicker here, and both times."""
    models = {name: load(path, name) for name in ("sdpa", "eager")}
    took = {}
    for name, model in models.items():
        took[name] = min(window_nll(model, ids)[1] for _ in range(3))
    best = min(took, key=took.get)
    return models[best], best, took


def run_lutq(binary: str, args: argparse.Namespace, windows: int) -> dict:
    command = [binary, "eval-ppl", str(args.lutq_model or args.model), "--text", str(args.text), "--protocol", "raw"]
    command += [
        "--ctx",
        str(args.ctx),
        "--windows",
        str(windows),
        "--bos",
        args.bos,
        "--device",
        "cpu",
        "--threads",
        str(args.threads),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare_transformers.py: lutq failed ({done.returncode}): {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, help="Hugging Face folder")
    p.add_argument("text", type=Path, help="UTF-8 text")
    p.add_argument("--ctx", type=int, default=2048, help="tokens in a window (default 2048)")
    p.add_argument("--bos", choices=["none", "window"], default="none", help="where BOS goes (default none)")
    p.add_argument("--windows", type=int, default=0, help="evaluate the first N windows (default all)")
    p.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    p.add_argument("--attention", choices=["fastest", "sdpa", "eager"], default="fastest")
    p.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    p.add_argument("--lutq", metavar="BINARY", help="run lutq eval-ppl on the same input and compare")
    p.add_argument("--lutq-model", type=Path, help="what lutq evaluates, if not MODEL")
    p.add_argument("--tolerance", type=float, default=1e-5, help="largest |ln ppl ratio| accepted (default 1e-5)")
    args = p.parse_args()

    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    # newline="" keeps \r\n as it is in the file, as every byte counts for the tokens.
    with args.text.open(encoding="utf-8", newline="") as f:
        text = f.read()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    bos = [tokenizer.bos_token_id] if args.bos == "window" else []
    step = args.ctx - len(bos)
    chunks = [bos + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]
    if args.windows:
        chunks = chunks[: args.windows]
    if not chunks:
        sys.exit(f"compare_transformers.py: {args.text} has {len(ids)} tokens, fewer than one window of {args.ctx}")

    if args.attention == "fastest":
        model, attention, took = fastest(args.model, chunks[0])
    else:
        model, attention = load(args.model, args.attention), args.attention
        took = {attention: min(window_nll(model, chunks[0])[1] for _ in range(2))}

    means, elapsed = [], 0.0
    for chunk in chunks:
        nll, seconds = window_nll(model, chunk)
        means.append(math.fsum(nll) / len(nll))
        elapsed += seconds
    mean = math.fsum(means) / len(means)
    first = ids[:64]
    logits = logits_of(model, first)
    report = {
        "protocol": f"raw: {'BOS first, ' if bos else 'no special tokens, '}consecutive windows of {args.ctx}, every token after a window's first scored",
        "text": args.text.name,
        "tokens": len(ids),
        "windows": len(chunks),
        "ppl": math.exp(mean),
        "window_nll": means,
        "first64_ids": first,
        "logits_row10_first16": logits[10, :16].tolist(),
        "logits_last_first16": logits[-1, :16].tolist(),
        "argmax": logits.argmax(-1).tolist(),
        "attention": attention,
        "threads": args.threads,
        "seconds_per_1000_tokens": elapsed / (len(chunks) * args.ctx) * 1000,
        "first_window_seconds": took,
        "torch": torch.__version__,
    }

    ok = True
    if args.lutq:
        ours = run_lutq(args.lutq, args, len(chunks))
        ln_ratio = math.log(ours["ppl"]) - mean
        report["lutq"] = ours
        report["ln_ratio"] = ln_ratio
        report["speedup"] = ours["tokens_per_second"] * report["seconds_per_1000_tokens"] / 1000
        ok = abs(ln_ratio) <= args.tolerance
        print(
            f"ppl: transformers {report['ppl']:.6f}, lutq {ours['ppl']:.6f}, ln ratio {ln_ratio:+.2e}; "
            f"lutq is {report['speedup']:.2f} times as fast on {args.threads} threads",
            file=sys.stderr,
        )

    content = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(content, encoding="utf-8")
    else:
        sys.stdout.write(content)
    if not ok:
        sys.exit(3)


if __name__ == "__main__":
    main()
