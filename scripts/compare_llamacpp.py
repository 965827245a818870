#!/usr/bin/env python3
"""The same model in the same bytes in llama.cpp: quantized by ggml, with an importance matrix too, and by lutq.

    scripts/compare_llamacpp.py MODEL WORK --lutq BINARY --calib TEXT... --text TEXT --node DIR

MODEL is a Llama in 16 bits. Every file is run by llama.cpp, of which DIR has node_modules/node-llama-cpp, over windows of --ctx
tokens of TEXT, and its distributions are held against those of MODEL in transformers. The importance matrix is the mean
square of what each layer reads, as llama-imatrix has it, on as many windows of the calibration texts in equal parts as gptq
and learning have.
"""

import argparse
import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from transformers import AutoModelForCausalLM

from interop_gguf import dense_tensors, llama_cpp, logits, run

NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def windows(lutq: Path, model: Path, text: Path, ctx: int, count: int) -> list[list[int]]:
    out = subprocess.run([lutq, "tokenize", model, "--text", text, "--json"], capture_output=True, text=True, check=True).stdout
    ids = json.loads(out)["ids"]
    return [ids[i * ctx : (i + 1) * ctx] for i in range(min(count, len(ids) // ctx))]


def importance(model: torch.nn.Module, calib: list[list[int]]) -> dict[str, np.ndarray]:
    sums, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):

            def add(_module, inputs, name=name):
                x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
                sums[name] = sums.get(name, 0) + (x * x).sum(0)

            hooks.append(module.register_forward_pre_hook(add))
    with torch.no_grad():
        for w in calib:
            model(torch.tensor([w]))
    for h in hooks:
        h.remove()
    tokens = sum(map(len, calib))
    return {name: (s / tokens).float().numpy() for name, s in sums.items()}


def quantize_by_ggml(lib: ctypes.CDLL, file: Path, kind: str, config: dict, dense: dict, weights: dict | None) -> None:
    """Replaces the blocks of a file by ggml's own."""
    reader = GGUFReader(file, "r+")
    kind = GGMLQuantizationType[kind]
    elements, size = GGML_QUANT_SIZES[kind]
    for t in reader.tensors:
        if t.tensor_type != kind:
            continue
        _, block, module, _ = t.name.split(".")
        name = f"model.layers.{block}.{NAMES[module]}"
        w = dense[name + ".weight"].float().numpy()
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(module)
        if heads:
            w = w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        w = np.ascontiguousarray(w)
        out = np.zeros(w.size // elements * size, np.uint8)
        matter = weights[name].ctypes.data if weights else None
        lib.ggml_quantize_chunk(int(kind), w.ctypes.data, out.ctypes.data, 0, w.shape[0], w.shape[1], matter)
        t.data[:] = out.reshape(t.data.shape)
    reader.data.flush()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", type=Path, required=True)
    p.add_argument("--node", type=Path, required=True)
    p.add_argument("--calib", type=Path, action="append", required=True)
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--windows", type=int, default=24, help="of the text (24)")
    p.add_argument("--calib-windows", type=int, default=64, help="of the calibration texts together (64)")
    p.add_argument("--device", default="cpu", help="that lutq fits and learns on (cpu)")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    base = a.node / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so"
    lib = ctypes.CDLL(str(base))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip

    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    config = json.loads((a.model / "config.json").read_text())
    text = windows(a.lutq, a.model, a.text, a.ctx, a.windows)
    logp = torch.log_softmax(logits(model, text), -1).numpy()
    each = a.calib_windows // len(a.calib)
    matter = importance(model, [w for t in a.calib for w in windows(a.lutq, a.model, t, a.ctx, each)])
    dense = dense_tensors(a.model)
    del model

    def report(name: str, file: Path) -> None:
        _, q = llama_cpp(a.node, file, [], text, config["vocab_size"], a.work)
        logq = np.log(np.maximum(q / q.sum(-1, keepdims=True), 1e-45))
        nll = -np.mean([logq[w, i, text[w][i + 1]] for w in range(len(text)) for i in range(a.ctx - 1)])
        kl = (np.exp(logp) * (logp - logq)).sum(-1).mean(-1)  # of each window
        error = kl.std(ddof=1) / np.sqrt(len(kl))
        print(f"| {name} | {np.exp(nll):.3f} | {kl.mean():.4f} ± {error:.4f} | {file.stat().st_size / 1e6:.2f} |", flush=True)

    def export(source: Path, *flags: str) -> Path:
        run(a.lutq, "export", source, a.work / "gguf", "--to", "gguf", "--force", *flags)
        return a.work / "gguf/model.gguf"

    fit = ["--method", "gptq", "--calib-windows", a.calib_windows, "--calib-ctx", a.ctx, "--device", a.device]
    for t in a.calib:
        fit += ["--calib", t]
    print("| | perplexity | mean KL | MB |\n|---|--:|--:|--:|", flush=True)
    report("16 bits", export(a.model, "--kept", "f16"))
    for kind, codebook in (("Q4_0", "q4"), ("IQ4_NL", "iq4nl")):
        flags = ["--codebook", codebook, "--group", "32", "--scale", "mse"]
        for name, weights in ((f"{kind}, ggml", None), (f"{kind}, ggml with an importance matrix", matter)):
            file = export(a.model, "--type", kind.lower())
            quantize_by_ggml(lib, file, kind, config, dense, weights)
            report(name, file)
        for name, more in ((f"{kind}, lutq", []), (f"{kind}, lutq gptq", fit), (f"{kind}, lutq gptq and learned", [*fit, "--learn"])):
            run(a.lutq, "quantize", a.model, a.work / "packed", "--force", "--quiet", *flags, *more)
            report(name, export(a.work / "packed"))


if __name__ == "__main__":
    main()
