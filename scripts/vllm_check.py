#!/usr/bin/env python3
"""Checks lutq's plugin for vLLM, and what lutq exports for vLLM.

    scripts/vllm_check.py --lutq ./lutq MODEL [--vllm]

Without --vllm it needs no vLLM: stand-ins load a container's q, k and v and its gate and up into fused layers as vLLM
does, whole and for each of several GPUs by rows and by columns, and the products must be those of the dense
weights. With it, in an environment where vLLM and the plugin are installed (pip install ./formats/lutq), vLLM opens a
folder of each format, and the log probabilities at a prompt's tokens are held against those of the dense weights in
transformers: of MODEL, a Llama, of the same with q, k and v in one matrix on disk, and of random models with experts.
The exit code is 3 when something differs.
"""

import argparse
import ctypes
import functools
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch

import read_container

ROOT = Path(__file__).parent.parent
DTYPES = {"U8": torch.uint8, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
# Every part of a fused layer in another way, and one of them as it was.
MIXED = {
    "bits": 4, "tensors": [
        {"match": "k_proj", "bits": 3, "group": 32, "scale_type": "e4m4"}, {"match": "v_proj", "kind": "bcq", "bits": 2},
        {"match": "gate_proj", "kind": "trellis", "bits": 2, "codebook": "trellis"}, {"match": "layers\\.1\\.self_attn\\.q_proj", "keep": True},
        {"match": "o_proj", "kind": "lut24"}, {"match": "embed", "bits": 5},
    ],
}  # fmt: skip


# Widths and groups of tiles.
LAID_OUT = {
    "q_proj": {"bits": 2, "group": 128}, "k_proj": {"bits": 3, "group": 32, "scale_type": "e4m4"}, "v_proj": {"bits": 5, "scale_type": "f32"},
    "up_proj": {"bits": 3, "group": "row"}, "gate_proj": {"bits": 5, "group": 32}, "down_proj": {"bits": 2, "group": 256, "scale_type": "bf16"},
}  # fmt: skip


def quantize(lutq: str, model: Path, out: Path, options: list[str] | dict) -> Path:
    if isinstance(options, dict):
        out.with_suffix(".json").write_text(json.dumps(options))
        options = ["--recipe", str(out.with_suffix(".json")), "--split-fused"]
    done = subprocess.run([lutq, "quantize", str(model), str(out), "--preset", "fast", *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vllm_check.py: {done.args}: {done.stderr}")
    return out


def stand_ins() -> type:
    """Puts modules in the place of vLLM's, and returns the class of linear layers."""
    base = type("LinearBase", (torch.nn.Module,), {})
    model = types.SimpleNamespace(hf_text_config=types.SimpleNamespace(model_type="llama"))
    vllm = types.SimpleNamespace(model_config=model, additional_config={})
    modules = {
        "config": {"get_current_vllm_config": lambda: vllm},
        "logger": {"init_logger": logging.getLogger},
        "platforms": {"current_platform": None},
        "model_executor.layers.fused_moe.config": {"FUSED_MOE_UNQUANTIZED_CONFIG": None},
        "model_executor.layers.fused_moe.fused_moe_method_base": {"FusedMoEMethodBase": object},
        "model_executor.layers.linear": {"LinearBase": base, "LinearMethodBase": object, "UnquantizedLinearMethod": type("Unquantized", (), {})},
        "model_executor.layers.quantization": {"register_quantization_config": lambda name: lambda cls: cls},
        "model_executor.layers.quantization.base_config": {
            "QuantizationConfig": type("QuantizationConfig", (), {"__init__": lambda self: setattr(self, "packed_modules_mapping", {})})
        },
        "model_executor.layers.vocab_parallel_embedding": {"ParallelLMHead": type("ParallelLMHead", (), {})},
        "model_executor.model_loader.default_loader": {"DefaultModelLoader": type("DefaultModelLoader", (), {"get_all_weights": None})},
    }
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers", "vllm.model_executor.layers.fused_moe", "vllm.model_executor.model_loader"):
        sys.modules[name] = types.ModuleType(name)
    for name, content in modules.items():
        sys.modules[f"vllm.{name}"] = module = types.ModuleType(name)
        module.__dict__.update(content)
    return base


def share(base: type, sizes: list[int], gpu: int, gpus: int, head: int) -> tuple[torch.nn.Module, list[int], list[slice]]:
    """A layer as one of vLLM's GPUs has it, divided by rows, with the rows of each part."""
    layer = base()
    layer.tp_rank, layer.tp_size, layer.output_sizes = gpu, gpus, sizes
    if head:  # q, k and v: GPUs have copies of k and v where they are more than heads
        layer.head_size, layer.total_num_heads, layer.total_num_kv_heads = head, sizes[0] // head, sizes[1] // head
        own = [sizes[0] // gpus, *(max(n // gpus, head) for n in sizes[1:])]
    else:
        own = [n // gpus for n in sizes]
    return layer, own, [slice(n * gpu // gpus // count * count, n * gpu // gpus // count * count + count) for n, count in zip(sizes, own)]


def by_hand(args: argparse.Namespace, work: Path) -> int:
    sys.path.insert(0, str(ROOT / "formats" / "lutq"))
    base = stand_ins()
    import lutq_vllm

    lutq_vllm.register()
    head = json.loads((args.model / "config.json").read_text())["head_dim"]
    phi3 = as_phi3(args.model, work / "phi3")
    bad = 0
    for name, model, options in (
        ("rings, one matrix", phi3, ["--codebook", "trellis", "--bits", "2.5", "--scale-type", "bf16"]),
        ("EXL3's rings", args.model, ["--codebook", "mul1", "--bits", "3"]),
        ("3 bits, groups of 32, e4m4, one matrix", phi3, ["--bits", "3", "--group", "32", "--scale-type", "e4m4"]),
        ("2 bits, rows", args.model, ["--bits", "2", "--group", "row"]),
        ("every kind", args.model, MIXED),
    ):
        out = quantize(args.lutq, model, work / name.replace(" ", ""), options)
        config = lutq_vllm.Config.from_config(read_container.quantization(out))
        dense = {layer: torch.from_numpy(w) for layer, w in read_container.layers(out)}
        folder = read_container.Folder(out)
        for tensor in folder.where:  # what is not quantized
            if tensor.endswith("_proj.weight"):
                dense[tensor.removesuffix(".weight")] = torch.from_numpy(folder.array(tensor))
        worst, refused = 0.0, []
        for leaf, parts, gpus in (
            ("self_attn.qkv_proj", "qkv", 1), ("self_attn.qkv_proj", "qkv", 2), ("self_attn.qkv_proj", "qkv", 4), ("mlp.gate_up_proj", ("gate", "up"), 2),
            ("mlp.down_proj", None, 1), ("mlp.down_proj", None, 2), ("mlp.down_proj", None, 3), ("self_attn.o_proj", None, 2),
        ):  # fmt: skip
            for block in (0, 1):
                prefix = f"model.layers.{block}.{leaf}"
                layers = [prefix] if prefix in dense else [f"{prefix.rpartition('.')[0]}.{p}_proj" for p in parts]
                whole = torch.cat([dense[p] for p in layers])
                sizes = [len(whole)]
                if parts == "qkv":  # twice as many heads as there are of k and v
                    sizes = [len(whole) // 2, len(whole) // 4, len(whole) // 4]
                elif parts:
                    sizes = [len(whole) // 2] * 2
                x = torch.randn(3, whole.shape[1])
                total, k = torch.zeros(3, len(whole)), whole.shape[1] // (1 if parts else gpus)
                try:
                    for gpu in range(gpus):
                        if parts:
                            layer, own, rows = share(base, sizes, gpu, gpus, head if parts == "qkv" else 0)
                        else:
                            layer, own, rows = share(base, sizes, 0, 1, 0)
                            layer.tp_rank, layer.tp_size = gpu, gpus
                        method = config.get_quant_method(layer, prefix)
                        method.create_weights(layer, k, own, whole.shape[1], sum(sizes), torch.float32, weight_loader=None)
                        params = dict(layer.named_parameters())
                        for i, p in enumerate(layers):
                            for tensor in folder.where:
                                if tensor.rpartition(".")[0] == p:
                                    dtype, shape, data = folder.raw(tensor)
                                    stored = torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).view(shape)
                                    param = params[tensor.rpartition(".")[2]]
                                    shard = [] if len(layers) == 1 else [parts[i] if parts == "qkv" else i]
                                    param.weight_loader(param, stored, *shard)
                        config.read = True
                        method.process_weights_after_loading(layer)
                        columns = slice(0, k) if parts else slice(gpu * k, (gpu + 1) * k)
                        y = method.apply(layer, x[:, columns])
                        if name == "every kind" and gpus < 3 and (gpu, block) == (0, 0):  # which vLLM compiles without a break
                            torch.compiler.reset()
                            compiled = torch.compile(functools.partial(method.apply, layer), fullgraph=True, backend="aot_eager")
                            worst = max(worst, float((compiled(x[:, columns]) - y).abs().max() / y.abs().max()))
                        if not parts:
                            total += y
                            continue
                        want = torch.cat([p[r] for p, r in zip(whole.split(sizes), rows)])
                        worst = max(worst, float((y - x @ want.T).abs().max() / y.abs().max()))
                    if not parts:
                        worst = max(worst, float((total - x @ whole.T).abs().max() / total.abs().max()))
                except ValueError as e:
                    # Rings are of 128 columns and 8 or 128 rows, and groups are of as many columns as they are.
                    known = "use fewer GPUs" in str(e) and "together" in str(e) and gpus > 1
                    refused.append(f"{leaf} on {gpus}" if known else f"{leaf} on {gpus}, BAD: {e}")
                    bad += not known
        wrong = not worst < 1e-5
        bad += wrong
        print(f"{name}: {worst:.1g}{' BAD' if wrong else ''}{'; refused: ' if refused else ''}{', '.join(sorted(set(refused)))}")
    widths = {"bits": 4, "tensors": [{"match": m, **c} for m, c in LAID_OUT.items()]}
    seen, wrong = laid_out(args.lutq, out := quantize(args.lutq, args.model, work / "widths", widths), lutq_vllm.LutqConfig(**read_container.quantization(out)))
    print(f"laid out in tiles as lutq does: widths {sorted(seen)}{f', {wrong} layers BAD' if wrong else ''}")
    bad += wrong + (seen != {2, 3, 4, 5})
    kept = config.get_quant_method(base(), "lm_head")
    bad += type(kept).__name__ != "Unquantized" or config.get_quant_method(torch.nn.Identity(), "model.layers.0.self_attn.attn") is not None
    return bad + unasked(lutq_vllm.Config, base, out)


def unasked(kind: type, base: type, out: Path) -> int:
    """What is wrong with names that vLLM changes, and with layers that it does not ask for: they must be unpacked, or refused."""
    config, folder = kind.from_config(read_container.quantization(out)), read_container.Folder(out)
    renamed = types.SimpleNamespace(apply_list=lambda names: [name.replace("model.", "language_model.model.", 1) for name in names])
    config.apply_vllm_mapper(renamed)
    if type(config.get_quant_method(base(), "language_model.model.layers.0.mlp.down_proj")).__name__ != "Method":
        print("a layer of another name is taken for one that is not quantized")
        return 1

    def tensors():
        for name in folder.where:
            dtype, shape, data = folder.raw(name)
            yield name, torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).view(shape)

    try:
        config.done()
        print("layers that were not asked for are forgotten")
        return 1
    except ValueError:
        pass
    found = dict(config.unpack(tensors(), "llama", torch.float32, torch.device("cpu")))
    config.done()
    want = {f"{name}.weight": w for name, w in read_container.layers(out) if name != "model.layers.0.mlp.down_proj"}
    wrong = [name for name, w in want.items() if not torch.equal(found[name], torch.from_numpy(w))]
    wrong += [name for name in found if name.rpartition(".")[0] in config.config.tensors and name not in want and "layers.0.mlp.down_proj" not in name]
    print(f"{len(want)} layers that are not asked for: {len(wrong)} unpacked wrongly")
    return len(wrong)


def laid_out(lutq: str, out: Path, config) -> tuple[set[int], int]:
    """Holds what is laid out for kernels in PyTorch against what lutq lays out. Returns the widths, and how many layers differ."""
    from lutq_kernels import tile_scales_of, tiles_of

    tiles = out.with_suffix(".tiles")
    done = subprocess.run([lutq, "repack", str(out), str(tiles), "--target", "cuda"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vllm_check.py: {done.args}: {done.stderr}")
    stored, folder, widths, bad = read_container.Folder(out), read_container.Folder(tiles), set(), 0
    for layer in config.tensors:
        c = config.of(layer)
        if (c.get("kind") or "lut") != "lut" or f"{layer}.tiles" not in folder.where:
            continue
        codes, scales = (torch.from_numpy(np.frombuffer(bytearray(data), np.uint8).reshape(shape[0], -1)) for _, shape, data in (stored.raw(f"{layer}.{p}") for p in ("codes", "scales")))
        k, size = c["shape"][1], scales.shape[1] // (1 if c["group"] < 0 else -(-c["shape"][1] // c["group"]))
        typed = scales.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[size])
        bad += bytes(folder.raw(f"{layer}.tiles")[2]) != tiles_of(codes, c["bits"], k).numpy().tobytes()
        bad += bytes(folder.raw(f"{layer}.tile_scales")[2]) != tile_scales_of(typed, k, c["group"]).numpy().tobytes()
        widths.add(c["bits"])
    return widths, bad


class Driver:
    """Stands for libcuda: it multiplies by the weights that a matrix's codes, by their address, are known to be."""

    def __init__(self):
        self.weights, self.prepared, self.names, self.counts = {}, {}, [], {}
        self.cuFuncSetAttribute = self.cuModuleLoadData = lambda *args: 0
        self.cuLaunchKernelEx = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self.launch)

    def cuModuleGetFunction(self, function, module, name) -> int:
        self.names.append(name.decode())
        function._obj.value = len(self.names)
        return 0

    def launch(self, config, function, arguments, extra) -> int:
        name = self.names[function - 1]
        self.counts[name] = self.counts.get(name, 0) + 1
        first, second = (ctypes.c_void_p * 2).from_address(arguments)
        if name == "lutcolumns":
            x, to, m, k = struct.unpack("<QQII", ctypes.string_at(first, 24))
            self.prepared[to] = self.numbers(x, m, k).clone()
            return 0
        codes, scales, *_, n, k, x, y, bias, m, _ = struct.unpack("<QQ8IQQQII", ctypes.string_at(first, 80))
        w, dtype = self.weights[codes, scales], torch.bfloat16
        assert w.shape == (n, k)
        if name == "lutdense":
            self.numbers(y, n, k).copy_(w)
            return 0
        if name == "lutmany":
            sums, flags, power, back = struct.unpack("<QQff", ctypes.string_at(second, 24))
            assert sums and power * back == 1 and not any(ctypes.string_at(flags, 132 * 16 * 4))
            rows = self.prepared[x]
        else:
            rows = self.numbers(x, m, k)
        product = rows.float() @ w.float().T
        if bias:
            product += self.numbers(bias, 1, n).float()
        self.numbers(y, m, n).copy_(product.to(dtype))
        return 0

    @staticmethod
    def numbers(at: int, m: int, k: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_char * (2 * m * k)).from_address(at), dtype=torch.bfloat16).view(m, k)


def by_kernels(args: argparse.Namespace, work: Path) -> int:
    """Layers of the plugin as on a GPU, with a stand-in for it: by all that kernels are told, addresses too, the products come out right."""
    import lutq_hf
    import lutq_kernels
    import lutq_vllm

    bad, driver, k = 0, Driver(), 2048
    g = torch.Generator().manual_seed(1)
    layers = {"qkv_proj": ([1024, 256, 256], "qkv", 0), "gate_up_proj": ([2560, 208], (0, 1), 1), "down_proj": ([2560], None, 0)}
    stored = {}
    for name, (sizes, parts, apart) in layers.items():
        for i, n in enumerate(sizes):
            part = name if parts is None else f"{('qkv' if parts == 'qkv' else ('gate', 'up'))[i]}_proj"
            stored["mlp." + part] = {
                "codes": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=g), "scales": torch.rand(n, k // 64, generator=g).half() * 0.05,
                "codebook": torch.linspace(-1, 1, 16).bfloat16().float() + apart * i,
            }  # fmt: skip
    tensors = {name: {"shape": [len(t["codes"]), k]} for name, t in stored.items()}
    config = lutq_vllm.Config.from_config({"version": 1, "kind": "lut", "bits": 4, "group": 64, "scale_type": "f16", "codebook": "nf", "tensors": tensors})
    config.read = True
    dense = {name: lutq_hf.dequantize(t["codes"], t["scales"], t["codebook"], None, k, 64, "lut", "f16", torch.bfloat16) for name, t in stored.items()}
    real, find = torch.cuda.is_available(), lutq_kernels.KERNELS.find
    cpu = torch.library.Library("lutq", "FRAGMENT")
    cpu.impl("multiply_tiles", lutq_kernels.multiply, "CPU")
    fakes = mock.patch.multiple(torch.cuda, is_available=lambda: True, get_device_name=lambda d: "h200", get_device_capability=lambda d: (9, 0), current_device=lambda: 0)
    stream = mock.patch.object(torch.cuda, "current_stream", return_value=mock.Mock(cuda_stream=7))
    here = mock.patch.multiple(lutq_kernels, DEVICE="cpu", AT_ONCE=1 << 20)
    cache = mock.patch.dict(os.environ, LUTQ=args.lutq, XDG_CACHE_HOME=str(work))
    kernels = mock.patch.object(lutq_kernels.KERNELS, "find", lambda *a: by_driver(find(*a), driver))
    warns = mock.patch.object(lutq_kernels.LOG, "warning")
    with fakes, stream, here, cache, kernels, mock.patch.object(torch.cuda, "device"), warns as warned:
        made, hashes = [], set()
        for name, (sizes, parts, apart) in layers.items():
            for gpu, gpus in (0, 1), (1, 2):
                if parts:
                    layer, own, rows = share(lutq_vllm.LinearBase, sizes, gpu, gpus, 128 if parts == "qkv" else 0)
                else:
                    layer, own, rows = share(lutq_vllm.LinearBase, sizes, 0, 1, 0)
                    layer.tp_rank, layer.tp_size = gpu, gpus
                columns = slice(0, k) if parts else slice(gpu * k // gpus, (gpu + 1) * k // gpus)
                method = config.get_quant_method(layer, f"mlp.{name}")
                method.create_weights(layer, columns.stop - columns.start, own, k, sum(sizes), torch.bfloat16, weight_loader=None)
                made.append((name, gpus, layer, method, rows, columns))
        for name, gpus, layer, method, rows, columns in made:
            parts, apart = layers[name][1:]
            params = dict(layer.named_parameters())
            names = [matrix for matrix, _ in method.found]
            for i, matrix in enumerate(names):
                for part, tensor in stored[matrix].items():
                    params[part].weight_loader(params[part], tensor, *([] if parts is None else [parts[i]]))
            method.process_weights_after_loading(layer)
            want = [dense[matrix][r, columns] for matrix, r in zip(names, rows)]
            together = [torch.cat(want)] if not apart else want
            if method.held != [len(w) for w in together] or len(layer.packed):
                bad += 1
                print(f"{name} on {gpus}: BAD: multiplied by as {method.held}")
                continue
            hashes.add(method.vllm.additional_config["lutq"])
            at = layer.tiles.data_ptr(), layer.tile_scales.data_ptr()
            for w, (_, codes, scales) in zip(together, lutq_kernels.HELD[at[0]]):
                driver.weights[at] = w
                at = at[0] + codes, at[1] + scales
            bias = torch.randn(sum(method.held), generator=g).bfloat16() if parts == "qkv" else None
            for m in (1, 16, 17, 57, 100, 1025):
                x = torch.randn(m, columns.stop - columns.start, generator=g).bfloat16()
                right = x.float() @ torch.cat(want).float().T + (0 if bias is None else bias.float())
                if not float((method.apply(layer, x, bias).float() - right).abs().max() / right.abs().max()) < 2**-8:
                    bad += 1
                    print(f"{name} on {gpus}, {m} rows: BAD")
        if not real and (warned.call_count != 1 or "cannot be measured" not in str(warned.call_args)):
            bad += 1
            print(f"BAD: nothing is measured, which is said {warned.call_count} times: {warned.call_args}")
        bad += len(hashes) < len(made)  # each layer changes what vLLM finds compiled code by
        shapes = torch.ops.lutq.multiply_tiles(torch.empty(2, 3, k, device="meta"), *(torch.empty(0, device="meta") for _ in "ts"), None, [16, 40])
        bad += [s.shape for s in shapes] != [(2, 3, 16), (2, 3, 40)]
    with mock.patch.dict(os.environ, LUTQ="", PATH=""), mock.patch.object(lutq_kernels.LOG, "warning") as said:
        without = lutq_kernels.Kernels()
        absent = [without.find(f"{n}x64:4:64:f16", "bf16", torch.device("cpu")) for n in (64, 128)]
    if absent != [None, None] or said.call_count != 1 or "LUTQ" not in str(said.call_args):
        bad += 1
        print("BAD: without lutq")
    print(f"layers by kernels of a stand-in: {driver.counts}")
    if set(driver.counts) != {"lutgemm", "lutcolumns", "lutmany", "lutdense"}:
        bad += 1
        print("BAD: want some of all")
    return bad


def by_driver(op, driver):
    if op is not None:
        op._driver = sys.modules["lutq_torch"].Driver(driver)
    return op


def as_phi3(model: Path, out: Path) -> Path:
    """The model, a Llama, with q, k and v in one matrix and gate and up in another, as Phi-3 has them."""
    from safetensors.torch import load_file, save_file

    out.mkdir()
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
    (out / "config.json").write_text(json.dumps(config))
    tensors = load_file(model / "model.safetensors")
    for name in list(tensors):
        for parts, one in (("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj"):
            if name.endswith(f".{parts[0]}.weight"):
                tensors[name.replace(parts[0], one)] = torch.cat([tensors.pop(name.replace(parts[0], p)) for p in parts])
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    for path in model.glob("tokenizer*"):
        (out / path.name).write_bytes(path.read_bytes())
    return out


def with_experts(kind: str, out: Path) -> Path:
    """A random model with experts: in matrices of their own as Mixtral and Qwen3 have them, or in one tensor as Llama 4."""
    import transformers

    torch.manual_seed(1)
    common = dict(
        vocab_size=512, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=2, initializer_range=0.08,
    )  # fmt: skip
    if kind == "Mixtral":
        config = transformers.MixtralConfig(**common, num_local_experts=4, num_experts_per_tok=2)
    elif kind == "Qwen3":
        config = transformers.Qwen3MoeConfig(**common, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2)
    else:
        config = transformers.Llama4TextConfig(**common, intermediate_size_mlp=128, num_local_experts=4, num_experts_per_tok=1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(out)
    return out


def reference(lutq: str, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Log probabilities [positions, vocabulary] by transformers, of the weights that a container stands for."""
    from transformers import AutoModelForCausalLM

    dense = folder.with_suffix(".dense")
    subprocess.run([lutq, "export", str(folder), str(dense), "--to", "dense", "--dtype", "f32"], check=True, capture_output=True)
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids[None]).logits[0, :-1].double().log_softmax(-1)


def opened(folder: Path, ids: torch.Tensor, vocabulary: int, dtype: str, **options) -> torch.Tensor:
    """The same by vLLM."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder), dtype=dtype, enforce_eager=True, max_model_len=256, max_num_seqs=1, max_logprobs=-1, enable_prefix_caching=False,
        skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 26, gpu_memory_utilization=0.02, **options,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False, flat_logprobs=True)
    found = llm.generate([{"prompt_token_ids": ids.tolist()}], sampling, use_tqdm=False)[0].prompt_logprobs
    del llm
    got = np.full((len(ids) - 1, vocabulary), np.nan)
    for row, start, end in zip(got, found.start_indices[1:], found.end_indices[1:]):
        row[found.token_ids[start:end]] = found.logprobs[start:end]
    return torch.from_numpy(got)


def in_vllm(args: argparse.Namespace, work: Path) -> int:
    os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_INT4_W4A8": "0"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    phi3 = as_phi3(args.model, work / "phi3")
    here = {"distributed_executor_backend": UniProcExecutor}
    f32, f16 = ("float32", 1e-6), ("float16", 1e-4)
    bad = 0
    # Those with experts come first: what vLLM readies for them it readies once in a process.
    for name, model, options, target, (dtype, most) in (
        *((f"experts as {k} has them", with_experts(k, work / k), ["--bits", "4", "--group", "32"], "", f32) for k in ("Mixtral", "Qwen3", "Llama 4")),
        ("experts that stay packed", work / "Mixtral", ["--bits", "4", "--group", "32"], "", f32),
        ("every kind", args.model, MIXED, "", f32),
        ("q, k and v in one matrix on disk, 3 bits", phi3, ["--bits", "3", "--group", "32"], "", f32),
        ("compressed-tensors", args.model, ["--for", "ct", "--bits", "4", "--group", "64"], "ct", f16),
        ("GPTQ", args.model, ["--for", "gptq", "--bits", "4"], "gptq", f16),
        ("AWQ", args.model, ["--for", "awq"], "awq", f16),
        ("an engine of its own process", args.model, ["--bits", "4"], "", f32),
    ):
        out = quantize(args.lutq, model, work / name.replace(" ", ""), options)
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        ids = torch.randint(3, vocabulary - 3, (64,), generator=torch.Generator().manual_seed(1))
        want = reference(args.lutq, out, ids)
        if target:
            subprocess.run([args.lutq, "export", str(out), str(out.with_suffix(".export")), "--to", target], check=True, capture_output=True)
            out = out.with_suffix(".export")
        # Processes that are started anew get what the plugin has by pickle.
        apart = name.startswith("an engine")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(apart))
        os.environ["LUTQ_EXPERTS"] = "packed" if "packed" in name else ""
        got = opened(out, ids, vocabulary, dtype, **({} if apart else here))
        kl = float((want.exp() * (want - got)).sum(-1).mean())
        wrong = not abs(kl) < most  # NaN is wrong too
        bad += wrong
        print(f"{name}: KL {kl:.2g}, largest difference {float((want - got).abs().max()):.2g}{' BAD' if wrong else ''}", flush=True)
    return bad


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--lutq", required=True, help="the binary")
    p.add_argument("--vllm", action="store_true", help="run vLLM itself")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        work = Path(tmp)
        return 3 if (in_vllm(args, work) if args.vllm else by_hand(args, work) + by_kernels(args, work)) else 0


if __name__ == "__main__":
    sys.exit(main())
