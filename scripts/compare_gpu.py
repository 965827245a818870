#!/usr/bin/env python3
r"""Times Y = X·Ŵᵀ on an NVIDIA GPU: cuBLAS in float16, bitsandbytes, Humming or EXL3, and lutq in one run.

    scripts/compare_gpu.py --shapes 28672x4096,8192x8192 --bits 4,3,2 --m 1,2,4,8,16 --lutq ./lutq

The same protocol for all: a ring of different weights of at least four times the L2 cache, so that every
call reads its weights from memory; at least 64 calls over whole rounds of that ring in one CUDA graph, or
where M is large as many as make 16e12 operations, behind at least 64 that are not timed (lutq keeps to 64);
the median of at least 20 replays divided by the calls, with the gaps between kernels in it. The kernels
of one shape and M take turns, one replay each. Weights and activations are fresh normal numbers; all weights
of a ring multiply the same X, which stays in the L2 cache as activations do in a decoder.

    cuBLAS     torch.mm in float16
    bnb NF4    bitsandbytes.matmul_4bit, NormalFloat, float32 scales of blocks of 64
    Humming    humming-kernels: uniform integers, symmetric, float16 scales of --group columns, under its own
               heuristics, not tuned
    EXL3       exllamav3's kernel by random rings of its codebook mul1, which rotates X before and Y behind in one launch; for
               --kind trellis, and only cuBLAS beside it
    read       a Triton kernel that only reads as many bytes as codes and float16 scales have, in the best of
               four block sizes; plain launches
    lutq       `lutq bench --device cuda`, which follows the same protocol by itself; it runs between the two
               halves of the others' replays, and its own times of cuBLAS and of reading stand beside; the
               time to prepare X, which the step before spares it in a model, is added; against
               bitsandbytes, give --group 64

Before the timing, the results are poisoned and computed by the same graph: all must be finite, and those of
the first and last weights of a ring near the float64 product of the weights as dequantized here from the
peer's own codes and scales. The exit code is 3 when one is off by more than --tolerance. What is not
installed or does not run is left out, with a line that says so.

Needs PyTorch with CUDA and the packages of requirements-gpu.txt. Humming compiles its kernels when it first
runs them and keeps them in ~/.humming.

A machine without a network that has PyTorch 2.11 for CUDA 13, Triton, a CUDA toolkit and the smaller packages that
requirements-gpu.txt names wants one wheel, of .6 MB, carried there (and for bitsandbytes one more, of 43 MB):

    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
        -d wheels humming-kernels==0.1.19 exllamav3==1.6.5
    python3 -m pip install -q --no-index --no-deps --target /tmp/site wheels/*.whl           # there, and
    PYTHONPATH=/tmp/site scripts/compare_gpu.py --shapes 8192x8192,28672x4096 --bits 4 --group 128 --replays 20 \
        --m 32,64,128,256,512,1024,2048,4096,8192 --lutq ./lutq --json rows.json
"""

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BNB_BLOCK = 64
CALLS = 64
WORK = 16e12  # operations of a graph that make it long enough with fewer calls, some 20 ms of an H200
STARTED = time.perf_counter()


@dataclass
class Arm:
    """One kernel over its ring of weights."""

    name: str
    bits: int
    group: int | None
    bytes: int  # read by a call, without X
    slots: int  # of the ring
    call: Callable[[int, torch.Tensor], torch.Tensor]  # Y of a slot's weights and X
    weight: Callable[[int], torch.Tensor] | None = None  # a checked slot's weights in float64


@dataclass
class Timed:
    """One kernel at one M, captured in a graph."""

    arm: Arm
    m: int
    calls: int
    graph: torch.cuda.CUDAGraph
    rel_err: float | None  # None is no number
    x: torch.Tensor  # which the graph knows only by its address
    us: list[float] = field(default_factory=list)


class Skipped(Exception):
    """Why a kernel is left out."""


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Skipped(f"{package} is not installed") from None


def slots_of(size: int, ring_bytes: int) -> int:
    return max(2, math.ceil(ring_bytes / size))


def checked(slots: int) -> set[int]:
    return {0, slots - 1}


def random_weight(n: int, k: int, g: torch.Generator) -> torch.Tensor:
    return torch.randn(n, k, dtype=torch.float16, device="cuda", generator=g).mul_(0.02)


def cublas(n: int, k: int, ring_bytes: int, g: torch.Generator) -> Arm:
    size = 2 * n * k
    ring = [random_weight(n, k, g) for _ in range(slots_of(size, ring_bytes))]
    return Arm(
        name="cuBLAS fp16",
        bits=16,
        group=None,
        bytes=size,
        slots=len(ring),
        call=lambda i, x: torch.mm(x, ring[i].t()),
        weight=lambda i: ring[i].double(),
    )


