#!/usr/bin/env python3
"""The table of learned scales: one model, quantized in every way to compare, measured on several texts.

    scripts/learned_scales.py MODEL WORK --lutq ./lutq --bits 3 --calib wiki.valid.raw --mix stories.txt --text wiki.test.raw --text books.txt

The ways: integers and NormalFloat by rounding; NormalFloat with scales learned as FLUTE's code does (bfloat16 parameters
as published, and float32); and in lutq's own mode (from searched scales, unless it says absmax) by likelihood and by divergence, on --calib alone and on --calib with
--mix in equal parts. The control is the unquantized model with as many factors learned by likelihood. Every way is one
`lutq quantize`; all are then evaluated together against MODEL on each text. JSON on stdout, a Markdown table on stderr.
Needs nothing but Python.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def ways(a: argparse.Namespace) -> dict[str, list[str]]:
    w = {"int": ["--codebook", "int", "--scale", "absmax"], "nf": ["--codebook", "nf", "--scale", "absmax"], "nf, mse": ["--codebook", "nf", "--scale", "mse"]}
    texts = {a.calib.stem.split(".")[0]: [a.calib]}
    if a.mix:
        texts["mix"] = [a.calib, *a.mix]
    for name, files in texts.items():
        calib = [x for f in files for x in ("--calib", str(f))] + ["--calib-windows", str(a.calib_windows), "--calib-ctx", str(a.calib_ctx)]
        nfl = ["--method", "nfl", *calib]
        w[f"flute bf16, {name}"] = [*nfl, "--learn-mode", "flute", "--learn-params", "bf16"]
        w[f"flute f32, {name}"] = [*nfl, "--learn-mode", "flute"]
        w[f"lutq nll, {name}"] = [*nfl, "--learn-objective", "nll"]
        w[f"lutq kl from absmax, {name}"] = [*nfl, "--scale", "absmax"]
        w[f"lutq kl, {name}"] = nfl
        w[f"control, {name}"] = [*nfl, "--learn-objective", "nll", "--learn-control"]
    return w


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path, help="takes the quantized models, which stay")
    p.add_argument("--lutq", required=True)
    p.add_argument("--bits", type=int, default=3)
    p.add_argument("--group", type=int, default=64)
    p.add_argument("--calib", type=Path, required=True)
    p.add_argument("--mix", type=Path, action="append")
    p.add_argument("--text", type=Path, action="append", required=True)
    p.add_argument("--calib-windows", type=int, default=128)
    p.add_argument("--calib-ctx", type=int, default=2048)
    p.add_argument("--windows", type=int, default=40, help="of each text, to evaluate on; 0 is all")
    p.add_argument("--device", default="auto")
    p.add_argument("--jobs", type=int, default=1, help="models to learn at a time")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)

    def run(*args: str) -> dict:
        r = subprocess.run([a.lutq, *args, "--quiet", "--json"], capture_output=True, text=True)
        if r.returncode:
            sys.exit(f"lutq {' '.join(args)}: {r.stderr.strip()}")
        return json.loads(r.stdout)

    def quantize(item: tuple[int, tuple[str, list[str]]]) -> dict:
        i, (_, options) = item
        out = a.work / f"{a.bits}-{i}"
        shutil.rmtree(out, ignore_errors=True)
        learned = ["--device", a.device] if "nfl" in options else []
        return run("quantize", str(a.model), str(out), "--bits", str(a.bits), "--group", str(a.group), *options, *learned)

    names = ways(a)
    with ThreadPoolExecutor(a.jobs) as pool:
        made = dict(zip(names, pool.map(quantize, enumerate(names.items()))))
    folders = [str(a.work / f"{a.bits}-{i}") for i in range(len(names))]
    windows = ["--windows", str(a.windows)] if a.windows else []
    found = {}
    with ThreadPoolExecutor(a.jobs) as pool:
        evaluate = lambda t: run("eval-ppl", *folders, "--against", str(a.model), "--text", str(t), "--device", a.device, *windows)
        for text, result in zip(a.text, pool.map(evaluate, a.text)):
            found[text.name] = dict(zip(names, result["results"]))

    def cell(r: dict) -> str:
        lo, hi = r["ln_ratio_ci"]
        return f"{r['ppl']:.2f} | {r['ln_ratio']:.3f} ({lo:.3f}..{hi:.3f}) | {r['kl_mean']:.4f} | {100 * r['top1']:.1f}"

    head = " | ".join(f"{t} PPL | ln ratio (95 %) | KL | top-1 %" for t in found)
    print(f"\n{a.model.name}, {a.bits} bits, group {a.group}; original: "
          + ", ".join(f"{t} {next(iter(r.values()))['reference_ppl']:.3f}" for t, r in found.items()), file=sys.stderr)
    print(f"\n| | {head} |\n|---|{'--:|---|--:|--:|' * len(found)}", file=sys.stderr)
    for name in names:
        print(f"| {name} | {' | '.join(cell(r[name]) for r in found.values())} |", file=sys.stderr)
    json.dump({"model": a.model.name, "bits": a.bits, "group": a.group, "made": made, "texts": found}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
