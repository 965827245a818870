#!/usr/bin/env python3
"""Kills lutq at random moments and runs the same command again: its files must always be the same.

    scripts/kill_resume.py MODEL WORK --lutq ./lutq [--trials 20] [--seed 1] [--options '--codebook js']
    scripts/kill_resume.py MODEL WORK --lutq ./lutq --learn TEXT [--trials 20] [--options '--method gptq']
    scripts/kill_resume.py CONTAINER WORK --lutq ./lutq --repack cuda [--trials 20]

A first run is left alone and tells the files, its time and its memory. Each trial sends SIGKILL after a
random part of that time to the command, as often as --kills says, and then lets it finish. In every other
trial an output is there and is replaced with --force: until then it must be there, whole. WORK takes the
output; nothing but the output may lie there in the end. One JSON object on stdout; the exit code is 3 when
something differs or is left behind. Needs nothing but Python.
"""

import argparse
import hashlib
import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path


def digest(folder: Path) -> str:
    """The SHA-256 of a folder's names and files."""
    h = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        h.update(f"{path.relative_to(folder)}\n".encode())
        with path.open("rb") as f:
            h.update(hashlib.file_digest(f, "sha256").digest())
    return h.hexdigest()


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", required=True, type=Path)
    p.add_argument("--trials", type=int, default=20)
    p.add_argument("--kills", type=int, default=1, help="SIGKILLs in a trial, before the run that is left alone")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--learn", metavar="TEXT", help="learn scales on TEXT")
    p.add_argument("--repack", metavar="TARGET", help="lay out tiles for TARGET instead")
    p.add_argument("--options", default="", help="more flags for lutq, in one string")
    a = p.parse_args()
    work = a.work / "killed"
    out = work / "out"
    command = [str(a.lutq.resolve()), "repack" if a.repack else "quantize", str(a.model), str(out), "--quiet", "--json"]
    if a.repack:
        command += ["--target", a.repack]
    if a.learn:
        command += ["--learn", "--calib", a.learn]
    command += shlex.split(a.options)

    def finish(*more: str) -> dict:
        return json.loads(subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout)

    def left_behind() -> list[str]:
        return sorted(path.name for path in work.iterdir() if path != out)

    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    begin = time.monotonic()
    run = finish()
    whole = time.monotonic() - begin
    want = digest(out)
    rng = random.Random(a.seed)
    trials = []
    kills = 0
    while len(trials) < a.trials:
        replace = len(trials) % 2 == 1
        if not replace:
            shutil.rmtree(out)
        after = []
        damaged = False
        while len(after) < a.kills:
            # A run that was killed with its output in place is followed by one that replaces it.
            force = ["--force"] if out.exists() else []
            wait = rng.uniform(0.02, 1.05) * whole
            process = subprocess.Popen([*command, *force], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(wait)
            process.kill()
            code = process.wait()
            if code not in (0, -9):
                sys.exit(f"exit code {code} of {shlex.join([*command, *force])}")
            if code == -9:
                after.append(round(wait, 3))
            if out.exists():
                damaged |= digest(out) != want
            elif replace:
                damaged = True
                break
        kills += len(after)
        got = finish(*(["--force"] if out.exists() else []))
        trials.append({
            "killed_after": after, "replaced": replace, "resumed_tensors": got.get("resumed"),
            "same": not damaged and digest(out) == want, "left_behind": left_behind(),
        })
        print(f"trial {len(trials)}: {trials[-1]}", file=sys.stderr)
    shutil.rmtree(work)
    same = sum(t["same"] for t in trials)
    clean = sum(not t["left_behind"] for t in trials)
    keys = ("sha256", "seconds", "peak_rss_bytes", "parameters", "bytes_in", "bytes_out", "bits_per_weight", "bytes")
    print(json.dumps({
        "run": {k: run[k] for k in keys if k in run}, "files": want,
        "kills": kills, "same": same, "clean": clean, "of": len(trials), "trials": trials,
    }))
    return 0 if same == clean == len(trials) else 3


if __name__ == "__main__":
    sys.exit(main())