def bitsandbytes(n: int, k: int, ring_bytes: int, g: torch.Generator) -> Arm:
    version("bitsandbytes")
    import bitsandbytes as bnb
    import bitsandbytes.functional as F

    size = n * k // 2 + n * k // BNB_BLOCK * 4
    ring = []
    for _ in range(slots_of(size, ring_bytes)):
        ring.append(F.quantize_4bit(random_weight(n, k, g), blocksize=BNB_BLOCK, quant_type="nf4"))

    def weight(i: int) -> torch.Tensor:
        packed, state = ring[i]
        packed = packed.view(n, k // 2)
        codes = torch.stack([packed >> 4, packed & 15], dim=-1).view(n, k // BNB_BLOCK, BNB_BLOCK)
        table = F.get_4bit_type("nf4", device="cuda").double()
        return (table[codes.int()] * state.absmax.double().view(n, -1, 1)).view(n, k)

    return Arm(
        name=f"bnb NF4 g{BNB_BLOCK}",
        bits=4,
        group=BNB_BLOCK,
        bytes=size,
        slots=len(ring),
        call=lambda i, x: bnb.matmul_4bit(x, ring[i][0], quant_state=ring[i][1]),
        weight=weight,
    )


def humming(n: int, k: int, bits: int, group: int, ms: list[int], ring_bytes: int, g: torch.Generator) -> Arm:
    version("humming-kernels")
    from humming import ops
    from humming.layer import HummingLayer
    from humming.schema import HummingWeightSchema
    from humming.tune import get_heuristics_config

    slots = slots_of(n * k * bits // 8 + n * k // group * 2, ring_bytes)
    ring, kept = [], {}
    for i in range(slots):
        with torch.device("cuda"):
            layer = HummingLayer(
                shape_n=n,
                shape_k=k,
                weight_config={"dtype": f"int{bits}", "group_size": group},
                torch_dtype=torch.float16,
            )
        codes = HummingWeightSchema.quant_tensor(random_weight(n, k, g), layer.weight_schema, torch.float16)
        if i in checked(slots):
            kept[i] = codes
        layer.load_from_tensors(codes)
        layer.transform()
        ring.append(layer)

    # The layer's own choice for every M, cut down to those that will be asked for: each entry is compiled, all at
    # once. The launcher first looks up one row, whatever M is, so the first entry has to hold for that too.
    entries = [e for e in get_heuristics_config(ring[0].humming_config) if any(e[0] < m <= e[1] for m in ms)]
    table = json.dumps([[0, *entries[0][1:]], *entries[1:]])

    def weight(i: int) -> torch.Tensor:
        codes = ops.unpack_weight(kept[i]["weight"], bits).double() - (1 << (bits - 1))
        scales = kept[i]["weight_scale"].double()
        return (codes.view(n, -1, group) * scales.view(n, -1, 1)).view(n, k)

    return Arm(
        name=f"Humming int{bits}",
        bits=bits,
        group=group,
        bytes=sum(t.nbytes for t in (ring[0].weight, ring[0].weight_scale)),
        slots=slots,
        call=lambda i, x: ring[i](x, tuning_config=table),
        weight=weight,
    )


def exllama() -> ModuleType:
    """exllamav3's extension, which is compiled for this GPU, in several minutes on 16 processors, without what its package asks for besides."""
    version("exllamav3")
    files = importlib.metadata.distribution("exllamav3").locate_file("exllamav3")
    for name in ("exllamav3", "exllamav3.util"):  # whose own __init__ import whole models
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(Path(files, *name.split(".")[1:]))]
    major, minor = torch.cuda.get_device_capability()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}")
    return importlib.import_module("exllamav3.ext").exllamav3_ext


def exl3(n: int, k: int, bits: int, ring_bytes: int, g: torch.Generator) -> Arm:
    ext = exllama()
    size = n * k * bits // 8
    slots = slots_of(size, ring_bytes)
    shape = (k // 16, n // 16, 16 * bits)
    ring = [torch.randint(-32768, 32768, shape, dtype=torch.int16, device="cuda", generator=g) for _ in range(slots)]
    suh, svh = (torch.randn(c, device="cuda", generator=g).sign().half() for c in (k, n))

    def call(i: int, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape[0], n, dtype=torch.float16, device="cuda")
        ext.exl3_gemm(x, ring[i], y, suh, torch.empty_like(x), svh, -1, False, True, 0)
        return y

    return Arm(name=f"EXL3 {bits} bit", bits=bits, group=None, bytes=size + 2 * (n + k), slots=slots, call=call)


if triton:

    @triton.jit
    def add_up(src, out, words, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0), tl.sum(tl.load(src + at, mask=at < words, other=0)))


def read_only(size: int, bits: int, group: int, ring_bytes: int, g: torch.Generator) -> Arm:
    version("triton")
    words = size // 4
    ring = [
        torch.randint(-(1 << 31), 1 << 31, (words,), dtype=torch.int32, device="cuda", generator=g)
        for _ in range(slots_of(size, ring_bytes))
    ]

    def call(block: int, warps: int, i: int) -> torch.Tensor:
        grid = math.ceil(words / block)
        out = torch.empty(grid, dtype=torch.int32, device="cuda")
        add_up[(grid,)](ring[i], out, words, BLOCK=block, num_warps=warps)
        return out

    def trial(block: int, warps: int) -> float:
        graph, calls, _ = capture(len(ring), CALLS, lambda i: call(block, warps, i))
        for _ in range(2):
            took = replay(graph)
        torch.cuda.synchronize()
        return took[0].elapsed_time(took[1]) / calls

    best = min(((2048, 4), (4096, 4), (4096, 8), (8192, 8)), key=lambda v: trial(*v))
    for i in checked(len(ring)):
        got, want = call(*best, i).sum().item(), ring[i].sum().item()
        if (got - want) % (1 << 32):
            raise Skipped("the kernel that only reads did not read everything")
    return Arm(
        name=f"read {bits} bit",
        bits=bits,
        group=group,
        bytes=size,
        slots=len(ring),
        call=lambda i, x: call(*best, i),
    )


def capture(slots: int, least: int, call: Callable[[int], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, int, dict]:
    """A graph of whole rounds of the ring, at least so many calls; those calls; and the results of the last round."""
    calls = slots * math.ceil(least / slots)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(slots, 3)):
            call(i)
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), {}
    with torch.cuda.graph(graph):
        for i in range(calls):
            out[i % slots] = call(i % slots)
    return graph, calls, out


