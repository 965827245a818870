#!/usr/bin/env python3
"""What each preset makes of each model at each width: bytes, seconds, and divergence on each text, as lines of a CSV file.

    scripts/presets.py OUT.csv --lutq ./lutq --model DIR... --text FILE... [--bits 2,3,4] [--presets fast,good,best] [--device cuda] [-- --calib-windows 256]

What stands behind -- goes to every `lutq quantize`. Texts should be in no calibration: WikiText-2's test text, books. A line is
written once it is there, and what is there is not run again. Models are named by their folders. Needs nothing but Python.
"""

import argparse
import csv
import sys
import tempfile
from pathlib import Path

from lutq_json import lutq, own_and_passed

COLUMNS = ["model", "preset", "bits", "linear_bits", "bytes", "seconds", "text", "kl", "kl_low", "kl_high", "ppl", "reference_ppl", "top1"]


def device(a: argparse.Namespace, preset: str) -> list[str]:
    return [] if preset == "fast" else ["--device", a.device]  # which fast does not read


def main() -> int:
    own, options = own_and_passed(sys.argv[1:])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--lutq", required=True)
    p.add_argument("--model", type=Path, nargs="+", required=True)
    p.add_argument("--text", type=Path, nargs="+", required=True)
    p.add_argument("--bits", default="2,3,4")
    p.add_argument("--presets", default="fast,good,best")
    p.add_argument("--windows", default="24", help="of a text")
    p.add_argument("--ctx", default="512", help="tokens of a window")
    p.add_argument("--device", default="auto")
    a = p.parse_args(own)

    done = set()
    if a.out.exists():
        done = {(r["model"], r["preset"], r["bits"]) for r in csv.DictReader(a.out.open())}
    else:
        a.out.write_text(",".join(COLUMNS) + "\n")
    for model in a.model:
        for bits in a.bits.split(","):
            for preset in a.presets.split(","):
                if (model.name, preset, bits) in done:
                    continue
                with tempfile.TemporaryDirectory() as work:
                    out = f"{work}/{preset}"
                    q = lutq(a.lutq, "quantize", str(model), out, "--preset", preset, "--bits", bits, *device(a, preset), *options)
                    rows = []
                    for text in a.text:
                        e = lutq(a.lutq, "eval-ppl", out, "--against", str(model), "--text", str(text), "--windows", a.windows, "--ctx", a.ctx, "--device", a.device)
                        low, high = e["kl_mean_ci"]
                        rows.append([model.name, preset, bits, round(q["linear_bits_per_weight"], 3), q["bytes_out"], round(q["seconds"], 1), text.name,
                                     e["kl_mean"], low, high, e["ppl"], e["reference_ppl"], e["top1"]])
                with a.out.open("a", newline="") as f:
                    csv.writer(f, lineterminator="\n").writerows(rows)
                print(*rows[0], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
