#!/usr/bin/env python3
"""Writes formats/*/testdata: small folders that other programs quantized, each with values.json,
the SHA-256 of what every weight is in float32. What writes and dequantizes is the program
itself where it is a library that runs on a CPU, and numpy where that takes a GPU.

    rivals.py ct|bnb|mlx|gptq|awq|modelopt

takes torch, safetensors and numpy, and compressed-tensors==0.17.0, bitsandbytes==0.50.2 or mlx==0.32.4."""
import hashlib
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent / "formats"
N, K = 40, 192  # of most matrices


def weights(seed, n=N, k=K):
    """Numbers spread as those of a layer are, some rows and columns more than others."""
    r = np.random.default_rng(seed)
    w = r.standard_normal((n, k)) * 0.03 * (1 + r.random((n, 1))) * (1 + 2 * (r.random((1, k)) > 0.95))
    return w.astype(np.float32)


def write(fmt, case, tensors, config, want, save, metadata="pt"):
    """Writes a folder. want has the float32 values of every weight by name."""
    d = ROOT / fmt / "testdata" / case
    d.mkdir(parents=True, exist_ok=True)
    save(tensors, str(d / "model.safetensors"), {"format": metadata})
    (d / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    sums = {}
    for name, w in sorted(want.items()):
        w = np.ascontiguousarray(w, dtype="<f4")
        sums[name] = {"shape": list(w.shape), "sha256": hashlib.sha256(w.tobytes()).hexdigest()}
    (d / "values.json").write_text(json.dumps(sums, indent=1) + "\n")
    print(d, (d / "model.safetensors").stat().st_size, "bytes")


def ct():
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import save_file

    def layer(w, fmt, args, group, order=None, dtype=torch.bfloat16):
        """Compresses a weight; returns its tensors, how config.json has it, and its values."""
        args = QuantizationArgs(**args)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=fmt)
        w = torch.from_numpy(w).to(dtype)
        n, k = w.shape
        columns = torch.arange(k) // group if order is None else order
        blocks = [w[:, columns == g] for g in range(int(columns.max()) + 1)]
        low = torch.stack([b.min(1).values for b in blocks], 1)
        high = torch.stack([b.max(1).values for b in blocks], 1)
        state = {"weight": w}
        if fmt == "nvfp4-pack-quantized":
            state["weight_global_scale"] = (448 * 6 / w.abs().max().float()).reshape(1)
            scale, zero = calculate_qparams(low, high, args, global_scale=state["weight_global_scale"])
        else:
            scale, zero = calculate_qparams(low, high, args)
        state["weight_scale"] = scale.to(dtype) if args.type == "int" else scale
        if not args.symmetric:
            state["weight_zero_point"] = zero
        if order is not None:
            state["weight_g_idx"] = order.to(torch.int32)
        compressor = BaseCompressor.get_value_from_registry(fmt)
        packed = compressor.compress(state, scheme)
        if fmt == "nvfp4-pack-quantized":  # whose own inverse rounds to bf16
            codes = unpack_fp4_from_uint8(packed["weight_packed"], n, k, dtype=torch.float32)
            scale = packed["weight_scale"].float()
            return packed, dequantize(codes, scale, global_scale=packed["weight_global_scale"], dtype=torch.float32)
        # What it stands for: its own inverse, with scales of all the bits that they have.
        wide = {a: b.float() if a == "weight_scale" and b.dtype in (torch.bfloat16, torch.float16) else b for a, b in packed.items()}
        values = compressor.decompress(wide, scheme)["weight"].float()
        return packed, values

    def args(bits, symmetric=True, group=64, **more):
        strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
        return {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy, **more}

    def folder(case, fmt, layers):
        tensors, want, groups = {"norm.weight": torch.ones(K, dtype=torch.bfloat16)}, {}, {}
        for i, (name, target, how, more) in enumerate(layers):
            own = more.pop("format", fmt)
            packed, values = layer(weights(i), own, how, how.get("group_size") or K, **more)
            tensors |= {f"{name}.{a}": b.contiguous() for a, b in packed.items()}
            want[f"{name}.weight"] = values.numpy()
            if target:
                groups[f"group_{i}"] = {"targets": [target], "input_activations": None, "output_activations": None, "format": own,
                                        "weights": json.loads(QuantizationArgs(**how).model_dump_json())}
        config = {"quantization_config": {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
                                          "ignore": ["lm_head"], "config_groups": groups}}
        write("ct", case, tensors, config, want, save_file)

    folder("ints", "pack-quantized", [
        ("a.q_proj", "re:.*q_proj$", args(2), {}),
        ("a.k_proj", "a.k_proj", args(3, group=32), {"dtype": torch.float16}),
        ("a.v_proj", "Linear", args(4), {}),
        ("a.o_proj", None, args(4), {"dtype": torch.float32}),
        ("a.up_proj", "re:.*up_proj", args(5, group=0), {}),
        ("a.down_proj", "re:.*down_proj", args(8), {}),
    ])
    torch.manual_seed(1)
    order = torch.randperm(K) // 64
    folder("asymmetric", "pack-quantized", [
        ("a.q_proj", "re:.*q_proj$", args(2, False), {}),
        ("a.k_proj", "re:.*k_proj$", args(3, False), {}),
        ("a.v_proj", "Linear", args(4, False, group=0), {}),
        ("a.down_proj", "re:.*down_proj", args(8, False), {}),
        ("a.o_proj", "re:.*o_proj", args(4, False, actorder="group"), {"order": order}),
        ("a.up_proj", "re:.*up_proj", args(4, True, actorder="group"), {"order": order}),
    ])
    fp4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
    nv = {**fp4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn}
    mx = {**fp4, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    folder("mixed", "mixed-precision", [
        ("a.q_proj", "re:.*q_proj$", nv, {"format": "nvfp4-pack-quantized"}),
        ("a.k_proj", "re:.*k_proj$", mx, {"format": "mxfp4-pack-quantized"}),
        ("a.v_proj", "re:.*v_proj$", args(8, group=0), {"format": "int-quantized"}),
        ("a.o_proj", "re:.*o_proj$", args(4, group=32), {"format": "pack-quantized"}),
    ])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
