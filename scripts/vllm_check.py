#!/usr/bin/env python3
"""Checks lutq's plugin for vLLM.

    scripts/vllm_check.py --lutq ./lutq MODEL [--vllm]

Without --vllm it needs no vLLM: stand-ins load a container's q, k and v and its gate and up into fused layers as vLLM
does, whole and for each of two GPUs by rows and by columns, and the products must be those of the dense
weights. With it, in an environment where vLLM and the plugin are installed (pip install ./formats/lutq), vLLM opens the
container in float32 and the log probabilities at a prompt's tokens are held against those of the dense weights in
transformers: in a process of its own, and with q, k and v in one matrix on disk.
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
    subprocess.run([lutq, "quantize", str(model), str(out), "--preset", "fast", *options], check=True, capture_output=True)


class Weight(torch.nn.Parameter):
    """As vLLM's ModelWeightParameter: fused and divided by rows, and divided by columns."""

    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data, input_dim, output_dim, weight_loader):
        assert (input_dim, output_dim) == (1, 0)
        self.weight_loader, self.input_dim = weight_loader, input_dim


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
    vllm = stand_ins()
    import lutq_vllm

    lutq_vllm.register()
    bad = 0
    for name, options in {
        "rings": ["--codebook", "trellis", "--bits", "2.5"], "rings, bf16": ["--codebook", "trellis", "--bits", "5", "--scale-type", "bf16"],
        "4 bits": [], "3 bits, groups of 32, e4m4": ["--bits", "3", "--group", "32", "--scale-type", "e4m4"], "2 bits, rows": ["--bits", "2", "--group", "row"],
    }.items():  # fmt: skip
        out = work / name.replace(" ", "")
        quantize(args.lutq, args.model, out, *options)
        config = vllm["registered"]["lutq"].from_config(read_container.quantization(out))
        dense = {layer: torch.from_numpy(w) for layer, w in read_container.layers(out)}
        folder = read_container.Folder(out)

        def tensor(layer: str, part: str) -> torch.Tensor:
            dtype, shape, data = folder.raw(f"{layer}.{part}")
            return torch.frombuffer(bytearray(data), dtype={"U8": torch.uint8, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[dtype]).view(shape)

        for leaf, parts in {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up"), "mlp.down_proj": None, "self_attn.o_proj": None}.items():
            prefix = f"model.layers.0.{leaf}"
            layers = [prefix] if parts is None else [f"{prefix.rpartition('.')[0]}.{p}_proj" for p in parts]
            for gpus in (1, 2, 3) if leaf == "mlp.down_proj" else (1, 2):
                columns = gpus > 1 and parts is None  # row-parallel: each GPU has some columns
                x = torch.randn(3, dense[layers[0]].shape[1])
                ys = []
                try:
                    for gpu in range(gpus):
                        layer = vllm["LinearBase"]()
                        layer.tp_rank = gpu
                        method = config.get_quant_method(layer, prefix)
                        sizes = [dense[p].shape[0] // (1 if columns else gpus) for p in layers]
                        k = x.shape[1] // (gpus if columns else 1)
                        method.create_weights(layer, k, sizes, x.shape[1], sum(sizes), torch.float32, weight_loader=None)
                        for part, param in layer.named_parameters():
                            at = 0
                            for i, (p, n) in enumerate(zip(layers, sizes)):
                                if f"{p}.{part}" not in folder.where:
                                    continue
                                whole = tensor(p, part)
                                if param.weight_loader is not None:
                                    param.weight_loader(param, whole, *([] if parts is None else [parts[i] if parts == "qkv" else i]))
                                    continue
                                if columns and hasattr(param, "input_dim"):
                                    whole = whole.chunk(gpus, param.input_dim)[gpu]
                                elif not columns:
                                    whole = whole.chunk(gpus, 0)[gpu]
                                n //= getattr(param, "packed_factor", 1)
                                param.data[at : at + n].copy_(whole)
                                at += n
                        method.process_weights_after_loading(layer)
                        ys.append(method.apply(layer, x[:, gpu * k : (gpu + 1) * k] if columns else x))
                except ValueError as e:
                    refused = columns and "use fewer GPUs" in str(e) and (name == "2 bits, rows" or name.startswith("rings") and k % 128)
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


def as_phi3(model: Path, out: Path) -> None:
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


def reference(lutq: str, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Log probabilities [positions, vocabulary] by transformers, of the weights that a container stands for."""
    from transformers import AutoModelForCausalLM

    dense = folder.with_suffix(".dense")
    subprocess.run([lutq, "export", str(folder), str(dense), "--to", "dense", "--dtype", "f32"], check=True, capture_output=True)
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids[None]).logits[0, :-1].double().log_softmax(-1)


def in_vllm(args: argparse.Namespace, work: Path) -> int:
    # Processes that are started anew get what the plugin has by pickle.
    os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    phi3 = work / "phi3"
    as_phi3(args.model, phi3)
    ids = torch.randint(3, 4000, (64,), generator=torch.Generator().manual_seed(1))
    bad = 0
    for name, model, options, processes in (
        ("4 bits, an engine of its own process", args.model, ["--bits", "4"], 1),
        ("q, k and v in one matrix on disk, 3 bits", phi3, ["--bits", "3", "--group", "32"], 0),
        ("rings of 2.5 bits", args.model, ["--codebook", "trellis", "--bits", "2.5"], 0),
        ("rings of 3 bits, q, k and v in one matrix on disk", phi3, ["--codebook", "trellis", "--bits", "3"], 0),
    ):
        out = work / name.replace(" ", "")
        quantize(args.lutq, model, out, *options)
        want = reference(args.lutq, out, ids)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(processes)
        llm = LLM(
            str(out), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=1, max_logprobs=-1,
            enable_prefix_caching=False, kv_cache_memory_bytes=1 << 26, gpu_memory_utilization=0.02,
        )  # fmt: skip
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False)
        result = llm.generate([{"prompt_token_ids": ids.tolist()}], sampling, use_tqdm=False)[0]
        del llm
        got = torch.tensor([[p[i].logprob for i in range(want.shape[1])] for p in result.prompt_logprobs[1:]], dtype=torch.float64)
        kl = float((want.exp() * (want - got)).sum(-1).mean())
        wrong = not kl < 1e-5  # NaN is wrong too
        bad += wrong
        print(f"{name}: KL {kl:.2g}, largest difference {float((want - got).abs().max()):.2g}{' BAD' if wrong else ''}")
    return bad


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