def replay(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    return start, end


def prepare(arm: Arm, m: int, n: int, k: int, g: torch.Generator) -> Timed:
    x = torch.randn(m, k, dtype=torch.float16, device="cuda", generator=g)
    # What has no weights to check multiplies nothing, and takes no longer with more rows.
    least = min(CALLS, math.ceil(WORK / (2 * m * n * k))) if arm.weight else CALLS
    graph, calls, out = capture(arm.slots, least, lambda i: arm.call(i, x))
    worst = 0.0
    if arm.weight:
        for y in out.values():
            y.fill_(math.nan)
        graph.replay()
        for i in checked(arm.slots):
            want = x.double() @ arm.weight(i).t()
            worst = max(worst, ((out[i].double() - want).norm() / want.norm()).item())
        if not all(y.isfinite().all() for y in out.values()):
            worst = None
    return Timed(arm, m, calls, graph, worst, x)


def measure(timed: list[Timed], replays: int) -> None:
    """Replays in turns. All are queued before the first has ended, so that no start waits for the host."""
    if not timed:
        return
    # Turns that are not timed, of as many calls: under long work the clock first falls to what the GPU can hold.
    for _ in range(max(math.ceil(CALLS / t.calls) for t in timed)):
        for t in timed:
            t.graph.replay()
    events = [[replay(t.graph) for t in timed] for _ in range(replays)]
    torch.cuda.synchronize()
    for turn in events:
        for t, (start, end) in zip(timed, turn, strict=True):
            t.us.append(start.elapsed_time(end) * 1000 / t.calls)


def run_lutq(args: argparse.Namespace, n: int, k: int) -> list[dict]:
    """Rows of `lutq bench`, one per width and M."""
    command = [args.lutq, "bench", "--device", "cuda", "--shapes", f"{n}x{k}", "--dtype", "f16", "--json"]
    command += ["--bits", ",".join(map(str, args.bits)), "--m", ",".join(map(str, args.m))]
    command += ["--kind", args.kind] if args.kind == "trellis" else ["--group", str(args.group)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Skipped(str(e)) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.lstrip().startswith("hint:")]
        raise Skipped(f"exit code {done.returncode}: {said[-1] if said else 'no message'}")
    try:
        return json.loads(done.stdout)["rows"]
    except (ValueError, KeyError) as e:
        raise Skipped(f"unexpected output: {e!r}") from None


def row_of(n: int, k: int, t: Timed) -> dict:
    us = statistics.median(t.us)
    return {
        "n": n,
        "k": k,
        "m": t.m,
        "kernel": t.arm.name,
        "bits": t.arm.bits,
        "group": t.arm.group,
        "us": us,
        "us_min": min(t.us),
        "us_p90": statistics.quantiles(t.us, n=10)[-1],
        "gb_per_s": t.arm.bytes / us / 1e3,
        "bytes": t.arm.bytes,
        "ring": t.arm.slots,
        "calls": t.calls,
        "replays": len(t.us),
        "rel_err": t.rel_err,
    }


def rows_of_lutq(rows: list[dict]) -> list[dict]:
    """lutq's rows in the keys of the others, each with the times of cuBLAS and of reading beside it.

    Others read X row by row, so what lutq takes to prepare it is added.
    """
    out = []
    for r in rows:
        same = {key: r[key] for key in ("n", "k", "m")}
        us = r["us"] + r.get("prepare_us", 0)
        out.append({**r, "us": us, "kernel": f"lutq {r['bits']} bit", "variant": r["kernel"]})
        out.append({**same, "kernel": f"read {r['bits']} bit, by lutq", "bits": r["bits"], "us": r["read_only_us"]})
        out.append({**same, "kernel": "cuBLAS fp16, by lutq", "bits": 16, "us": r["dense_us"]})
    return out


def shape_rows(args: argparse.Namespace, n: int, k: int, skip: Callable[[str, Exception], None]) -> list[dict]:
    g = torch.Generator("cuda").manual_seed(args.seed)
    makers = [("cuBLAS", lambda: cublas(n, k, args.ring, g))]
    if 4 in args.bits and args.kind == "lut":
        makers.append(("bitsandbytes", lambda: bitsandbytes(n, k, args.ring, g)))
    for bits in args.bits:
        if args.kind == "trellis":
            makers.append((f"EXL3 {bits} bit", lambda b=bits: exl3(n, k, b, args.ring, g)))
            continue
        size = n * k * bits // 8 + n * k // args.group * 2
        makers.append((f"Humming int{bits}", lambda b=bits: humming(n, k, b, args.group, args.m, args.ring, g)))
        makers.append((f"read {bits} bit", lambda b=bits, s=size: read_only(s, b, args.group, args.ring, g)))

    timed: dict[int, list[Timed]] = {m: [] for m in args.m}
    for name, make in makers:
        # A peer is free to refuse a shape in any way it likes; the others are still worth timing.
        try:
            arm = make()
            for m in args.m:
                timed[m].append(prepare(arm, m, n, k, g))
            tell(f"{n}x{k}: {name} prepared")
        except Exception as e:  # noqa: BLE001
            skip(f"{name} at {n}x{k}", e)

    half = math.ceil(args.replays / 2)
    for m in args.m:
        measure(timed[m], half)
    tell(f"{n}x{k}: half of the replays done")
    ours = []
    if args.lutq:
        try:
            ours = rows_of_lutq(run_lutq(args, n, k))
            tell(f"{n}x{k}: lutq done")
        except Skipped as e:
            skip(f"lutq at {n}x{k}", e)
    for m in args.m:
        measure(timed[m], half)
    return [row_of(n, k, t) for m in args.m for t in timed[m]] + ours


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * 2 + ["--:"] * (len(head) - 2), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(x: float | None) -> str:
    if x is None:
        return ""
    return f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}"


