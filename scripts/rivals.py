#!/usr/bin/env python3
"""Writes formats/*/testdata: small folders that other programs quantized, each with values.json,
the SHA-256 of what every weight is in float32. What writes and dequantizes is the program
itself where it is a library that runs on a CPU, and numpy where that takes a GPU.

    rivals.py ct|bnb|mlx|gptq|awq|modelopt|mxfp4|marlin|marlin24|kbit|lutgemm|exl3|kbit_golden …

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


def bnb():
    import torch
    from bitsandbytes.functional import dequantize_4bit, dequantize_blockwise, quantize_4bit
    from safetensors.torch import save_file

    def folder(case, kind, nested, layers):
        tensors, want = {"norm.weight": torch.ones(K, dtype=torch.bfloat16)}, {}
        for i, (name, shape, block) in enumerate(layers):
            w = torch.from_numpy(weights(10 + i, *shape))
            q, state = quantize_4bit(w, blocksize=block, compress_statistics=nested, quant_type=kind)
            tensors[name] = q
            tensors |= {f"{name}.{a}": b for a, b in state.as_dict(packed=True).items()}
            # Its own inverse in float32: bit for bit what the table says times the scale.
            scales = state.absmax
            if nested:
                scales = dequantize_blockwise(state.absmax, state.state2) + state.offset
            codes = torch.stack([q.flatten() >> 4, q.flatten() & 15], 1).flatten()[: w.numel()].long()
            values = state.code[codes] * scales[torch.arange(w.numel()) // block]
            if kind == "nf4":
                assert torch.equal(dequantize_4bit(q, state).reshape(w.shape), values.reshape(w.shape))
            want[name] = values.reshape(w.shape).numpy()
        config = {"quantization_config": {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "_load_in_4bit": True, "load_in_8bit": False, "_load_in_8bit": False,
            "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 6.0}}
        write("bnb", case, tensors, config, want, save_file)

    layers = [("a.q_proj.weight", (N, K), 64), ("a.k_proj.weight", (20, 96), 64), ("a.v_proj.weight", (24, 256), 128)]
    folder("nf4", "nf4", False, layers)
    folder("nf4-nested", "nf4", True, [("a.q_proj.weight", (120, K), 64), ("a.k_proj.weight", (20, 96), 64)])
    folder("fp4", "fp4", False, layers)


def mlx():
    import mlx.core as mx

    def folder(case, layers, **how):
        tensors, want, own = {"norm.weight": mx.ones(K, dtype=mx.bfloat16)}, {}, {}
        for i, (name, q) in enumerate(layers):
            w = mx.array(weights(20 + i)).astype(mx.bfloat16)
            parts = mx.quantize(w, **{**how, **q})
            for suffix, p in zip(["weight", "scales", "biases"], parts):
                tensors[f"{name}.{suffix}"] = p
            if (q or how)["mode"] == "affine":
                parts = [parts[0]] + [p.astype(mx.float32) for p in parts[1:]]
                values = mx.dequantize(*parts, **{**how, **q})
                # Which may fuse its product and sum: the two one after the other.
                code = mx.dequantize(parts[0], mx.ones_like(parts[1]), mx.zeros_like(parts[2]), **{**how, **q})
                g = {**how, **q}["group_size"]
                scale, bias = (np.repeat(np.array(p), g, 1) for p in parts[1:])
                exact = np.array(code) * scale + bias
                assert np.allclose(exact, np.array(values), rtol=1e-6, atol=1e-7)
                want[f"{name}.weight"] = exact
            else:
                want[f"{name}.weight"] = np.array(mx.dequantize(*parts, dtype=mx.float32, **{**how, **q}))
            if q:
                own[name] = {**how, **q}
        q = {**how, **own}
        write("mlx", case, tensors, {"quantization": q, "quantization_config": q}, want, lambda t, path, meta: mx.save_safetensors(path, t, meta), "mlx")

    def affine(bits, group):
        return {"bits": bits, "group_size": group, "mode": "affine"}

    folder("affine", [("a.q_proj", {}), ("a.k_proj", affine(2, 32)), ("a.v_proj", affine(3, 64)), ("embed_tokens", affine(5, 64)),
                      ("a.up_proj", affine(6, 32)), ("a.down_proj", affine(8, 64))], bits=4, group_size=64, mode="affine")
    folder("fp4", [("a.q_proj", {}), ("a.k_proj", {"bits": 4, "group_size": 16, "mode": "nvfp4"})], bits=4, group_size=32, mode="mxfp4")


def stream(codes, bits):
    """Packs each row of codes into words of 32 bits, from the lowest bit of the first on."""
    bit = (codes[:, :, None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32)) & 1
    bit = bit.reshape(codes.shape[0], -1, 32)
    return np.ascontiguousarray((bit << np.arange(32, dtype=np.uint32)).sum(2, dtype=np.uint32)).view(np.int32)


def affine_codes(w, bits, groups, symmetric):
    """Codes, zero points and float16 scales of groups of columns."""
    n, count = len(w), int(groups.max()) + 1
    scales, zeros = np.empty((n, count), np.float16), np.empty((n, count), int)
    codes = np.empty(w.shape, int)
    for g in range(count):
        b = w[:, groups == g]
        if symmetric:
            scale, zero = np.abs(b).max(1) * 2 / (2**bits - 1), np.full(n, 2 ** (bits - 1))
        else:
            low, high = np.minimum(b.min(1), 0), np.maximum(b.max(1), 0)
            scale = (high - low) / (2**bits - 1)
            zero = np.clip(np.rint(-low / scale), 0, 2**bits - 1).astype(int)
            zero[0] = 0  # which is stored as the largest
        scales[:, g], zeros[:, g] = scale, zero
        codes[:, groups == g] = np.clip(np.rint(b / scales[:, g, None].astype(float)) + zero[:, None], 0, 2**bits - 1)
    values = (codes - zeros[:, groups]).astype(np.float32) * scales[:, groups].astype(np.float32)
    return codes, zeros, scales, values


def gptq():
    from safetensors.numpy import save_file

    def folder(case, config, layers):
        tensors, want = {"norm.weight": np.ones(K, np.float16)}, {}
        shift = 0 if config["checkpoint_format"] == "gptq_v2" else 1
        for i, (name, bits, group, reorder) in enumerate(layers):
            w = weights(30 + i, 64, K)
            groups = np.arange(K) // group
            if reorder:
                groups = groups[np.random.default_rng(i).permutation(K)]
            codes, zeros, scales, values = affine_codes(w, bits, groups, config["sym"])
            tensors[f"{name}.qweight"] = np.ascontiguousarray(stream(codes, bits).T)
            tensors[f"{name}.qzeros"] = stream((zeros.T - shift) % 2**bits, bits)
            tensors[f"{name}.scales"] = np.ascontiguousarray(scales.T)
            tensors[f"{name}.g_idx"] = groups.astype(np.int32)
            tensors[f"{name}.bias"] = np.zeros(64, np.float16)
            want[f"{name}.weight"] = values
        write("gptq", case, tensors, {"quantization_config": {"quant_method": "gptq", **config}}, want, save_file)

    names = ["a.q_proj", "a.k_proj", "a.v_proj", "a.up_proj"]
    widths = list(zip(names, [4, 2, 3, 8], [64, 64, 32, K], [False] * 4))
    base = {"bits": 4, "group_size": 64, "desc_act": False, "lm_head": False, "pack_dtype": "int32"}
    folder("symmetric", {**base, "sym": True, "checkpoint_format": "gptq"}, widths)
    folder("v1", {**base, "sym": False, "checkpoint_format": "gptq"}, widths)
    folder("v2", {**base, "sym": False, "checkpoint_format": "gptq_v2"}, widths[:1])
    folder("act-order", {**base, "sym": True, "desc_act": True, "checkpoint_format": "gptq"}, [("a.q_proj", 4, 64, True), ("a.k_proj", 3, 32, True)])


def awq():
    from safetensors.numpy import save_file

    def words(codes):
        """Packs eight columns a word in the order of AutoAWQ."""
        c = codes.reshape(len(codes), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].astype(np.uint32)
        return np.ascontiguousarray((c << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32)).view(np.int32)

    tensors, want = {"norm.weight": np.ones(K, np.float16)}, {}
    for i, name in enumerate(["a.q_proj", "a.k_proj"]):
        codes, zeros, scales, values = affine_codes(weights(40 + i, 64), 4, np.arange(K) // 64, i == 1)
        tensors[f"{name}.qweight"] = words(codes.T)
        tensors[f"{name}.qzeros"] = words(zeros.T)
        tensors[f"{name}.scales"] = np.ascontiguousarray(scales.T)
        want[f"{name}.weight"] = values
    config = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 64, "zero_point": True, "modules_to_not_convert": ["lm_head"]}
    write("awq", "gemm", tensors, {"quantization_config": config}, want, save_file)


def modelopt():
    import torch
    from safetensors.torch import save_file

    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    tensors, want = {"norm.weight": torch.ones(K, dtype=torch.bfloat16)}, {}
    for i, name in enumerate(["a.q_proj", "a.k_proj"]):
        w = torch.from_numpy(weights(50 + i)).reshape(N, -1, 16)
        second = w.abs().max() / (6 * 448)
        scale = (w.abs().amax(2) / 6 / second).to(torch.float8_e4m3fn)
        by = scale.float() * second
        index = (w.abs() / by[:, :, None] - levels[:, None, None, None]).abs().argmin(0)
        code = (index | (w < 0) * 8).reshape(N, K).to(torch.uint8)
        tensors[f"{name}.weight"] = code[:, ::2] | code[:, 1::2] << 4
        tensors |= {f"{name}.weight_scale": scale, f"{name}.weight_scale_2": second, f"{name}.input_scale": torch.tensor(0.01)}
        want[f"{name}.weight"] = (levels[index] * torch.where(w < 0, -1.0, 1.0) * by[:, :, None]).reshape(N, K).numpy()
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.39.0"}}
    write("modelopt", "nvfp4", tensors, {"quantization_config": config}, want, save_file)


def mxfp4():
    from safetensors.numpy import save_file

    r = np.random.default_rng(60)
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    name, shape = "model.layers.0.mlp.experts.down_proj", (3, 8, 2)  # experts, rows, blocks of 32 columns
    codes = r.integers(0, 16, shape + (32,), np.uint8)
    scales = r.integers(100, 125, shape, np.uint8)
    scales.flat[0], scales.flat[1] = 0, 252
    tensors = {"norm.weight": np.ones(64, np.float32), f"{name}_blocks": codes[..., ::2] | codes[..., 1::2] << 4, f"{name}_scales": scales}
    values = levels[codes] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
    write("mxfp4", "experts", tensors, {"quantization_config": {"quant_method": "mxfp4"}}, {name: values.reshape(3, 8, 64)}, save_file)


def marlin():
    """As marlin/__init__.py of IST-DASLab/marlin packs: by gathering through permutations."""
    from safetensors.numpy import save_file

    perm = []
    for lane in range(32):
        column = lane // 4
        rows = [2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4 + 4), 2 * (lane % 4 + 4) + 1]
        own = [16 * row + column + 8 * block for block in (0, 1) for row in rows]
        perm += [p + 256 * j for j in range(4) for p in own]
    perm = np.array(perm).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
    grouped = np.array([i + 8 * j for i in range(8) for j in range(8)])
    single = np.array([2 * i + j for i in range(4) for j in [0, 1, 8, 9, 16, 17, 24, 25]])

    def folder(case, seed, n, k, group):
        w = weights(seed, n, k).T.reshape(-1, group, n)  # groups, columns, rows
        scale = (2 * np.abs(w).max(1, keepdims=True) / 15).astype(np.float16)
        codes = np.clip(np.round(w / scale.astype(np.float32)) + 8, 0, 15)
        values = ((codes - 8) * scale.astype(np.float32)).reshape(k, n).T
        tiles = codes.reshape(k, n).astype(np.uint32).reshape(k // 16, 16, n // 16, 16).transpose(0, 2, 1, 3).reshape(k // 16, n * 16)
        tiles = tiles.reshape(-1, perm.size)[:, perm].reshape(k // 16, n * 16)
        packed = np.zeros((k // 16, 2 * n), np.uint32)
        for i in range(8):
            packed |= tiles[:, i::8] << np.uint32(4 * i)
        order = single if group == k else grouped
        scale = scale.reshape(-1, order.size)[:, order].reshape(k // group, n)
        tensors = {"norm.weight": np.ones(k, np.float16), "a.q_proj.B": packed.view(np.int32), "a.q_proj.s": np.ascontiguousarray(scale),
                   "a.q_proj.workspace": np.zeros(n // 128 * 16, np.int32)}
        config = {"quant_method": "gptq", "bits": 4, "group_size": -1 if group == k else group, "desc_act": False, "sym": True,
                  "lm_head": False, "checkpoint_format": "marlin", "is_marlin_format": True}
        write("marlin", case, tensors, {"quantization_config": config}, {"a.q_proj.weight": values}, save_file)

    folder("groups", 70, 256, 256, 128)
    folder("rows", 71, 256, 128, 128)


def marlin24():
    """As vLLM packs 2:4 weights for gptq_marlin_24, and PyTorch orders their metadata: by permutations."""
    from safetensors.numpy import save_file

    perm = []
    for lane in range(32):
        column = lane // 4
        rows = [2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4 + 4), 2 * (lane % 4 + 4) + 1]
        own = [16 * row + column // 2 * 256 + 8 * (column % 2) + 4 * block for block in (0, 1) for row in rows]
        perm += [p + j for j in range(4) for p in own]
    perm = np.array(perm).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
    grouped = np.array([8 * i + j for i in range(8) for j in [0, 4, 1, 5, 2, 6, 3, 7]])

    def folder(case, seed, n, k, group):
        w = weights(seed, n, k)
        scale = (2 * np.abs(w.reshape(n, -1, group)).max(2, keepdims=True) / 15).astype(np.float16)
        codes = np.clip(np.round(w.reshape(n, -1, group) / scale.astype(np.float32)), -8, 7).reshape(n, k).astype(int)
        codes[codes == 0] = 1  # so that the two that are kept are no zeros
        keep = np.sort(np.argsort(-np.abs(w.reshape(n, -1, 4)), axis=2, kind="stable")[:, :, :2], axis=2)
        kept = np.take_along_axis(codes.reshape(n, -1, 4), keep, axis=2)
        sparse = np.zeros((n, k // 4, 4), int)
        np.put_along_axis(sparse, keep, kept, axis=2)
        values = (sparse.reshape(n, -1, group) * scale.astype(np.float32)).reshape(n, k)
        half = k // 2
        tiles = (kept.reshape(n, half).T + 8).astype(np.uint32).reshape(half // 16, 16, n // 16, 16).transpose(0, 2, 1, 3)
        tiles = tiles.reshape(-1, perm.size)[:, perm].reshape(half // 16, n * 16)
        packed = np.zeros((half // 16, 2 * n), np.uint32)
        for i in range(8):
            packed |= tiles[:, i::8] << np.uint32(4 * i)
        nibbles = (keep[:, :, 0] | keep[:, :, 1] << 2).reshape(n, -1, 4)
        words = (nibbles << np.array([0, 4, 8, 12])).sum(2).astype(np.uint16)
        meta = np.zeros(words.size, np.uint16)
        meta[scattered(n, k // 16)] = words
        order = np.arange(8) if group == k else grouped
        scale = np.ascontiguousarray(scale[:, :, 0].T).reshape(-1, order.size)[:, order].reshape(k // group, n)
        tensors = {"norm.weight": np.ones(k, np.float16), "a.q_proj.B_24": packed.view(np.int32),
                   "a.q_proj.B_meta": meta.view(np.int16).reshape(k // 32, 2 * n), "a.q_proj.s": np.ascontiguousarray(scale)}
        config = {"quant_method": "gptq", "bits": 4, "group_size": -1 if group == k else group, "desc_act": False, "sym": True,
                  "lm_head": False, "checkpoint_format": "marlin_24"}
        write("marlin24", case, tensors, {"quantization_config": config}, {"a.q_proj.weight": values}, save_file)

    def scattered(n, columns):
        """Where PyTorch's _calculate_meta_reordering_scatter_offsets puts words of 16 bits."""
        r = np.arange(n)[:, None] + np.zeros((1, columns), int)
        c = np.arange(columns)[None] + np.zeros((n, 1), int)
        r = r // 64 * 64 + r % 2 * 2 + r % 8 // 4 + r % 32 % 4 // 2 * 32 + r % 64 // 8 * 4
        swap = ((r % 2 == 0) & (c % 2 == 1)).astype(int) - ((r % 2 == 1) & (c % 2 == 0))
        r, c = r + swap, c - swap
        return c // 2 * n * 2 + r * 2 + c % 2

    folder("groups", 72, 256, 256, 128)
    folder("rows", 73, 256, 128, 128)


