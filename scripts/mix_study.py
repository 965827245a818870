#!/usr/bin/env python3
"""Measures what mixed widths gain at the same bytes, and how near the predicted divergence comes.

For each case it quantizes a model with one width and with mixed ones in as many bytes, evaluates both on texts that nothing was
fitted to, paired window by window, and prints a line of CSV: quantize/mix.csv is made of these.

    scripts/mix_study.py --lutq ./lutq --work DIR MODEL --case 3,js,gptq --case 3,trellis,rtn ...
        --calib wiki.valid.raw --calib tinystories.txt --text books.txt --text wiki.test.raw > mix.csv

A case is bits, codebook and method. Bits that one width cannot have, such as 3.5 of tables, are mixed alone.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

HEAD = "model,bits,codebook,method,mixed,text,linear_bits,bytes,kl,kl_low,kl_high,over_uniform,over_low,over_high,predicted_kl,held_kl"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", type=pathlib.Path)
    a.add_argument("--lutq", default="lutq")
    a.add_argument("--work", type=pathlib.Path, required=True)
    a.add_argument("--case", action="append", required=True)
    a.add_argument("--calib", action="append", required=True)
    a.add_argument("--text", action="append", type=pathlib.Path, required=True)
    a.add_argument("--windows", type=int, default=24)
    a.add_argument("--calib-windows", type=int, default=64)
    a.add_argument("--ctx", type=int, default=512)
    a.add_argument("--device", default="cpu")
    a.add_argument("--extra", default="", help="more flags for quantize")
    a.add_argument("--no-header", action="store_true")
    o = a.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    if not o.no_header:
        print(HEAD, flush=True)

    def run(*args):
        p = subprocess.run([o.lutq, *map(str, args), "--json"], capture_output=True, text=True)
        if p.returncode:
            sys.exit(f"{' '.join(map(str, args))}\n{p.stderr}")
        return json.loads(p.stdout)

    text = [x for c in o.calib for x in ("--calib", c)] + ["--calib-windows", o.calib_windows, "--calib-ctx", o.ctx, "--device", o.device]
    for case in o.case:
        bits, codebook, method = case.split(",")
        flags = ["--bits", bits, "--method", method, *(["--codebook", codebook] if codebook != "auto" else []), *o.extra.split()]
        whole = float(bits) == int(float(bits)) or codebook == "trellis" and float(bits) * 2 == int(float(bits) * 2)
        runs = []
        if whole:
            runs.append((False, run("quantize", o.model, o.work / "uniform", "--force", *flags, *(text if method == "gptq" else []))))
        runs.append((True, run("quantize", o.model, o.work / "mixed", "--force", *flags, *(["--mix"] if whole else []), *text)))
        outs = [o.work / ("mixed" if mixed else "uniform") for mixed, _ in runs]
        for t in o.text:
            e = run("eval-ppl", *outs, "--against", o.model, "--text", t, "--windows", o.windows, "--ctx", o.ctx, "--device", o.device)
            results = e.get("results", [e])
            uniform = results[0]["kl_mean"]
            pair = next((p for p in e.get("pairs", [])), None)
            for (mixed, q), r in zip(runs, results):
                low, high = r.get("kl_mean_ci", [0, 0])
                over = over_low = over_high = ""
                if mixed and pair:
                    over = f"{r['kl_mean'] / uniform:.4f}"
                    c = pair["kl_mean_difference_ci"] if pair["a"].endswith("mixed") else [-x for x in reversed(pair["kl_mean_difference_ci"])]
                    over_low, over_high = f"{1 + c[0] / uniform:.4f}", f"{1 + c[1] / uniform:.4f}"
                m = q.get("mix") or {}
                print(",".join(map(str, [
                    o.model.name, bits, codebook, method, int(mixed), t.name, f"{q['linear_bits_per_weight']:.4f}", q["bytes_out"],
                    f"{r['kl_mean']:.5f}", f"{low:.5f}", f"{high:.5f}", over, over_low, over_high,
                    f"{m['predicted_kl']:.5f}" if m else "", f"{m['measured_kl']:.5f}" if "measured_kl" in m else "",
                ])), flush=True)
        for out in outs:
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
