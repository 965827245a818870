#!/usr/bin/env python3
"""Checks and times lutq's CUDA kernels in PyTorch: what `lutq repack --target torch` writes.

    scripts/torch_op_check.py --lutq ./lutq [--layers 32] [--only check|time|plan] [--work FOLDER]

check  quantizes tiny random models in several formats, opens them in transformers with the kernels, and compares every
       layer's product with that by its weights in float64, for many rows of activations, in float16 and bfloat16; a CUDA
       graph's product must be the same bits, and so must that of any number of rows up to 8, and up to 16
time   writes one block of the shape of Llama-3.1-8B with random weights, quantizes it, opens it in transformers, repeats the
       block --layers times (each in memory of its own) and times the decoding of a token with a static cache, at once and
       in a CUDA graph: with the kernels, with bitsandbytes NF4 of the same blocks, and dense
plan   needs no GPU: takes launches from a folder as for a GPU, with a driver that only looks at them

Needs PyTorch, transformers 5, safetensors, and for the first two an NVIDIA GPU; without bitsandbytes the time is that of the others.
The exit code is 3 when something differs.
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

ROOT = Path(__file__).parent.parent
SMALL = dict(
    hidden_size=576, intermediate_size=1568, num_hidden_layers=1, num_attention_heads=9, num_key_value_heads=3, head_dim=60,
    vocab_size=512, attention_bias=True, tie_word_embeddings=True,
)  # fmt: skip
LLAMA8B = dict(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_theta=500000.0,
)  # fmt: skip
NF4 = {"bits": 4, "group": 64, "codebook": "nf", "scale": "absmax"}  # what bitsandbytes stores
FORMATS = {
    "4 bits, groups of 64, f16": NF4,
    "3 bits, groups of 128, bf16": {"bits": 3, "group": 128, "scale_type": "bf16"},
    "2 bits, rows, f16": {"bits": 2, "group": "row"},
    "5 bits, groups of 32, e4m4": {"bits": 5, "group": 32, "scale_type": "e4m4"},
    "4 bits, groups of 64, s1e4m3": {"bits": 4, "group": 64, "scale_type": "s1e4m3"},
}
ROWS = [*range(1, 17), 17, 30, 33, 41, 64, 129, 300, 1025]
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"torch_op_check.py: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


def container(args: argparse.Namespace, work: Path, options: dict, recipe: dict, device: str) -> tuple[Path, Path]:
    """Writes a random checkpoint, and quantizes and repacks it."""
    work.mkdir(parents=True)
    torch.manual_seed(1)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**options), dtype=torch.bfloat16)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.1)
    model.save_pretrained(work / "model")
    del model
    (work / "recipe.json").write_text(json.dumps(recipe))
    run(args.lutq, "quantize", work / "model", work / "lutq", "--recipe", work / "recipe.json", "--quiet")
    print(run(args.lutq, "repack", work / "lutq", work / "torch", "--target", "torch", "--quiet"), flush=True)
    return work / "lutq", work / "torch"


def load(path: Path, dtype: torch.dtype, **options) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, device_map="cuda", trust_remote_code=True, **options)


def module(folder: Path):
    """lutq_torch.py of a folder, which serves for all."""
    if "lutq_torch" not in sys.modules:
        sys.path.insert(0, str(folder))
    return importlib.import_module("lutq_torch")


# ---- check ----


def bound(w: torch.Tensor, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What an element of x times w may be off by: table or weights rounded to dtype, or both, and the result."""
    eps = torch.finfo(dtype).eps / 2
    return 3.1 * eps * (x.double().abs() @ w.double().abs().T) + 1e-30


