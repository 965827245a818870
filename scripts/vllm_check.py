#!/usr/bin/env python3
"""Checks lutq's plugin for vLLM.

    scripts/vllm_check.py --lutq ./lutq MODEL [--vllm]

Without --vllm it needs no vLLM: stand-ins load a container's q, k and v and its gate and up into fused layers as vLLM
does, whole and for each of two GPUs by rows and by columns, and the products must be those of the dense
weights. With it, in an environment where vLLM and the plugin are installed (pip install ./formats/lutq), vLLM opens the
container and the log probabilities of a prompt's tokens are held against those of the dense model in vLLM.
The exit code is 3 when something differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

import read_container

ROOT = Path(__file__).parent.parent


def quantize(lutq: str, model: Path, out: Path, *options: str) -> None:
    subprocess.run([lutq, "quantize", str(model), str(out), *options], check=True, capture_output=True)


class Weight(torch.nn.Parameter):
    """As vLLM's ModelWeightParameter: fused and divided by rows, and divided by columns."""

    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data, input_dim, output_dim, weight_loader):
        assert (input_dim, output_dim) == (1, 0)
        self.weight_loader = weight_loader


def stand_ins() -> dict:
    """Puts modules in the place of vLLM's, and returns what is registered."""
    registered = {}
    base = type("LinearBase", (torch.nn.Module,), {})
    modules = {
        "layers.linear": {"LinearBase": base, "LinearMethodBase": object, "UnquantizedLinearMethod": type("Unquantized", (), {})},
        "layers.quantization": {"register_quantization_config": lambda name: lambda cls: registered.setdefault(name, cls)},
        "layers.quantization.base_config": {"QuantizationConfig": type("QuantizationConfig", (), {})},
        "parameter": {"ModelWeightParameter": Weight},
    }
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        sys.modules[name] = types.ModuleType(name)
    for name, content in modules.items():
        sys.modules[f"vllm.model_executor.{name}"] = module = types.ModuleType(name)
        module.__dict__.update(content)
    return registered | {"LinearBase": base, "registered": registered}


def by_hand(args: argparse.Namespace, work: Path) -> int:
    sys.path.insert(0, str(ROOT / "formats" / "lutq"))
    import lutq_vllm

    vllm = stand_ins()
    lutq_vllm.register()
    bad = 0
    for name, options in {
        "4 bits": [], "3 bits, groups of 32, e4m4": ["--bits", "3", "--group", "32", "--scale-type", "e4m4"], "2 bits, rows": ["--bits", "2", "--group", "row"],
    }.items():  # fmt: skip
        out = work / name.replace(" ", "")
        quantize(args.lutq, args.model, out, *options)
        config = vllm["registered"]["lutq"].from_config(read_container.quantization(out))
        dense = {layer: torch.from_numpy(w) for layer, w in read_container.layers(out)}
        folder = read_container.Folder(out)

        def tensor(layer: str, part: str) -> torch.Tensor:
            dtype, shape, data = folder.raw(f"{layer}.{part}")
            return torch.frombuffer(bytearray(data), dtype={"U8": torch.uint8, "F16": torch.float16, "F32": torch.float32}[dtype]).view(shape)

        for leaf, parts in {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up"), "mlp.down_proj": None, "self_attn.o_proj": None}.items():
            prefix = f"model.layers.0.{leaf}"
            layers = [prefix] if parts is None else [f"{prefix.rpartition('.')[0]}.{p}_proj" for p in parts]
            for gpus in (1, 2):
                columns = gpus > 1 and parts is None  # row-parallel: each GPU has some columns
                x = torch.randn(3, dense[layers[0]].shape[1])
                ys = []
                try:
                    for gpu in range(gpus):
                        layer = vllm["LinearBase"]()
                        method = config.get_quant_method(layer, prefix)
                        sizes = [dense[p].shape[0] // (1 if columns else gpus) for p in layers]
                        k = x.shape[1] // (gpus if columns else 1)
                        method.create_weights(layer, k, sizes, x.shape[1], sum(sizes), torch.float32, weight_loader=None)
                        for part in ("codes", "scales"):
                            param, at = getattr(layer, part), 0
                            for p, n in zip(layers, sizes):
                                whole = tensor(p, part)
                                mine = whole.chunk(gpus, 1)[gpu] if columns else whole.chunk(gpus, 0)[gpu]
                                param.data[at : at + n].copy_(mine)
                                at += n
                        for i, p in enumerate(layers):
                            layer.codebook.weight_loader(layer.codebook, tensor(p, "codebook"), *([] if parts is None else [parts[i] if parts == "qkv" else i]))
                        ys.append(method.apply(layer, x[:, gpu * k : (gpu + 1) * k] if columns else x))
                except ValueError as e:
                    refused = columns and "use fewer GPUs" in str(e) and name == "2 bits, rows"
                    bad += not refused
                    print(f"{name}: {leaf}, {gpus} GPUs: {'refused as it must be' if refused else f'BAD: {e}'}")
                    continue
                want = torch.cat([x @ dense[p].T for p in layers], 1)
                if columns:
                    got = sum(ys)
                else:  # each GPU has some rows of every part
                    got = torch.cat([torch.cat([y.split(sizes, 1)[i] for y in ys], 1) for i in range(len(layers))], 1)
                worst = float((got - want).abs().max() / want.abs().max())
                bad += worst > 1e-5
                print(f"{name}: {leaf}, {gpus} GPUs: {worst:.1g}{' BAD' if worst > 1e-5 else ''}")
        kept = config.get_quant_method(vllm["LinearBase"](), "lm_head")
        bad += type(kept).__name__ != "Unquantized" or config.get_quant_method(torch.nn.Identity(), "model.layers.0.self_attn.attn") is not None
    return bad


def in_vllm(args: argparse.Namespace, work: Path) -> int:
    from safetensors import safe_open
    from safetensors.torch import save_file
    from vllm import LLM, SamplingParams

    out, plain = work / "out", work / "plain"
    quantize(args.lutq, args.model, out, "--bits", "4")
    plain.mkdir()
    config = json.loads((out / "config.json").read_text())
    quantized = config.pop("quantization_config")["tensors"]
    config.pop("auto_map")
    for path in out.iterdir():
        if path.suffix != ".safetensors" and path.name not in ("lutq_hf.py", ".lutq"):
            (plain / path.name).write_bytes(path.read_bytes())
    (plain / "config.json").write_text(json.dumps(config))
    with safe_open(out / "model.safetensors", "pt") as f:
        tensors = {name: f.get_tensor(name) for name in f.keys() if name.rpartition(".")[0] not in quantized}
    tensors |= {f"{p}.weight": torch.from_numpy(w) for p, w in read_container.layers(out)}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    ids = torch.randint(3, 4000, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    found = []
    for path in (out, plain):
        llm = LLM(str(path), dtype="bfloat16", enforce_eager=True, max_model_len=256, trust_remote_code=False)
        result = llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
        found.append(torch.tensor([p[i].logprob for i, p in zip(ids[1:], result.prompt_logprobs[1:])]))
        del llm
    worst = float((found[0] - found[1]).abs().max())
    print(f"mean NLL {-float(found[0].mean()):.6f} packed, {-float(found[1].mean()):.6f} dense; largest difference {worst:.3g}")
    return worst > 0.05


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--lutq", required=True, help="the binary")
    p.add_argument("--vllm", action="store_true", help="run vLLM itself")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        return 3 if (in_vllm if args.vllm else by_hand)(args, Path(tmp)) else 0


if __name__ == "__main__":
    sys.exit(main())
