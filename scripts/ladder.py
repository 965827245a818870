#!/usr/bin/env python3
"""The ladder of FLUTE's paper and what stands above it: KL of a model's quantized forms, in the domain of the calibration and out of it.

    scripts/ladder.py LUTQ MODEL WORK --name NAME --bits 3 4 --calib FILE... --text FILE... [--rows REGEX] >>quantize/ladder.csv

Each row of RUNGS is quantized once at each width and evaluated on every text, all of one width together, so that models are
compared on the same tokens. CSV goes to the standard output: model, bits, group, recipe, text, mean KL with the bounds of its
95 % interval over windows, bytes of the linear layers' codes, scales and tables; differences between pairs of rows of PAIRS go to the
standard error. Python's standard library alone.
"""

import argparse
import csv
import json
import pathlib
import re
import shutil
import subprocess
import sys

AWQ = ["--transform", "awq"]
BEFORE = ["--method", "gptq", "--calib-bos", "window", "--rescale=false"]  # as fitting was before 2026-11-25
RUNGS = {  # name: flags, and whether they read a text
    "int absmax": (["--codebook", "int", "--scale", "absmax"], False),
    "int absmax, awq": (["--codebook", "int", "--scale", "absmax", *AWQ], True),
    "nf absmax": (["--codebook", "nf", "--scale", "absmax"], False),
    "nf absmax, awq": (["--codebook", "nf", "--scale", "absmax", *AWQ], True),
    "nfl": (["--method", "nfl"], True),
    "nf searched": (["--codebook", "nf", "--scale", "mse"], False),
    "nf searched, awq": (["--codebook", "nf", "--scale", "mse", *AWQ], True),
    "js searched": (["--codebook", "js"], False),
    "js searched, awq": (["--codebook", "js", *AWQ], True),
    "js gptq": (["--codebook", "js", *BEFORE], True),
    "js gptq, awq": (["--codebook", "js", *BEFORE, *AWQ], True),
    "js gptq, BOS in half": (["--codebook", "js", "--method", "gptq", "--rescale=false"], True),
    "js gptq, BOS in half, scales again": (["--codebook", "js", "--method", "gptq"], True),
}
PAIRS = [(a + ", awq", a) for a in ("int absmax", "nf absmax", "nf searched", "js searched", "js gptq")] + [
    ("nfl", "nf absmax, awq"), ("nf absmax", "int absmax"), ("js gptq, BOS in half", "js gptq"), ("js gptq, BOS in half, scales again", "js gptq, BOS in half"),
]


def quantize(a, bits, flags, reads, out):
    """Quantizes and returns the bytes of the quantized layers."""
    command = [a.lutq, "quantize", a.model, out, "--bits", str(bits), "--group", a.group, "--force", "--json", "--quiet", *flags]
    if reads:
        command += ["--calib-windows", str(a.calib_windows), "--calib-ctx", str(a.ctx), "--device", a.device]
        for text in a.calib:
            command += ["--calib", text]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return sum(layer["bytes_out"] for layer in json.loads(done)["layers"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lutq")
    p.add_argument("model")
    p.add_argument("work")
    p.add_argument("--name", required=True)
    p.add_argument("--bits", type=int, nargs="+", default=[3, 4])
    p.add_argument("--group", default="64")
    p.add_argument("--calib", nargs="+", required=True)
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--calib-windows", type=int, default=64)
    p.add_argument("--windows", type=int, default=24)
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--device", default="cpu")
    p.add_argument("--rows", default="", help="of these alone")
    a = p.parse_args()
    out = csv.writer(sys.stdout)
    for bits in a.bits:
        rungs = [name for name in RUNGS if re.search(a.rows, name)]
        paths = {name: str(pathlib.Path(a.work) / re.sub(r"\W+", "-", f"{bits} {name}")) for name in rungs}
        size = {name: quantize(a, bits, *RUNGS[name], paths[name]) for name in rungs}
        for text in a.text:
            command = [a.lutq, "eval-ppl", *paths.values(), "--against", a.model, "--text", text, "--windows", str(a.windows), "--ctx", str(a.ctx), "--json", "--quiet", "--device", a.device]
            report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            of = {r["model"]: r for r in report["results"]}
            for name in rungs:
                r = of[paths[name]]
                out.writerow([a.name, bits, a.group, name, pathlib.Path(text).stem, *(f"{v:.4f}" for v in (r["kl_mean"], *r["kl_mean_ci"])), size[name]])
            sys.stdout.flush()
            for x, y in PAIRS:
                for pair in report.get("pairs", []):
                    if x not in paths or y not in paths or {pair["a"], pair["b"]} != {paths[x], paths[y]}:
                        continue
                    sign, base = (1 if pair["a"] == paths[x] else -1), of[paths[y]]["kl_mean"]
                    low, high = sorted(100 * sign * v / base for v in pair["kl_mean_difference_ci"])
                    mean = 100 * sign * pair["kl_mean_difference"] / base
                    print(f"{a.name} {bits} bits {pathlib.Path(text).stem}: {x} over {y}: {mean:+.1f} % ({low:+.1f} to {high:+.1f})", file=sys.stderr)
        for path in paths.values():
            shutil.rmtree(path)


if __name__ == "__main__":
    main()