def check_layer(name: str, packed, kernel, dtype: torch.dtype) -> tuple[float, float, list[str]]:
    """The worst error as a part of what it may be, the largest relative error, and what is wrong."""
    w = packed.dense(torch.float32)
    worst, relative, wrong = 0.0, 0.0, []
    x = torch.randn(max(ROWS), packed.k, device="cuda").to(dtype)
    by_rows = {}
    for m in ROWS:
        y = kernel(x[:m])
        want = x[:m].double() @ w.double().T
        allowed = bound(w, x[:m], dtype)
        if kernel.bias is not None:
            want += kernel.bias.double()
            allowed += torch.finfo(dtype).eps * kernel.bias.double().abs()
        error = (y.double() - want).abs()
        worst = max(worst, float((error / allowed).max()))
        relative = max(relative, float(error.norm() / want.norm()))
        by_rows[m] = y
        again = kernel(x[:m])
        if not torch.equal(y, again):
            wrong.append(f"{m} rows: two calls differ")
    three_dimensions = kernel(x[:6].view(2, 3, -1)).view(6, -1)
    if not torch.equal(three_dimensions, by_rows[6]):
        wrong.append("a batch differs from its rows")
    odd = torch.empty(packed.k + 1, dtype=dtype, device="cuda")[1:].copy_(x[0])
    if not torch.equal(kernel(odd[None]), by_rows[1]):
        wrong.append("an address of 2 bytes differs from one of 16")
    for m in (1, 5, 16, 17, 300):
        held = torch.zeros_like(x[:m])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = kernel(held)
        held.copy_(x[:m])
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(y, by_rows[m]):
            wrong.append(f"{m} rows: a graph differs")
    return worst, relative, wrong


def check(args: argparse.Namespace, work: Path) -> int:
    bad = 0
    for i, (name, recipe) in enumerate(FORMATS.items()):
        folder, tiles = container(args, work / f"check{i}", SMALL, recipe, "cpu")
        for dtype_name, dtype in TYPES.items():
            packed, fast = load(folder, dtype), load(folder, dtype)
            left = module(tiles).use(fast, tiles)
            layers = {p: m for p, m in packed.named_modules() if type(m).__name__ == "LutqLinear"}
            worst, relative, wrong = 0.0, 0.0, []
            done = 0
            with torch.inference_mode():
                for path, layer in layers.items():
                    kernel = fast.get_submodule(path)
                    if type(kernel).__name__ == "LutqLinear":
                        continue
                    w, r, faults = check_layer(path, layer, kernel, dtype)
                    worst, relative, wrong, done = max(worst, w), max(relative, r), wrong + faults, done + 1
                ids = torch.randint(3, 500, (1, 12), device="cuda", generator=torch.Generator("cuda").manual_seed(2))
                got, want = fast(ids).logits.double(), packed(ids).logits.double()
                logits = float((got - want).norm() / want.norm())
                try:
                    torch._dynamo.reset()  # which gives up after eight models of one class
                    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager")(ids).logits.double()
                    if float((compiled - got).norm() / want.norm()) > 4 * torch.finfo(dtype).eps:
                        wrong.append("compiled it differs")
                except Exception as e:
                    wrong.append(f"not compiled: {str(e).splitlines()[0][:90]}")
            ok = worst <= 1 and not wrong and done > 3
            bad += not ok
            print(
                f"{name:30} {dtype_name:5} {done} layers by kernels, {len(left)} unpacked: error {worst:.3f} of the bound,"
                f" relative {relative:.2e}, logits {logits:.2e} {'ok' if ok else 'BAD ' + '; '.join(wrong[:4])}",
                flush=True,
            )
    return bad


# ---- time ----