def exl3_values(words, book, rows, cols):
    """What tiles [cols / 16, rows / 16, words] of exllamav3 stand for before rotation, [cols, rows], as its kernels
    reconstruct them: bits from the highest of each word of 32 on, states that end at theirs."""
    bits = 256 * words.shape[2] // 16  # of a tile
    steps = np.arange(256)
    whole, half = divmod(2 * bits // 256, 2)
    ends = np.cumsum(whole + half * (steps % 2))
    string = np.unpackbits(np.ascontiguousarray(words).view("<u4").astype(">u4").view(np.uint8), axis=2)
    window = string[:, :, (ends[:, None] - 16 + np.arange(16)) % bits].astype(np.uint32)
    s = (window << np.arange(15, -1, -1, dtype=np.uint32)).sum(3, dtype=np.uint32)
    if book == "mul1":
        p = s * np.uint32(0x83DCD12D)
        total = sum(p >> np.uint32(8 * i) & np.uint32(255) for i in range(4))
        h = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(float)
        values = ((1024.0 + total) * h[0] + h[1]).astype(np.float16)
    else:
        x = s * np.uint32(0xCBAC1FED) if book == "mcg" else s * np.uint32(89226354) + np.uint32(64248484)
        x = np.ascontiguousarray(x & np.uint32(0x8FFF8FFF) ^ np.uint32(0x3B603B60)).view(np.uint16).reshape(*s.shape, 2).view(np.float16)
        values = x[..., 0] + x[..., 1]
    lane, j = steps >> 3, steps & 7
    tiles = np.empty((*words.shape[:2], 16, 16), np.float16)
    tiles[:, :, 2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1), (lane >> 2) + 8 * (j >> 2)] = values
    return tiles.transpose(0, 2, 1, 3).reshape(cols, rows).astype(np.float32)


