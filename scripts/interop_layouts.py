#!/usr/bin/env python3
"""Holds the layouts of other kernels that lutq repack writes against what their publishers' own packers make of the same
weights, byte for byte, on a CPU:

    marlin    QuantLinear.pack of auto-gptq==0.7.1, with and without groups
    marlin24  Marlin24Compressor of compressed-tensors==0.12.2, which version 0.17 has no longer, with and without groups
    kbit      bitsandbytes' functions of its branch, as scripts/rivals.py has them, since no release does
    lutgemm   the formula of LUT-GEMM's dequantize_cpu, since no package has it

    scripts/venv.sh interop
    .venv/bin/python scripts/interop_layouts.py LUTQ

It takes seconds, besides 24 MB to download, which go to a folder of their own. The exit code is 3 where a byte differs."""
import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import read_container
import rivals

PACKAGES = ["auto-gptq==0.7.1", "compressed-tensors==0.12.2"]
# With 256 columns compressed-tensors orders scales of 128 as if there were one for a row, which vLLM does not.
HIDDEN, INTERMEDIATE = 512, 768


def model(d: Path):
    """Writes a Llama of one block whose layers all layouts hold."""
    r = np.random.default_rng(1)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64, "tie_word_embeddings": True,
              "torch_dtype": "float16", "rms_norm_eps": 1e-5, "max_position_embeddings": 64}
    p = "model.layers.0."
    shapes = {p + f"self_attn.{n}_proj.weight": (HIDDEN, HIDDEN) for n in "qkvo"}
    shapes |= {p + f"mlp.{n}_proj.weight": (INTERMEDIATE, HIDDEN) for n in ("gate", "up")} | {p + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE)}
    # None is near 0, so that no code that is kept is: which columns are kept beside one is for a packer to choose.
    tensors = {n: (r.choice([-0.03, 0.03], s) * (0.5 + r.random(s)) * (1 + r.random((s[0], 1)))).astype(np.float16) for n, s in shapes.items()}
    tensors |= {n: np.ones(HIDDEN, np.float16) for n in (p + "input_layernorm.weight", p + "post_attention_layernorm.weight", "model.norm.weight")}
    tensors["model.embed_tokens.weight"] = r.standard_normal((64, HIDDEN)).astype(np.float16)
    d.mkdir()
    save_file(tensors, d / "model.safetensors", {"format": "pt"})
    (d / "config.json").write_text(json.dumps(config))


def layers(container: Path):
    """The layers of a container: name, its tensors, its float32 weights."""
    tensors = load_file(container / "model.safetensors")
    dense = container.parent / "dense.safetensors"
    subprocess.run([sys.executable, read_container.__file__, container, "--out", dense], check=True, stdout=subprocess.DEVNULL)
    for name, w in load_file(dense).items():
        layer = name.removesuffix(".weight")
        yield layer, {n.removeprefix(layer + "."): t for n, t in tensors.items() if n.startswith(layer + ".")}, w