def deepen(model: torch.nn.Module, layers: int) -> torch.nn.Module:
    """Repeats a model's only block, each in memory of its own."""
    blocks = model.model.layers
    for i in range(1, layers):
        block = deepcopy(blocks[0])
        block.self_attn.layer_idx = i
        blocks.append(block)
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:1] * layers
    return model


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.randint(0, 1000, (1, 8), device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    return model(ids, use_cache=False).logits[0].double()


def decode_times(model: torch.nn.Module) -> dict[str, float | str]:
    """Milliseconds of a token, at once and in a CUDA graph."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=1024)
    prompt = torch.randint(0, 1000, (1, 64), device="cuda")
    model(prompt, past_key_values=cache, use_cache=True)
    token, position = torch.zeros(1, 1, dtype=torch.long, device="cuda"), torch.full((1, 1), 64, device="cuda")

    def step() -> torch.Tensor:
        return model(token, past_key_values=cache, position_ids=position, use_cache=True).logits

    took = []
    for _ in range(24):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - start))
    out: dict[str, float | str] = {"eager": statistics.median(took[4:])}
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        took = []
        for _ in range(60):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            took.append(start.elapsed_time(end))
        out["graph"] = statistics.median(took[10:])
    except Exception as e:  # what cannot be captured is told, and the rest is still timed
        out["graph"] = f"not captured: {str(e).splitlines()[0][:90]}"
        torch.cuda.synchronize()
    return out


def measure(args: argparse.Namespace, work: Path) -> int:
    start = time.monotonic()
    folder, tiles = container(args, work / "block", LLAMA8B, NF4, "cuda")
    print(f"quantized and repacked in {time.monotonic() - start:.0f} s", flush=True)
    rows, bad = [], 0
    for dtype_name, dtype in TYPES.items():
        with torch.inference_mode():
            unpacked = logits_of(model := load(folder, dtype))
            left = module(tiles).use(model, tiles)
            got = logits_of(model)
            relative = float((got - unpacked).norm() / unpacked.norm())
            kl = float(F.kl_div(got.log_softmax(-1), unpacked.log_softmax(-1), log_target=True, reduction="none").sum(-1).mean())
            bad += bool(left) or relative > 8 * torch.finfo(dtype).eps
            print(f"{dtype_name}: logits of a block by the kernels and unpacked: relative difference {relative:.2e}, KL {kl:.1e}", flush=True)
            rows.append((dtype_name, "lutq NF4, kernels", decode_times(deepen(model, args.layers))))
            del model
            gc.collect()
            torch.cuda.empty_cache()
            try:
                import bitsandbytes

                options = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
                model = deepen(load(work / "block" / "model", dtype, quantization_config=options), args.layers)
                rows.append((dtype_name, f"bitsandbytes {bitsandbytes.__version__} NF4", decode_times(model)))
                del model
            except ImportError as e:
                print(f"no bitsandbytes: {e}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            model = deepen(load(work / "block" / "model", dtype), args.layers)
            rows.append((dtype_name, "dense", decode_times(model)))
            del model
            gc.collect()
            torch.cuda.empty_cache()
    print(f"\none token of {args.layers} blocks of Llama-3.1-8B and its output head, {torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"| {'type':4} | {'model':26} | {'eager, ms':>10} | {'against lutq':>12} | {'graph, ms':>10} | {'against lutq':>12} |")
    print("|---|---|--:|--:|--:|--:|")
    for dtype_name, name, took in rows:
        ours = next(t for d, _, t in rows if d == dtype_name)
        cells = []
        for kind in ("eager", "graph"):
            number = isinstance(took[kind], float)
            cells.append(f"{took[kind]:10.3f}" if number else took[kind])
            cells.append(f"{took[kind] / ours[kind]:11.2f}x" if number and isinstance(ours[kind], float) else "")
        print(f"| {dtype_name:4} | {name:26} | {' | '.join(cells)} |", flush=True)
    return bad


# ---- plan ----


class Looks:
    """Stands for libcuda, and keeps what it is asked to launch."""

    def __init__(self, lutq_torch):
        self.module, self.launched, self.loaded = lutq_torch, [], []
        self.cuModuleGetFunction = self.cuFuncSetAttribute = lambda *args: 0
        self.cuLaunchKernelEx = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self.launch)

    def cuModuleLoadData(self, module, image) -> int:
        self.loaded.append(image)
        return 0

    def launch(self, config, function, arguments, extra) -> int:
        c = self.module.Config.from_address(config)
        at = ctypes.c_void_p.from_address(arguments).value
        second = (ctypes.c_void_p * 2).from_address(arguments)[1]
        self.attributes = {c.attributes[i].id: tuple(c.attributes[i].value) for i in range(c.count)}
        self.launched.append((c.grid[0], c.block[0], c.shared, c.stream, c.count, c.attributes[0].id, ctypes.string_at(at, 92), at, ctypes.string_at(second, 24)))
        return 0


def plan(args: argparse.Namespace, work: Path) -> int:
    sys.path.insert(0, str(ROOT / "formats" / "lutq"))
    import lutq_kernels

    bad = seen = wide = laid = 0
    for i, recipe in enumerate(FORMATS.values()):
        folder, tiles = container(args, work / f"plan{i}", SMALL, recipe, "cpu")
        lutq_torch = module(tiles)
        looks = Looks(lutq_torch)
        op = lutq_torch.Op(tiles, lutq_torch.Driver(looks))
        pair = {"kernel": "", "arguments": "", "grid": 4, "block": 32, "shared": 0, "programmatic": True, "cluster": 2}
        lutq_torch.Launch(pair, ctypes.c_void_p(1), bytes(96), bytes(24))(op.driver, 7)
        bad += {id: value[:2] for id, value in looks.attributes.items()} != {6: (1, 0), 4: (1 << 32 | 2, 1)}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, trust_remote_code=True)
        with safe_open(next(tiles.glob("*.safetensors")), "pt") as stored:
            for packed in model.modules():
                if type(packed).__name__ != "LutqLinear":
                    continue
                # What is laid out on a GPU is what lutq has laid out.
                bits = (packed.codebook.numel() - 1).bit_length()
                for part, got in (
                    ("tiles", lutq_kernels.tiles_of(packed.codes, bits, packed.k)),
                    ("tile_scales", lutq_kernels.tile_scales_of(packed.scales, packed.k, packed.group)),
                ):  # fmt: skip
                    bad += not torch.equal(got, stored.get_tensor(f"{packed.name}.{part}").flatten().view(torch.uint8))
                    laid += 1
        for packed in model.modules():
            if type(packed).__name__ != "LutqLinear" or not op.plan["layers"][packed.name].get("products"):
                continue
            layer = lutq_torch.Layer(op, packed.name, packed.codebook)
            for dtype in TYPES.values():
                product = layer.plans[dtype]
                launches = [lutq_torch.Launch(p, ctypes.c_void_p(1), layer.table(dtype)) for p in product["launches"]]
                for m, launch in enumerate(launches, 1):
                    a = launch.argument
                    a[lutq_torch.CODES], a[lutq_torch.SCALES], a[lutq_torch.X], a[lutq_torch.Y], a[lutq_torch.BIAS] = (v << 40 for v in (1, 2, 3, 4, 5))
                    launch(op.driver, 7)
                    grid, block, shared, stream, count, attribute, data, at, _ = looks.launched[-1]
                    codes, scales, units, slices, groups, each, over, run, n, k, x, y, bias, rows, pairs, *_ = struct.unpack("<QQ8IQQQ5I", data)
                    table = torch.tensor(struct.unpack(f"<{1 << product['bits']}I", ctypes.string_at(at + 92, 4 << product["bits"])))
                    good = (codes, scales, x, y, bias) == tuple(v << 40 for v in (1, 2, 3, 4, 5)) and stream == 7
                    good &= (n, k, rows, pairs, units) == (packed.rows, packed.k, m, (m + 1) // 2, -(-packed.k // 256))
                    good &= each * grid + over == -(-n // 16) and over < grid and slices * groups <= block // 32 and shared <= op.plan["gpu"]["shared_bytes"]
                    good &= (count, attribute) == (1, 6)
                    good &= torch.equal(table.to(torch.int16).view(dtype), packed.codebook.to(dtype))
                    bad, seen = bad + (not good), seen + 1
            held = op.held(packed.name, packed.scales if packed.scales.dtype == torch.uint8 else packed.scales.view(torch.uint8))
            if packed.scales.dtype == torch.uint8 and op.plan["products"][op.plan["layers"][packed.name]["products"][0]].get("scales"):
                values = held.view(torch.float16).float()
                bad += not torch.equal(values.flatten(), packed_scales(folder, packed).flatten())
        # The environment has transformers use them, as often as it opens a model.
        with mock.patch.dict(os.environ, LUTQ_TORCH=str(tiles)):
            for _ in range(2):
                opened = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, trust_remote_code=True)
                bad += not any(isinstance(m, lutq_torch.Linear) for m in opened.modules())
        # Every row of activations is launched once, and many are multiplied by unpacked weights.
        left = lutq_torch.use(model, tiles)
        kernels = [m for m in model.modules() if isinstance(m, lutq_torch.Linear)]
        if sum(m.get("products") is not None for m in op.plan["layers"].values()) != len(kernels) or len(kernels) + len(left) != 7:
            bad += 1
        with (
            mock.patch.object(torch.cuda, "current_stream", return_value=mock.Mock(cuda_stream=7)),
            mock.patch.object(lutq_torch.Op, "driver", op.driver), mock.patch.object(lutq_torch.Op, "functions", lambda *_: lambda _: 1),
        ):  # fmt: skip
            for linear in kernels:
                layer = lutq_torch.LAYERS[linear.layer]
                product = layer.plans[torch.float16]
                few = len(product["launches"])
                for rows in (0, 1, few, few + 1, few + 8, few + 9, 128, 129, 333, few + 8 * len(product["many"]), few + 8 * len(product["many"]) + 1):
                    looks.launched.clear()
                    x = torch.randn(rows, linear.in_features, dtype=torch.float16)
                    y = layer(x, linear.tiles, linear.tile_scales, linear.bias)
                    at = -(-(rows - few) // 8) - 1
                    how = product["many"][at] if 0 <= at < len(product["many"]) else {}
                    counts = [struct.unpack("<I", launch[6][72:76])[0] for launch in looks.launched]
                    if rows <= few or "turns" in how:
                        good = sum(counts) == rows and all(c <= how.get("turns", few) for c in counts)
                    elif "launch" in how:
                        good, wide = many_as_planned(looks, how, rows, linear), wide + 1
                    else:
                        good = len(counts) == 1
                    bad += y.shape != (rows, linear.out_features) or not good
    print(f"{seen} launches and {wide} of many rows, {laid} tensors laid out, {bad} of all otherwise than planned")
    return bad or not seen


def many_as_planned(looks: Looks, how: dict, rows: int, linear) -> bool:
    """Whether activations are prepared, and then multiplied by."""
    if len(looks.launched) != 2:
        return False
    prepare, multiply = looks.launched
    source, to, m, k, *_ = struct.unpack("<QQII", prepare[6][:24])
    codes, scales, *_, x, y, bias, m2, _ = struct.unpack("<QQ8IQQQII", multiply[6][:80])
    sums, flags, power, back = struct.unpack("<QQff", multiply[8][:24])
    good = (m, m2, k) == (rows, rows, linear.in_features) and to == x and source and y and sums and flags
    good &= (codes, scales) == (linear.tiles.data_ptr(), linear.tile_scales.data_ptr()) and (bias == 0) == (linear.bias is None)
    values = linear.tile_scales.flatten()  # of float16, or of other types by which nothing is multiplied here
    good &= power * back == 1 and power.as_integer_ratio()[0].bit_count() == 1
    return good and (values.dtype != torch.float16 or 2048 < float(values.abs().max()) * power < 8192 or power == 2.0**15)


def packed_scales(folder: Path, packed) -> torch.Tensor:
    code = sys.modules[type(packed).__module__]
    return code.numbers(packed.scales, packed.scale_type)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lutq", required=True, help="the binary")
    p.add_argument("--layers", type=int, default=32, help="blocks to decode a token with (default 32)")
    p.add_argument("--only", choices=["check", "time", "plan"], help="one of them (default what the machine can)")
    p.add_argument("--work", type=Path, help="folder to work in (default a temporary one)")
    args = p.parse_args()
    logging.disable_progress_bar()
    args.lutq = str(Path(args.lutq).resolve())
    gpu = torch.cuda.is_available()
    if not gpu and args.only in ("check", "time"):
        sys.exit("torch_op_check.py: PyTorch sees no NVIDIA GPU")
    work = Path(tempfile.mkdtemp(dir=args.work))
    try:
        bad = 0
        for name, part in (("check", check), ("time", measure), ("plan", plan)):
            if args.only == name or args.only is None and gpu == (name != "plan"):
                bad += part(args, work)
        return 3 if bad else 0
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