def tables(rows: list[dict], args: argparse.Namespace) -> str:
    """Times and errors of every kernel, then how many times faster lutq is than each."""
    cells: dict[tuple[str, str], dict[int, dict]] = {}
    for r in rows:
        cells.setdefault((f"{r['n']}x{r['k']}", r["kernel"]), {})[r["m"]] = r
    times, ratios = [], []
    for (shape, kernel), by_m in cells.items():
        errors = [r.get("rel_err", 0.0) for r in by_m.values()]
        worst = "no number" if None in errors else f"{max(errors):.1e}" if max(errors) else ""
        times.append([shape, kernel, *(number(by_m[m]["us"]) if m in by_m else "" for m in args.m), worst])
    for shape in dict.fromkeys(s for s, _ in cells):
        for bits in args.bits:
            ours = cells.get((shape, f"lutq {bits} bit"), {})
            against = ["cuBLAS fp16", f"Humming int{bits}", f"EXL3 {bits} bit", f"read {bits} bit", f"read {bits} bit, by lutq"]
            if bits == 4:
                against.insert(2, f"bnb NF4 g{BNB_BLOCK}")
            for other in against:
                theirs = cells.get((shape, other), {})
                if ours and theirs:
                    both = [theirs[m]["us"] / ours[m]["us"] if m in ours and m in theirs else None for m in args.m]
                    ratios.append([shape, f"{other} / lutq {bits} bit", *map(number, both)])
    ms = [str(m) for m in args.m]
    out = "Microseconds a call, by M:\n\n" + table(["NxK", "kernel", *ms, "rel. error"], times)
    if ratios:
        out += "\nRatios of those times:\n\n" + table(["NxK", "ratio", *ms], ratios)
    return out


