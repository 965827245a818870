#!/usr/bin/env python3
"""What text is best to fit weights to, and how much of it: one model, fitted to mixtures of texts, measured on texts that are in none of them.

    scripts/text_study.py MODEL WORK --lutq ./lutq --csv text.csv --bits 3 --bits 4 \\
        --mix wiki=wiki.valid.raw --mix wiki+stories=wiki.valid.raw,stories.txt --mix bundled=bundled --mix self=self --mix bundled+self=bundled,self \\
        --text books.txt --text wiki.test.raw --text code.txt --text scripts/texts/chat.txt:256

A mixture is what --calib takes, each part once. Every mixture, width and number of windows is one `lutq quantize --method gptq`, which stays in
WORK and is not made again. The models of a width are evaluated together against MODEL on each text (a text's windows have 512 tokens, or as many as
stand behind a colon), so that differences from the mixture --base at as many windows are paired. Code that is in no text to fit to:

    (cd $(go env GOROOT)/src && cat sort/sort.go bufio/scan.go strings/builder.go net/url/url.go container/list/list.go encoding/csv/reader.go text/template/exec.go time/format.go) | head -c 120000 > code.txt

The CSV has a line for each model and text; what it has of others stays. Seconds are those of the clock, and of all processors. Needs nothing but Python.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = ["model", "bits", "texts", "windows", "ctx", "text", "kl", "kl_low", "kl_high", "over_base", "difference_low", "difference_high", "ln_ratio", "seconds", "cpu_seconds", "device", "options"]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path, help="takes the quantized models, which stay")
    p.add_argument("--lutq", required=True)
    p.add_argument("--csv", type=Path, required=True)
    p.add_argument("--bits", action="append")
    p.add_argument("--codebook", default="js")
    p.add_argument("--mix", action="append", required=True, metavar="NAME=TEXT,TEXT")
    p.add_argument("--base", default="bundled", help="the mixture that others are compared with")
    p.add_argument("--calib-windows", default="32,64,128,256,512")
    p.add_argument("--calib-ctx", type=int, default=512)
    p.add_argument("--text", action="append", required=True, metavar="FILE[:CTX]")
    p.add_argument("--windows", type=int, default=24, help="of each text, to evaluate on")
    p.add_argument("--device", default="auto")
    p.add_argument("--options", default="", help="more of quantize, as '--seed 1'")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    mixes = {name: texts.split(",") for name, texts in (m.split("=", 1) for m in a.mix)}
    counts = [int(n) for n in a.calib_windows.split(",")]

    def run(*args: str) -> dict:
        r = subprocess.run([a.lutq, *args, "--quiet", "--json", "--device", a.device], capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(f"lutq {' '.join(args)}: {r.stderr.strip()}")
        return json.loads(r.stdout)

    def quantize(bits: str, name: str, n: int) -> tuple[Path, list[str]]:  # and the seconds that it took
        out = a.work / "-".join([bits, a.codebook, name, str(n), str(a.calib_ctx), *a.options.replace("-", "").split()])
        took = out.with_suffix(".seconds")
        if out.is_dir() and took.exists():
            return out, [*took.read_text().split(), ""][:2]
        texts = [x for t in mixes[name] for x in ("--calib", t)]
        begin, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run("quantize", str(a.model), str(out), "--force", "--bits", bits, "--codebook", a.codebook, "--method", "gptq", *texts,
            "--calib-windows", str(n), "--calib-ctx", str(a.calib_ctx), *a.options.split())
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.write_text(f"{time.monotonic() - begin:.1f} {now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime:.1f}")
        print(out.name, took.read_text(), file=sys.stderr)
        return out, took.read_text().split()

    rows: dict[tuple[str, ...], dict] = {}
    if a.csv.exists():
        with a.csv.open() as f:
            for r in csv.DictReader(f):
                rows[r["model"], r["bits"], r["texts"], r["windows"], r["ctx"], r["text"], r["options"]] = r
    for bits in a.bits or ["3"]:
        made = {}
        for n in counts:
            for name in mixes:
                try:
                    made[name, n] = quantize(bits, name, n)
                except RuntimeError as e:  # such as a text with too few windows
                    print(e, file=sys.stderr)
        for spec in a.text:
            file, _, ctx = spec.partition(":")
            got = run("eval-ppl", *(str(out) for out, _ in made.values()), "--against", str(a.model), "--text", file, "--windows", str(a.windows), "--ctx", ctx or "512")
            pairs = {}
            for q in got.get("pairs", []):
                d, low, high = q["kl_mean_difference"], *q["kl_mean_difference_ci"]
                pairs[q["a"], q["b"]] = d, low, high
                pairs[q["b"], q["a"]] = -d, -high, -low
            for (name, n), r in zip(made, got["results"]):
                base = made.get((a.base, n))
                d = pairs.get((r["model"], str(base[0]) if base else ""))
                scale = 0.0
                if d:
                    scale = r["kl_mean"] - d[0]  # the KL of the base
                low, high = r["kl_mean_ci"]
                rows[a.model.name, bits, name, str(n), str(a.calib_ctx), Path(file).name, a.options] = {
                    "model": a.model.name, "bits": bits, "texts": name, "windows": n, "ctx": a.calib_ctx, "text": Path(file).name,
                    "kl": f"{r['kl_mean']:.4f}", "kl_low": f"{low:.4f}", "kl_high": f"{high:.4f}",
                    "over_base": f"{1 + d[0] / scale:.3f}" if d else "", "difference_low": f"{d[1]:.4f}" if d else "", "difference_high": f"{d[2]:.4f}" if d else "",
                    "ln_ratio": f"{r['ln_ratio']:.4f}", "seconds": made[name, n][1][0], "cpu_seconds": made[name, n][1][1], "device": r["device"], "options": a.options,
                }
            with a.csv.open("w", newline="") as f:
                w = csv.DictWriter(f, COLUMNS, lineterminator="\n")
                w.writeheader()
                w.writerows(rows.values())
        texts = [Path(s.partition(":")[0]).name for s in a.text]
        print(f"\n{a.model.name}, {bits} bits: KL, and over that of {a.base}\n\n| windows | texts |", *(f" {t} |" for t in texts), " s |\n|--:|---|", "--:|" * (len(texts) + 1), sep="")
        for name, n in made:
            cells = [rows[a.model.name, bits, name, str(n), str(a.calib_ctx), t, a.options] for t in texts]
            print(f"| {n} | {name} |", *(f" {c['kl']} {c['over_base']} |" for c in cells), f" {cells[0]['seconds']} |", sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