def marlin(parts, w):
    import torch

    spec = importlib.util.spec_from_file_location("qlinear_marlin", marlin.at / "auto_gptq/nn_modules/qlinear/qlinear_marlin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    n, k = w.shape
    scales = torch.from_numpy(parts["scales"])
    torch.cuda.get_device_capability = lambda *_: (8, 0)  # which it asks for although it packs on a CPU
    linear, packed = torch.nn.Linear(k, n, bias=False), module.QuantLinear(4, k // scales.shape[1], k, n, False)
    linear.weight.data = torch.from_numpy(w).half()
    packed.pack(linear, scales)
    return {"B": packed.B, "s": packed.s}


def marlin24(parts, w):
    import torch
    from compressed_tensors.compressors.sparse_quantized_compressors.marlin_24 import Marlin24Compressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    groups = parts["scales"].shape[1]
    how = {"strategy": "channel"} if groups == 1 else {"strategy": "group", "group_size": w.shape[1] // groups}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, type="int", symmetric=True, **how))
    state = {"a.weight": torch.from_numpy(w).half(), "a.weight_scale": torch.from_numpy(parts["scales"])}
    made = Marlin24Compressor().compress(state, {"a": scheme})
    return {"B_24": made["a.weight_packed"], "B_meta": made["a.meta"], "s": made["a.scale_packed"]}


def kbit(parts, w):
    """The weights here are those before: what encodes is the other program's."""
    table = rivals.kbit_codebook(4)
    codes, top = rivals.kbit_codes(w.astype(np.float32).reshape(-1, 32), table)
    planes = (codes[:, None] >> np.arange(4)[:, None] & 1) @ (1 << np.arange(32, dtype=np.uint64))
    packed = np.append(planes.astype(np.uint32).ravel(), np.zeros(4, np.uint32)).view(np.int32)
    return {"kbit_packed": packed, "kbit_absmax": rivals.e4m4(top), "kbit_codebook": table}


def lutgemm(parts, w, file):
    """Reads what is written as LUT-GEMM does."""
    words, alpha, bias = (file[n] for n in ("bWeight", "alpha", "q_bias"))
    k = np.arange(w.shape[1])
    group = k // (len(k) // len(alpha))
    v = bias.astype(np.float32)[group]
    for b in range(words.shape[1]):
        v = v + np.where(words[k // 32, b].view(np.uint32) >> (k % 32)[:, None].astype(np.uint32) & 1, np.float32(1), np.float32(-1)) * alpha[group, b].astype(np.float32)
    return {"weight": v.T}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lutq", type=Path)
    lutq = parser.parse_args().lutq.resolve()
    with tempfile.TemporaryDirectory() as work:
        return compare(lutq, Path(work))


def compare(lutq, work):
    marlin.at = work / "packages"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", marlin.at, *PACKAGES], check=True)
    sys.path.insert(0, str(marlin.at))
    model(work / "model")
    source = load_file(work / "model/model.safetensors")
    exact = ["--codebook", "sym", "--scale-type", "f16"]
    differ = 0
    for layout, make, how in [
        ("marlin", marlin, [*exact, "--group", "128"]),
        ("marlin", marlin, [*exact, "--group", "row"]),
        ("marlin24", marlin24, [*exact, "--group", "128", "--method", "magnitude"]),
        ("marlin24", marlin24, [*exact, "--group", "row", "--method", "magnitude"]),
        ("kbit", kbit, ["--kbit-encode", "bnb"]),
        ("lutgemm", lutgemm, ["--method", "bcq", "--bits", "3", "--group", "128"]),
    ]:
        container, out = work / "container", work / "out"
        subprocess.run([lutq, "quantize", work / "model", container, "--bits", "4", *how, "--quiet", "--force"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([lutq, "repack", container, out, "--target", layout, "--force"], check=True, stdout=subprocess.DEVNULL)
        written, bad, size = load_file(out / "model.safetensors"), 0, 0
        for name, parts, w in layers(container):
            file = {n.removeprefix(name + "."): t for n, t in written.items() if n.startswith(name + ".")}
            if layout == "lutgemm":
                want, file = make(parts, w, file), {"weight": w}
            else:
                want = make(parts, source[name + ".weight"] if layout == "kbit" else w)
            for part, data in want.items():
                data, size = np.asarray(data), size + file[part].nbytes
                same = data.dtype == file[part].dtype and data.shape == file[part].shape and data.tobytes() == file[part].tobytes()
                if not same:
                    print(f"{layout}: {name}.{part} differs")
                    bad += 1
            if set(file) != set(want):
                print(f"{layout}: {name} has {sorted(file)}: want {sorted(want)}")
                bad += 1
        differ += bad
        print(f"{layout} {' '.join(how)}: {size} bytes {'are equal' if not bad else 'are not all equal'}")
    return 3 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
