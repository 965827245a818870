#!/usr/bin/env python3
"""Times a model in llama.cpp on the CPU and in lutq, in turns of a few seconds, on a machine that others use too.

    npm install --prefix DIR --ignore-scripts --omit=optional node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
    pip install gguf==0.19.0
    scripts/compare_llamacpp_cpu.py MODEL FILE.gguf TEXT --lutq ./lutq --libs DIR/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

MODEL is for lutq, FILE.gguf for llama.cpp, such as `lutq export MODEL OUT --to gguf` makes. tg writes tokens one by one behind 8 of
TEXT, the most likely each time; pp reads its first 512. llama.cpp has its repacked weights and flash attention, and picks the
library for the processor; LUTQ_ISA picks lutq's kernels.

Printed are ratios, lutq over llama.cpp, of tokens a second: the median over the rounds, and of the best of all rounds. With one thread there
is also that of the processor time for a token, llama.cpp over lutq, which other work does not lengthen much. lutq's is what 129 tokens take
more than one, and a prompt of 520 more than one of 8, by the process as a whole.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from ctypes import c_bool, c_int32, c_void_p
from pathlib import Path

import numpy as np
from compare_llamacpp_cuda import Library, Model, Texts


class CPUModel(Model):
    """A model with the buffers that llama.cpp's CPU code takes by itself."""

    def __init__(self, lib: Library, file: Path) -> None:
        self.lib, self.gpu = lib, False
        p = lib.llama.llama_model_default_params()
        self.handle = lib.llama.llama_model_load_from_file(str(file).encode(), p)
        if not self.handle:
            lib.fail(f"{file}: llama.cpp does not load it")
        self.vocab = lib.llama.llama_vocab_n_tokens(lib.llama.llama_model_get_vocab(self.handle))
        self.size = lib.llama.llama_model_size(self.handle)


def used(who: int) -> float:
    u = resource.getrusage(who)
    return u.ru_utime + u.ru_stime


class LlamaCpp:
    def __init__(self, lib: Library, model: CPUModel, ids: list[int], threads: int) -> None:
        self.texts, self.ids = Texts(model, 1, 1024), np.array(ids, np.int32)
        lib.llama.llama_set_n_threads.restype, lib.llama.llama_set_n_threads.argtypes = None, [c_void_p, c_int32, c_int32]
        lib.llama.llama_set_n_threads(self.texts.handle, threads, threads)

    def run(self, prompt: int, tokens: int) -> tuple[float, float, float]:
        """Prompt tokens a second, written ones, and the processor's seconds for both."""
        t = self.texts
        t.forget(0)
        t.wait()
        before, start = used(resource.RUSAGE_SELF), time.perf_counter()
        t.prompt(self.ids[:prompt])
        best = int(t.logits().argmax())
        middle = time.perf_counter()
        for i in range(tokens - 1):
            t.step(np.array([best], np.int32), prompt + i)
            row = t.lib.llama_get_logits_ith(t.handle, -1)
            best = int(np.ctypeslib.as_array(row, (t.model.vocab,)).argmax())
        end = time.perf_counter()
        return prompt / (middle - start), (tokens - 1) / (end - middle), used(resource.RUSAGE_SELF) - before


class Lutq:
    def __init__(self, binary: Path, model: Path, prompts: dict[int, str], threads: int, flags: list[str]) -> None:
        self.command = [binary.resolve(), "generate", model, "--device", "cpu", "--json", "--threads", str(threads), "--no-verify", *flags]
        self.prompts = prompts

    def run(self, prompt: int, tokens: int) -> tuple[float, float, float]:
        before = used(resource.RUSAGE_CHILDREN)
        command = [*self.command, "--prompt", self.prompts[prompt], "--max-tokens", str(tokens)]
        out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
        if (out["prompt_tokens"], out["tokens"]) != (prompt, tokens):
            raise SystemExit(f"lutq read {out['prompt_tokens']} tokens and wrote {out['tokens']}: want {prompt} and {tokens}")
        return out["prompt_tokens_per_second"], out["tokens_per_second"], used(resource.RUSAGE_CHILDREN) - before


def prompts(binary: Path, model: Path, text: Path, lengths: list[int]) -> tuple[list[int], dict[int, str]]:
    """The tokens of a text, and pieces of it with so many."""

    def tokens(file: Path) -> list[int]:
        run = subprocess.run([binary.resolve(), "tokenize", model, "--text", file, "--json"], stdout=subprocess.PIPE, check=True)
        return json.loads(run.stdout)["ids"]

    words, out = text.read_text().split(" ")[:2000], {}
    piece = Path(os.environ.get("TMPDIR", "/tmp")) / f"prompt-{os.getpid()}"
    try:
        for n in lengths:
            low, high = 0, len(words)
            while low < high:
                middle = (low + high + 1) // 2
                piece.write_text(" ".join(words[:middle]))
                low, high = (middle, high) if len(tokens(piece)) <= n else (low, middle - 1)
            some = " ".join(words[:low])
            piece.write_text(some)
            while (count := len(tokens(piece))) < n:
                some += " a"
                piece.write_text(some)
            if count != n:
                raise SystemExit(f"{text}: no beginning of {n} tokens")
            out[n] = some
        piece.write_text(" ".join(words))
        return tokens(piece)[: max(lengths)], out
    finally:
        piece.unlink(missing_ok=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("gguf", type=Path)
    p.add_argument("text", type=Path)
    p.add_argument("--lutq", type=Path, required=True)
    p.add_argument("--libs", type=Path, required=True)
    p.add_argument("--threads", default="2,1")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--flags", default="", help="more flags of lutq generate, such as '--head-bits 5'")
    a = p.parse_args()
    lib = Library(a.libs)
    lib.llama.llama_supports_gpu_offload.restype = c_bool
    model = CPUModel(lib, a.gguf)
    short, long, more = 8, 512, 128
    ids, texts = prompts(a.lutq, a.model, a.text, [short, long, long + short])
    print("| threads | test | tokens a second, median of rounds | best of rounds | processor time |\n|--:|---|--:|--:|--:|")
    for threads in map(int, a.threads.split(",")):
        theirs, ours = LlamaCpp(lib, model, ids, threads), Lutq(a.lutq, a.model, texts, threads, a.flags.split())
        theirs.run(short, 2)
        rates: dict[str, list[tuple[float, float]]] = {"tg128": [], "pp512": []}
        seconds: dict[str, list[tuple[float, float]]] = {"tg128": [], "pp512": []}
        for _ in range(a.rounds):
            runs = [[e.run(*what) for e in (theirs, ours)] for what in ((short, 1), (short, more + 1), (long, 1), (long + short, 1))]
            base, wrote, read, longer = runs
            rates["tg128"].append((wrote[0][1], wrote[1][1]))
            rates["pp512"].append((read[0][0], read[1][0]))
            seconds["tg128"].append(tuple(w[2] - b[2] for w, b in zip(wrote, base)))
            seconds["pp512"].append(tuple(r[2] - b[2] for r, b in zip(longer, base)))
        for test in rates:
            median = statistics.median(o / t for t, o in rates[test])
            best = max(o for _, o in rates[test]) / max(t for t, _ in rates[test])
            processor = "–"
            if threads == 1:
                processor = f"{statistics.median(t for t, _ in seconds[test]) / statistics.median(o for _, o in seconds[test]):.2f}x"
            print(f"| {threads} | {test} | {median:.2f}x | {best:.2f}x | {processor} |", flush=True)


if __name__ == "__main__":
    main()