def tell(what: str) -> None:
    """A line of how far it is, with the seconds since the packages were loaded."""
    print(f"compare_gpu.py: {time.perf_counter() - STARTED:4.0f} s: {what}", file=sys.stderr, flush=True)


def clock() -> str:
    """SM clock and temperature as they are now."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown"


def numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise ValueError
    return values


def shapes(text: str) -> list[tuple[int, int]]:
    out = []
    for part in text.split(","):
        n, k = map(int, part.split("x"))
        if n < 1 or k < 1:
            raise ValueError
        out.append((n, k))
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--shapes", type=shapes, default="28672x4096,8192x8192", metavar="NxK,…", help="(default %(default)s)"
    )
    p.add_argument("--bits", type=numbers, default="4", metavar="LIST", help="widths of a code (default 4)")
    p.add_argument("--kind", choices=("lut", "trellis"), default="lut", help="weights of lutq (default lut)")
    p.add_argument("--group", type=int, default=128, help="columns that share a scale, not bitsandbytes' (default 128)")
    p.add_argument("--m", type=numbers, default="1,2,4,8,16", metavar="LIST", help="rows of X (default %(default)s)")
    p.add_argument("--replays", type=int, default=30, help="timed replays of each graph, at least 20 (default 30)")
    p.add_argument("--ring-mb", type=int, default=0, metavar="MB", help="least size of a ring (default 4 times the L2)")
    p.add_argument("--lutq", metavar="BINARY", help="time lutq too")
    p.add_argument("--timeout", type=int, default=600, metavar="S", help="seconds for lutq and one shape (default 600)")
    p.add_argument("--tolerance", type=float, default=2e-3, help="largest relative error accepted (default 2e-3)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    args = p.parse_args()
    if args.replays < 20:
        p.error("--replays: fewer than 20 do not make a median worth reporting")
    if any(k % args.group or k % BNB_BLOCK for _, k in args.shapes):
        p.error(f"--shapes: K must be a multiple of the group and of {BNB_BLOCK}")
    if not torch.cuda.is_available():
        sys.exit("compare_gpu.py: PyTorch finds no CUDA device")

    device = torch.cuda.get_device_properties(0)
    args.ring = max(4 * device.L2_cache_size, args.ring_mb * 1_000_000)
    skipped: list[str] = []

    def skip(what: str, why: Exception) -> None:
        parts = str(why).strip().splitlines()[:1]
        if not isinstance(why, Skipped):
            parts.insert(0, type(why).__name__)
        skipped.append(": ".join([what, *parts]))
        print(f"compare_gpu.py: left out {skipped[-1]}", file=sys.stderr)

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for package in ("bitsandbytes", "humming-kernels", "exllamav3", "triton"):
        try:
            versions[package] = version(package)
        except Skipped:
            versions[package] = None
    if not args.lutq:
        skip("lutq", Skipped("no --lutq BINARY"))

    report = {
        "device": device.name,
        "l2_bytes": device.L2_cache_size,
        "ring_bytes": args.ring,
        "replays": args.replays,
        "group": args.group,
        "versions": versions,
        "clocks": [clock()],
        "rows": [],
        "skipped": skipped,
    }
    print(f"{device.name}; rings of {args.ring / 1e6:.0f} MB or more; median of {args.replays} replays; {versions}\n")
    with torch.no_grad():
        for n, k in args.shapes:
            rows = shape_rows(args, n, k, skip)
            report["rows"] += rows
            torch.cuda.empty_cache()
            report["clocks"].append(clock())
            tell(f"{n}x{k}: done")
            # A run that is cut short keeps the shapes that it has done.
            print(tables(rows, args), flush=True)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    print(f"SM clock and temperature before and after each shape: {'; '.join(report['clocks'])}")
    wrong = []
    for r in report["rows"]:
        err = r.get("rel_err", 0.0)
        if err is None or err > args.tolerance:
            wrong.append(f"{r['kernel']} at {r['n']}x{r['k']}, M {r['m']}: relative error {err}")
            print(f"compare_gpu.py: {wrong[-1]}", file=sys.stderr)
    if wrong:
        sys.exit(3)


if __name__ == "__main__":
    main()
