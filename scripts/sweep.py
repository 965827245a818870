#!/usr/bin/env python3
"""One model at every width and group size: its bytes, perplexity and divergence, as a CSV file and a table.

    scripts/sweep.py MODEL WORK --lutq ./lutq --text wiki.test.raw [--bits 2,3,4,5] [--groups 32,64,128,256,row] [-- --method gptq --calib wiki.valid.raw]

What stands behind -- goes to every `lutq quantize`. A point is one `lutq quantize` and one `lutq eval-ppl --against MODEL`, and
a line of WORK/sweep.csv once it is there: interrupted or run again with more points, the same command goes on with those that are
missing. Other texts, windows or options are another sweep, and refused in the same WORK. Quantized models are deleted when
they are measured, unless --keep is given. A Markdown table of mean divergence (KL) on stdout. Needs nothing but Python.
"""

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

from lutq_json import lutq, own_and_passed

COLUMNS = ["bits", "group", "bits_per_weight", "bytes", "error", "ppl", "ppl_stderr", "reference_ppl", "ln_ratio", "kl_mean", "kl_median", "kl_p99", "top1"]


def measured(path: Path) -> dict[tuple[str, str], dict]:
    """The points that are there. A line that a kill has cut short is none."""
    if not path.exists():
        return {}
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = [r for r in csv.DictReader(whole) if None not in r.values() and None not in r]
    return {(r["bits"], r["group"]): r for r in rows}


def write(path: Path, rows: list[dict]) -> None:
    part = path.with_suffix(".partial")
    with part.open("w", newline="") as f:
        w = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        w.writeheader()
        w.writerows(rows)
    part.replace(path)


def settle(path: Path, settings: dict) -> None:
    """Keeps the settings of a sweep, and ends where there are others."""
    if path.exists() and (old := json.loads(path.read_text())) != settings:
        differ = ", ".join(k for k in settings if old.get(k) != settings[k])
        sys.exit(f"sweep: {path.parent} has a sweep with other settings ({differ}): name another folder")
    path.write_text(json.dumps(settings, indent=2) + "\n")


def main() -> int:
    own, options = own_and_passed(sys.argv[1:])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path, help="takes sweep.csv and the quantized model at hand")
    p.add_argument("--lutq", required=True)
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--bits", default="2,3,4,5")
    p.add_argument("--groups", default="32,64,128,256,row")
    p.add_argument("--windows", type=int, default=0, help="of the text (default 0: all)")
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--device", default="auto")
    p.add_argument("--keep", action="store_true", help="keep the quantized models")
    a = p.parse_args(own)
    a.work.mkdir(parents=True, exist_ok=True)
    settle(
        a.work / "settings.json",
        {"model": str(a.model.resolve()), "text": str(a.text.resolve()), "windows": a.windows, "ctx": a.ctx, "options": options},
    )
    bits, groups, table = a.bits.split(","), a.groups.split(","), a.work / "sweep.csv"
    rows = measured(table)
    for b in bits:
        for g in groups:
            if (b, g) in rows:
                continue
            print(f"sweep: {b} bits, groups of {g}", file=sys.stderr)
            out = a.work / f"{b}bit-{g}"
            # What was quantized before an interruption is there whole, and --force replaces it with the same.
            q = lutq(a.lutq, "quantize", str(a.model), str(out), "--bits", b, "--group", g, "--force", *options)
            e = lutq(
                a.lutq, "eval-ppl", str(out), "--against", str(a.model), "--text", str(a.text),
                "--windows", str(a.windows), "--ctx", str(a.ctx), "--device", a.device,
            )  # fmt: skip
            values = {"bits": b, "group": g, "bytes": q["bytes_out"], **q, **e}
            rows[b, g] = {c: values[c] for c in COLUMNS}
            write(table, list(rows.values()))
            if not a.keep:
                shutil.rmtree(out)
    print("| bits | " + " | ".join(f"group {g}" for g in groups) + " |\n|--:|" + "--:|" * len(groups))
    for b in bits:
        print(f"| {b} | " + " | ".join(f"{float(rows[b, g]['kl_mean']):.4f} ({float(rows[b, g]['bits_per_weight']):.2f} bits)" for g in groups) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