def exl3_mix(w):
    """Hadamard matrices of 128 down the first axis, not normed: sums of float32 in the order of butterflies."""
    w, h = w.reshape(-1, 128, w.shape[1]), 1
    while h < 128:
        v = w.reshape(w.shape[0], 128 // (2 * h), 2, h, w.shape[2])
        w, h = np.stack([v[:, :, 0] + v[:, :, 1], v[:, :, 0] - v[:, :, 1]], 2).reshape(w.shape), 2 * h
    return w.reshape(-1, w.shape[2])


def exl3():
    """As exllamav3 1.6.5 stores and reconstructs, which takes a GPU: scripts/exl3_check.py holds its own folders against lutq. Any
    bits are a tile."""
    from safetensors.numpy import save_file

    def layer(r, n, k, bits, book, signs=False):
        """The tensors of a layer, and its weights [n, k]."""
        rows, cols = -(-n // 128) * 128, -(-k // 128) * 128
        words = r.integers(0, 1 << 16, (cols // 16, rows // 16, int(16 * bits)), np.uint16)
        suh = (0.03 * r.standard_normal(cols)).astype(np.float16)
        svh = (r.choice([-1, 1], rows) * (0.5 + r.random(rows))).astype(np.float16)
        tensors = {"trellis": words.view(np.int16)}
        if signs:
            suh, svh = (r.choice([-1, 1], size).astype(np.float16) for size in (cols, rows))
            tensors |= {name: np.packbits(v < 0, bitorder="little").view(np.int16) for name, v in (("su", suh), ("sv", svh))}
        else:
            tensors |= {"suh": suh, "svh": svh}
        mark = {"mul1": 0x83DCD12D, "mcg": 0xCBAC1FED}.get(book)
        if mark:
            tensors[book] = np.array(mark, np.uint32).view(np.int32)
        w = exl3_mix(exl3_values(words, book, rows, cols))
        w = np.ascontiguousarray(exl3_mix(np.ascontiguousarray(w.T))) * np.float32(1 / 128)  # [rows, cols]
        return tensors, ((w * svh.astype(np.float32)[:, None]) * suh.astype(np.float32))[:n, :k]

    def folder(case, seed, layers, kept, config):
        r, tensors, want = np.random.default_rng(seed), dict(kept), {}
        for name, (n, k, bits, book, *signs) in layers.items():
            parts, want[f"{name}.weight"] = layer(r, n, k, bits, book, *signs)
            tensors |= {f"{name}.{part}": data for part, data in parts.items()}
            bias = tensors.get(f"{name}.bias")
            if bias is not None and len(bias) > n:
                want[f"{name}.bias"] = bias[:n].astype(np.float32)
        quantization = {"quant_method": "exl3", "version": "1.6.5", "bits": 2.5, "head_bits": 6, "out_scales": "always"}
        write("exl3", case, tensors, config | {"quantization_config": quantization}, want, save_file)

    # Of a model that is known, whose matrices are not of multiples of 128.
    hidden, inter, vocab, p = 96, 160, 40, "model.layers.0."
    r = np.random.default_rng(100)
    half = lambda *shape: (0.1 * r.standard_normal(shape)).astype(np.float16)
    kept = {"model.embed_tokens.weight": half(vocab, hidden), "model.norm.weight": 1 + half(hidden),
            p + "input_layernorm.weight": 1 + half(hidden), p + "post_attention_layernorm.weight": 1 + half(hidden)}
    for proj, n in (("q", 96), ("k", 48), ("v", 48), ("o", 96)):
        kept[f"{p}self_attn.{proj}_proj.bias"] = np.concatenate([half(n), np.zeros(128 - n, np.float16)])
    folder("padded", 101, {
        p + "self_attn.q_proj": (96, hidden, 1, "mul1"), p + "self_attn.k_proj": (48, hidden, 1.5, "mul1"),
        p + "self_attn.v_proj": (48, hidden, 2, "mul1"), p + "self_attn.o_proj": (hidden, 96, 2.5, "mul1"),
        p + "mlp.gate_proj": (inter, hidden, 3, "mul1"), p + "mlp.up_proj": (inter, hidden, 3.5, "mul1"),
        p + "mlp.down_proj": (hidden, inter, 4, "mcg"), "lm_head": (vocab, hidden, 6, "mul1"),
    }, kept, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inter,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": vocab,
              "rms_norm_eps": 1e-5, "attention_bias": True, "tie_word_embeddings": False, "max_position_embeddings": 64})
    folder("books", 102, {
        "a.q_proj": (128, 256, 8, "mul1"), "a.k_proj": (128, 128, 5, "mcg"), "a.v_proj": (128, 128, 1, "3inst"),
        "a.o_proj": (256, 128, 3, "3inst", True), "a.up_proj": (128, 128, 7, "mcg"),
    }, {"norm.weight": np.ones(128, np.float16)}, {})


def kbit_codebook(bits):
    """The table of bitsandbytes' branch: quantiles of a normal distribution over the largest, each in float32."""
    from statistics import NormalDist

    levels = np.array([NormalDist().inv_cdf((i + 0.5) / 2**bits) for i in range(2**bits)], np.float32)
    return levels / np.abs(levels).max()


def e4m4(v):
    """As the branch encodes scales: no carry out of the mantissa, and no saturation."""
    log = np.log2(np.maximum(v, np.float32(1e-30)).astype(float)).astype(np.float32)
    e = np.floor(log).astype(int) + 11
    m = np.round((v / 2.0 ** (e - 11) - 1) * 16).clip(0, 15)
    return np.where(e <= 0, np.round(v / 2.0**-10 * 16).clip(0, 15), e.clip(0, 15) * 16 + m).astype(np.uint8)


def kbit_codes(w, table):
    """As the branch encodes blocks of weights: their codes, by the exact scales, and these."""
    top = np.abs(w).max(1)
    x = w / np.maximum(top, np.float32(1e-8))[:, None]
    return np.concatenate([np.abs(part[:, :, None] - table).argmin(2).astype(np.uint8) for part in np.array_split(x, -(-len(x) // 4096))]), top


def kbit_weights():
    """2**20 weights in blocks of 32 of any size, from far too large to far too small, some of them just below a power of two."""

    def mixed(i):
        z = i.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)

    z = mixed(np.arange(1 << 20)).view(np.uint16).reshape(-1, 4).astype(int).sum(1) - (1 << 17)
    block = np.arange(1 << 15)
    k = (mixed(block + (1 << 20)) % np.uint64(48)).astype(int) - 6  # none is above 2**-k
    w = np.ldexp(z.reshape(-1, 32).astype(np.float32), -17 - k[:, None]).astype(np.float32)
    near = block % 8 == 0
    w[near, 0] = np.ldexp(1 - (block[near] // 8 % 4) * 2.0**-24, -k[near]).astype(np.float32)
    w[block % 97 == 0] = 0
    return w


def kbit_golden():
    """Prints what the test of package quantize/kbit has: the digests of tables, scales and codes, a byte each."""
    w = kbit_weights()
    for bits in range(2, 6):
        table = kbit_codebook(bits)
        codes, top = kbit_codes(w, table)
        print(bits, hashlib.sha256(table.tobytes() + e4m4(top).tobytes() + codes.tobytes()).hexdigest())


def kbit():
    """As bitsandbytes' branch of k-bit kernels packs, by sums over the bits of each block."""
    from safetensors.numpy import save_file

    def folder(case, layout, layers):
        tensors, want, shapes = {"norm.weight": np.ones(K, np.float16)}, {}, {}
        for i, (name, bits, n, k, wide) in enumerate(layers):
            table = kbit_codebook(bits)
            w = weights(80 + i, n, k).reshape(-1, 32)
            codes, top = kbit_codes(w, table)
            codes = codes.astype(np.uint32)
            stored = top if wide else e4m4(top)
            scale = top if wide else np.where(stored < 16, 2.0**-14 * stored, 2.0 ** (stored // 16 - 11.0) * (1 + stored % 16 / 16)).astype(np.float32)
            planes = np.stack([((codes >> np.uint32(b) & np.uint32(1)) << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32) for b in range(bits)], 1)
            if layout == "kbit-tiled":  # from rows and blocks to tiles of both
                tiled = lambda a: a.reshape(n // 128, 128, k // 64, 2, -1).transpose(2, 0, 1, 3, 4)
                packed, stored = tiled(planes).ravel(), tiled(stored).ravel()
            else:
                packed = np.concatenate([planes.ravel(), np.zeros(bits, np.uint32)])
            tensors |= {f"{name}.kbit_packed": np.ascontiguousarray(packed).view(np.int32), f"{name}.kbit_absmax": np.ascontiguousarray(stored), f"{name}.kbit_codebook": table}
            want[f"{name}.weight"] = (table[codes] * scale[:, None]).reshape(n, k)
            shapes[name] = [n, k]
        config = {"quant_method": "kbit", "layout": layout, "block_size": 32, "shapes": shapes}
        write("kbit", case, tensors, {"quantization_config": config}, want, save_file)

    folder("flat", "kbit", [("a.q_proj", 2, 40, 96, False), ("a.k_proj", 3, 40, 96, True), ("a.v_proj", 4, 40, 96, False), ("a.o_proj", 5, 40, 96, False)])
    folder("tiled", "kbit-tiled", [("a.q_proj", 2, 256, 128, False), ("a.k_proj", 5, 128, 64, True)])


def lutgemm():
    """As the code of LUT-GEMM reads: dequantize_cpu of nQWeight_fp16.cu, of greedy binary codes with and without offsets."""
    from safetensors.numpy import save_file

    def layer(seed, n, k, planes, group, offset):
        w = weights(seed, n, k).reshape(n, k // group, group)
        bias = w.mean(2).astype(np.float16) if offset else np.zeros((n, k // group), np.float16)
        rest, bits, alphas = w - bias.astype(np.float32)[:, :, None], [], []
        for _ in range(planes):
            bits.append(rest >= 0)
            alphas.append(np.abs(rest).mean(2).astype(np.float16))
            rest = rest - np.where(bits[-1], 1, -1) * alphas[-1].astype(np.float32)[:, :, None]
        words = np.zeros((k // 32, planes, n), np.uint32)
        for i, plane in enumerate(bits):
            plane = plane.reshape(n, k)
            for c in range(k):
                words[c // 32, i] |= plane[:, c].astype(np.uint32) << np.uint32(c % 32)
        alpha = np.ascontiguousarray(np.stack(alphas).transpose(2, 0, 1))  # groups, planes, rows
        values = np.empty((n, k), np.float32)
        for c in range(k):
            v = bias[:, c // group].astype(np.float32)
            for i in range(planes):
                a = alpha[c // group, i].astype(np.float32)
                v = np.where(words[c // 32, i] >> np.uint32(c % 32) & 1, v + a, v - a)
            values[:, c] = v
        tensors = {"bWeight": words.view(np.int32), "alpha": alpha}
        return tensors | ({"q_bias": np.ascontiguousarray(bias.T)} if offset else {}), values

    def folder(case, layers):
        tensors, want = {"norm.weight": np.ones(K, np.float16)}, {}
        for i, (name, how) in enumerate(layers):
            parts, want[f"{name}.weight"] = layer(90 + i, *how)
            tensors |= {f"{name}.{part}": data for part, data in parts.items()}
        write("lutgemm", case, tensors, {"quantization_config": {"quant_method": "lutgemm"}}, want, save_file)

    folder("offsets", [("a.q_proj", (40, 96, 3, 32, True)), ("a.k_proj", (24, 128, 4, 64, True)), ("a.v_proj", (6, 64, 8, 64, True))])
    folder("plain", [("a.q_proj", (40, 96, 2, 96, False)), ("a.k_proj", (24, 64, 1, 32, False))])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
