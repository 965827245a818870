#!/usr/bin/env python3
"""Has processes make parts of a model in one folder, and kills them at random: the merged files must be one process's.

    scripts/soak.py MODEL WORK --lutq ./lutq [--minutes 10] [--workers 8] [--seed 1] [--options '--codebook trellis --bits 2']

A first run by one process tells the files and its time. Then, round by round until the minutes are over, workers make a part
each, of a number of parts drawn anew now and then, and begin again when they are killed, which SIGKILL does after a random time.
Meanwhile

    one worker may write no file of more than a few kB, as if a disk of its own were full, and never finishes
    one worker's clock is wrong: files of the shared folder get times from 1970 to 2100
    what parts keep for each other of a text (--stream float) is damaged: a byte of it, or it is cut short
    with --fill (root alone) WORK is a small file system, which is full now and then for a moment
    as soon as all is there, or before, merges are begun, and killed as well

until a merge has come to its end. Nothing but the output may lie there then. One JSON object on stdout; the exit code is 3 when
something differs or is left behind. Needs nothing but Python. A clock that the program itself reads cannot be changed from
outside (Go asks the kernel without the C library, which libfaketime stands in for); it has no use for one but to print how
long a run took.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kill_resume import digest

FULL = 4 << 10  # bytes of a file that the worker with the full disk may write


class Round:
    """The processes that make one output."""

    def __init__(self, a: argparse.Namespace, out: Path, seed: int, whole: float) -> None:
        self.a, self.out, self.whole = a, out, whole
        self.seed = seed
        self.lock = threading.Lock()
        self.kills = self.refused = self.full = self.ended = self.harmed = 0
        self.merged = False
        self.problems: list[str] = []

    def command(self, *more: str) -> list[str]:
        a = self.a
        return [str(a.lutq.resolve()), "quantize", str(a.model), str(self.out), "--quiet", "--json", "--threads", "1", *shlex.split(a.options), *more]

    def start(self, *more: str, full: bool = False) -> subprocess.Popen:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))

        return subprocess.Popen(self.command(*more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limit if full else None)

    def wait(self, p: subprocess.Popen, patience: float) -> tuple[int, str]:
        """Kills a process that lives too long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = p.communicate(timeout=patience)
            return p.returncode, err
        p.kill()
        _, err = p.communicate()
        with self.lock:
            self.kills += p.returncode == -signal.SIGKILL
        return p.returncode, err

    def worker(self, n: int) -> None:
        rng = random.Random(self.seed * 1000 + n)
        full = n == self.a.workers - 1
        while not self.merged:
            of = rng.choice([self.a.workers] * 3 + [1, 2, 3])
            part = n % of + 1
            code, err = self.wait(self.start("--part", f"{part}/{of}", full=full), rng.uniform(0.02, 1.5 * max(self.whole, 1)))
            with self.lock:
                self.ended += code == 0
                if full and code not in (0, -signal.SIGKILL):
                    self.full += 1
                elif code not in (0, -signal.SIGKILL):
                    self.refused += 1
                    self.note(err)
            if code == 0:
                time.sleep(rng.uniform(0, 0.3))

    # What a worker may say: the output is there, the parts are gone with it, or the disk was full for a moment.
    EXPECTED = ("already exists", "is gone", "no space left", "not enough space", "another process is writing", "its mark is gone", "no part is finished")

    def note(self, err: str) -> None:
        line = [x for x in err.split("\n") if x.startswith("lutq: ")][-1:] or [err]  # behind notes
        line = line[0]
        if not any(e in line for e in self.EXPECTED):
            self.problems.append(line)

    def merger(self) -> None:
        rng = random.Random(self.seed * 1000 + 999)
        while not self.merged:
            time.sleep(rng.uniform(0, 0.2) * max(self.whole, 1))
            code, err = self.wait(self.start("--merge"), rng.uniform(0.02, 2))
            with self.lock:
                if code == 0 or self.out.exists() and not Path(f"{self.out}.parts").exists() and not Path(f"{self.out}.partial").exists():
                    self.merged = True
                elif code not in (3, -signal.SIGKILL):
                    self.refused += 1
                    self.note(err)

    def clocks(self) -> None:
        rng = random.Random(self.seed * 1000 + 998)
        parts = Path(f"{self.out}.parts")
        while not self.merged:
            time.sleep(0.05)
            with contextlib.suppress(OSError, ValueError):
                for path in rng.sample(sorted(parts.iterdir()), 1):
                    when = rng.uniform(0, 4.1e9)
                    os.utime(path, (when, when))

    def vandal(self) -> None:
        rng = random.Random(self.seed * 1000 + 996)
        parts = Path(f"{self.out}.parts")
        while not self.merged:
            time.sleep(rng.uniform(0, 0.3))
            with contextlib.suppress(OSError, ValueError, IndexError):
                with rng.choice(sorted(parts.glob("states-*"))).open("r+b") as f:
                    size = f.seek(0, 2)
                    f.seek(rng.randrange(size))
                    if rng.random() < 0.5:
                        f.truncate()
                    else:
                        byte = f.read(1)
                        f.seek(-1, 1)
                        f.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
                self.harmed += 1

    def filler(self) -> None:
        rng = random.Random(self.seed * 1000 + 997)
        ballast = self.out.parent / "ballast"
        while not self.merged:
            time.sleep(rng.uniform(0.2, 2))
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as f:
                while f.write(b"\0" * (1 << 16)):
                    pass
            time.sleep(rng.uniform(0, 0.5))
            ballast.unlink(missing_ok=True)

    def run(self) -> None:
        jobs = [threading.Thread(target=self.worker, args=(n,)) for n in range(self.a.workers)]
        jobs += [threading.Thread(target=self.merger), threading.Thread(target=self.clocks), threading.Thread(target=self.vandal)]
        if self.a.fill:
            jobs.append(threading.Thread(target=self.filler))
        for j in jobs:
            j.start()
        for j in jobs:
            j.join()


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", required=True, type=Path)
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--options", default="--preset fast", help="more flags for lutq, in one string")
    p.add_argument("--fill", metavar="SIZE", help="mount a file system of SIZE at WORK, such as 16m, and fill it now and then")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    single = a.work.with_name(a.work.name + "-single")
    shutil.rmtree(single, ignore_errors=True)
    begin = time.monotonic()
    command = [str(a.lutq.resolve()), "quantize", str(a.model), str(single), "--quiet", "--json", "--threads", "1", *shlex.split(a.options)]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    whole = time.monotonic() - begin
    want = digest(single)
    if a.fill:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={a.fill}", "lutq", str(a.work)], check=True)
    rounds, begin = [], time.monotonic()
    try:
        while time.monotonic() - begin < 60 * a.minutes:
            out = a.work / "out"
            r = Round(a, out, a.seed + len(rounds), whole)
            at = time.monotonic()
            r.run()
            rounds.append({
                "seconds": round(time.monotonic() - at, 1), "kills": r.kills, "ended": r.ended, "full": r.full, "refused": r.refused, "harmed": r.harmed,
                "same": digest(out) == want, "left_behind": sorted(x.name for x in a.work.iterdir() if x != out), "problems": sorted(set(r.problems)),
            })
            print(f"round {len(rounds)}: {rounds[-1]}", file=sys.stderr)
            shutil.rmtree(out)
    finally:
        if a.fill:
            subprocess.run(["umount", str(a.work)], check=True)
    shutil.rmtree(single)
    total = {k: sum(r[k] for r in rounds) for k in ("kills", "ended", "full", "refused", "harmed", "same")}
    clean = sum(not r["left_behind"] and not r["problems"] for r in rounds)
    print(json.dumps({"sha256": run["sha256"], "files": want, "one_process_seconds": round(whole, 2), "rounds": len(rounds), **total, "clean": clean, "each": rounds}))
    return 0 if total["same"] == clean == len(rounds) > 0 else 3


if __name__ == "__main__":
    sys.exit(main())
