#!/usr/bin/env python3
"""Kills `lutq quantize` at random moments and resumes it: the digest must always be the same.

    scripts/kill_resume.py MODEL WORK --lutq ./lutq [--trials 20] [--seed 1] [--options '--codebook js']

A first run is left alone and tells the digest, its time and its memory. Each trial starts anew, is sent
SIGKILL after a random part of that time, and is then resumed with the same command. WORK takes the
output, which is deleted after each trial. One JSON object on stdout; the exit code is 3 when a digest differs.
Needs nothing but Python.
"""

import argparse
import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", required=True, type=Path)
    p.add_argument("--trials", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--options", default="", help="more flags for lutq quantize, in one string")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    out = a.work / "killed"
    command = [str(a.lutq), "quantize", str(a.model), str(out), "--quiet", "--json", *shlex.split(a.options)]

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(out.with_name(out.name + ".partial"), ignore_errors=True)

    def finish() -> dict:
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    clear()
    want = finish()
    rng = random.Random(a.seed)
    trials = []
    while len(trials) < a.trials:
        clear()
        after = rng.uniform(0.02, 0.95) * want["seconds"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(after)
        run.kill()
        if run.wait() == 0:
            continue  # it was quicker this time
        if out.exists():
            sys.exit(f"{out} is there although the run was killed")
        got = finish()
        trials.append({"killed_after": round(after, 2), "resumed_tensors": got["resumed"], "same": got["sha256"] == want["sha256"]})
        print(f"trial {len(trials)}: {trials[-1]}", file=sys.stderr)
    clear()
    same = sum(t["same"] for t in trials)
    keys = ("sha256", "seconds", "peak_rss_bytes", "parameters", "bytes_in", "bytes_out", "bits_per_weight")
    print(json.dumps({"run": {k: want[k] for k in keys}, "same": same, "of": len(trials), "trials": trials}))
    return 0 if same == len(trials) else 3


if __name__ == "__main__":
    sys.exit(main())
