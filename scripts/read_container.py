#!/usr/bin/env python3
"""Reads a lutq container with numpy and safetensors alone: an independent check of the format.

    scripts/read_container.py DIR               one line for each layer: SHA-256, shape, name; then the total
    scripts/read_container.py DIR --json        the same as one JSON object
    scripts/read_container.py DIR --out W.safetensors   also write the float32 weights, under P.weight

A quantized linear P is P.codes (U8, each row a little-endian bit stream), P.scales (F16, BF16, F32,
or U8 for the byte types) and P.codebook (F32); the weights are codebook[code] * scale, one float32
product. In version 2 a layer may be of another kind: of kind bcq it is P.planes, P.alphas and, unless left out,
P.offsets; the weights are offset ± alpha for one plane after the other, float32 sums. Of kind lut24 it has
P.pattern as well, a nibble for four columns with the two that have codes; the others are 0. In version 3 it may be of kind
trellis, P.rings, P.scales, and where they are stored P.factors and P.pairs: see formats/lutq/doc.go. A layer's SHA-256 is over its [N, K] float32 weights, little endian, row by row; the total is
over all layers' bytes, sorted by name. The digests in config.json, of what was quantized and, where there
are any, of every tensor, header and file, are recomputed and compared; the exit code is 3 when one differs.
"""

import argparse
import base64
import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def layer(codes: np.ndarray, scales: np.ndarray, codebook: np.ndarray, k: int, group: int) -> np.ndarray:
    """The float32 weights [N, K] of one linear."""
    bits = codebook.size.bit_length() - 1
    stream = np.unpackbits(codes, axis=1, bitorder="little")[:, : k * bits].reshape(codes.shape[0], k, bits)
    index = stream @ (1 << np.arange(bits, dtype=np.uint8))
    return codebook[index] * np.repeat(scales, k if group < 0 else group, axis=1)[:, :k]


def binary(planes: np.ndarray, alphas: np.ndarray, offsets: np.ndarray | None, k: int, group: int) -> np.ndarray:
    """The float32 weights [N, K] of one linear of kind bcq."""
    bits = np.unpackbits(planes, axis=2, bitorder="little")[:, :, :k]
    width = k if group < 0 else group
    w = np.zeros((planes.shape[0], k), np.float32)
    if offsets is not None:
        w += np.repeat(offsets, width, axis=1)[:, :k]
    for i in range(planes.shape[1]):
        alpha = np.repeat(alphas[:, :, i], width, axis=1)[:, :k]
        w += np.where(bits[:, i], alpha, -alpha)
    return w


def sparse(codes: np.ndarray, scales: np.ndarray, codebook: np.ndarray, pattern: np.ndarray, k: int, group: int) -> np.ndarray:
    """The float32 weights [N, K] of one linear of kind lut24."""
    kept = layer(codes, scales, codebook, k // 2, group if group < 0 else group // 2)
    w = np.zeros((len(codes), k), np.float32)
    for c in range(k // 4):
        pair = pattern[:, c // 2].astype(int) >> (4 * (c % 2)) & 15
        for i, column in enumerate((pair & 3, pair >> 2)):
            w[np.arange(len(w)), 4 * c + column] = kept[:, 2 * c + i]
    return w


def float16(words: np.ndarray) -> np.ndarray:
    return words.astype("<u2").view("<f2").astype(np.float32)


def ring_values(codebook: str, rate: int, pairs: np.ndarray | None) -> np.ndarray:
    """What each window of 16 bits stands for: [65536, 2] of the codebook trellis, else [65536, 1]."""
    x = np.arange(1 << 16, dtype=np.uint32)
    if codebook == "trellis":
        y = x * np.uint32(0xCBAC1FED)
        word = pairs[y >> 7 & 255] ^ y & np.uint32(0x83C08060 if rate > 8 else 0x81808000)
        return np.stack([float16(word & 0xFFFF), float16(word >> 16)], axis=1)
    if codebook == "mul1":
        total = (x * np.uint32(0x83DCD12D)).view(np.uint8).reshape(-1, 4).sum(axis=1)
        scale, offset = float16(np.array([0x1EEE, 0xC931])).astype(np.float64)
        return ((1024 + total) * scale + offset).astype(np.float16).astype(np.float32)[:, None]
    y = x * np.uint32(0xCBAC1FED) if codebook == "mcg" else x * np.uint32(89226354) + np.uint32(64248484)
    y = y & np.uint32(0x8FFF8FFF) ^ np.uint32(0x3B603B60)
    return (float16(y & 0xFFFF) + float16(y >> 16)).astype(np.float16).astype(np.float32)[:, None]


def ring_windows(rings: np.ndarray, codebook: str, rate: int) -> np.ndarray:
    """The windows of rings [..., bytes], a step after the other."""
    if codebook == "trellis":
        bits = np.unpackbits(rings, axis=-1, bitorder="little")
        first = np.arange(64) * rate
        places = [(first + i) % bits.shape[-1] for i in range(16)]  # the lowest bit first
    else:
        bits = np.unpackbits(rings.reshape(*rings.shape[:-1], -1, 4)[..., ::-1].reshape(rings.shape), axis=-1)
        adds = np.array([(rate + i % 2) // 2 for i in range(256)])
        places = [(adds.cumsum() - 1 - i) % bits.shape[-1] for i in range(16)]
    return sum(bits[..., place].astype(np.int32) << i for i, place in enumerate(places))


def hadamard(v: np.ndarray) -> np.ndarray:
    """Rows times the matrix of ±1, in float32 sums of two numbers 1, 2, 4 and so on apart."""
    v, h = v.copy(), 1
    while h < v.shape[1]:
        for i in range(0, v.shape[1], 2 * h):
            a, b = v[:, i : i + h].copy(), v[:, i + h : i + 2 * h].copy()
            v[:, i : i + h], v[:, i + h : i + 2 * h] = a + b, a - b
        h *= 2
    return v


def trellis(
    rings: np.ndarray, scales: np.ndarray, factors: np.ndarray | None, pairs: np.ndarray | None, n: int, k: int, codebook: str, rate: int
) -> np.ndarray:
    """The float32 weights [N, K] of one linear of kind trellis. pairs are 32 bits each."""
    bands, down, across, _ = rings.shape
    value = ring_values(codebook, rate, pairs)[ring_windows(rings, codebook, rate)]  # [bands, down, across, steps, together]
    side = 8 if codebook == "trellis" else 16
    r = np.zeros((bands, down, side, across, 16), np.float32)
    for step in range(value.shape[3]):
        if codebook == "trellis":
            row, col = (step >> 2 & 3) * 2 + (step & 1), (step >> 4) * 4 + (step & 2)
        else:
            lane, j = step >> 3, step & 7
            row, col = (lane >> 2) + 8 * (j >> 2), 2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1)
        for i in range(value.shape[4]):
            r[:, :, row, :, col + i] = value[..., step, i]
    r = r.reshape(bands * down * side, across * 16)
    mixed = k if codebook == "trellis" else r.shape[1]
    at, size = 0, 128
    while at < mixed:
        while size > mixed - at:
            size //= 2
        r[:, at : at + size] = hadamard(r[:, at : at + size])
        if size < 128:
            r[:, at : at + size] *= np.float32(np.sqrt(128 / size))
        at += size
    if codebook != "trellis":
        for at in range(0, len(r), 128):
            r[at : at + 128] = hadamard(r[at : at + 128].T).T
        r *= np.float32(1 / 128)
    if factors is None:
        x = np.arange(1, k + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
        x = (x ^ x >> 15) * np.uint32(0x85EBCA77)
        factors = np.where(x >> 16 & 1, np.float32(-1), np.float32(1))
    return r[:n, :k] * scales.reshape(-1)[:n, None] * factors[:k].astype(np.float32)


def scale_bytes(b: np.ndarray, kind: str) -> np.ndarray:
    """The values of byte scales: exponent bias 11, below 2^-10 subnormal; s1e4m3 spends the top bit on a sign. e8m0 are powers of two."""
    if kind == "e8m0":
        return np.ldexp(np.float32(1), b.astype(int) - 127)
    signed = kind == "s1e4m3"
    mantissa_bits = 3 if signed else 4
    e = (b >> mantissa_bits) & 15
    m = (b & ((1 << mantissa_bits) - 1)) / np.float32(1 << mantissa_bits)
    value = np.ldexp((e > 0) + m, np.maximum(e.astype(int), 1) - 11)
    return np.where(signed & (b > 127), -value, value).astype(np.float32)


class Folder:
    """The tensors of a folder's shards, as raw bytes: safetensors hands numpy no bfloat16."""

    def __init__(self, path: Path):
        self.where = {}
        for shard in sorted(path.glob("*.safetensors")):
            safe_open(shard, framework="np").keys()  # the library's own checks of the header
            with shard.open("rb") as f:
                (n,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(n))
            header.pop("__metadata__", None)
            for name, info in header.items():
                self.where[name] = (shard, 8 + n + info["data_offsets"][0], info)

    def raw(self, name: str) -> tuple[str, list[int], bytes]:
        shard, start, info = self.where[name]
        begin, end = info["data_offsets"]
        with shard.open("rb") as f:
            f.seek(start)
            return info["dtype"], info["shape"], f.read(end - begin)

    def array(self, name: str, byte_kind: str = "") -> np.ndarray:
        dtype, shape, data = self.raw(name)
        if dtype == "BF16":
            flat = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            flat = np.frombuffer(data, {"U8": "u1", "F16": "<f2", "F32": "<f4"}[dtype])
            if byte_kind:
                flat = scale_bytes(flat, byte_kind) if dtype == "U8" else flat.astype(np.float32)
        return flat.reshape(shape)


def layers(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (P, weights [N, K]) of every quantized linear, sorted by name."""
    config = quantization(path)
    folder = Folder(path)
    for name in sorted(config["tensors"]):
        c = {**config, **config["tensors"][name]}
        if c.get("kind") == "bcq":
            alphas = folder.array(f"{name}.alphas", c["scale_type"])
            offsets = folder.array(f"{name}.offsets", c["scale_type"]) if f"{name}.offsets" in folder.where else None
            yield name, binary(folder.array(f"{name}.planes"), alphas, offsets, c["shape"][1], c["group"])
            continue
        scales = folder.array(f"{name}.scales", c["scale_type"])
        if c.get("kind") == "trellis":
            own = config["tensors"][name]
            half = own.get("half", False) if "bits" in own else config.get("half", False)
            factors = folder.array(f"{name}.factors") if f"{name}.factors" in folder.where else None
            pairs = None
            if f"{name}.pairs" in folder.where:
                pairs = np.frombuffer(folder.raw(f"{name}.pairs")[2], "<u4")
            elif c["codebook"] == "trellis":
                pairs = np.frombuffer(base64.b64decode(config["tables"][f"{c['bits']}{'.5' if half else ''}"]), "<u4")
            yield name, trellis(folder.array(f"{name}.rings"), scales, factors, pairs, *c["shape"], c["codebook"], 2 * c["bits"] + half)
            continue
        if c.get("kind") == "lut24":
            codes, codebook, pattern = (folder.array(f"{name}.{part}") for part in ("codes", "codebook", "pattern"))
            yield name, sparse(codes, scales, codebook, pattern, c["shape"][1], c["group"])
            continue
        yield (
            name,
            layer(folder.array(f"{name}.codes"), scales, folder.array(f"{name}.codebook"), c["shape"][1], c["group"]),
        )


def quantization(path: Path) -> dict:
    config = json.loads((path / "config.json").read_text(encoding="utf-8")).get("quantization_config", {})
    if config.get("quant_method") != "lutq" or config.get("version") not in (1, 2, 3):
        sys.exit(f"read_container.py: {path} is not a lutq container of version 1, 2 or 3")
    return config


def digest(path: Path) -> str:
    """SHA-256 of what is stored: one line for each tensor, as formats/lutq describes it."""
    folder, h = Folder(path), hashlib.sha256()
    suffixes = ("codebook", "codes", "scales", "planes", "alphas", "offsets", "pattern", "rings", "factors", "pairs")
    parts = (f"{p}.{part}" for p in quantization(path)["tensors"] for part in suffixes)
    for name in sorted(p for p in parts if p in folder.where):
        dtype, shape, data = folder.raw(name)
        h.update(f"{name} {dtype} {'x'.join(map(str, shape))} {hashlib.sha256(data).hexdigest()}\n".encode())
    return h.hexdigest()


def damaged(path: Path) -> list[str]:
    """What differs from what was written, by the SHA-256 of everything that newer containers have."""
    digests, folder = quantization(path).get("digests"), Folder(path)
    if digests is None:
        return []

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    found = {name: sha(folder.raw(name)[2]) for name in folder.where}
    for shard in path.glob("*.safetensors"):
        with shard.open("rb") as f:
            length = f.read(8)
            found[shard.name] = sha(length + f.read(struct.unpack("<Q", length)[0]))
    hidden = {p.name for p in path.iterdir() if p.name.startswith(".")}
    for name in {p.name for p in path.iterdir()} - found.keys() - hidden - {"config.json"}:
        found[name] = sha((path / name).read_bytes())
    config = (path / "config.json").read_bytes()
    own = config.rpartition(b'"config_sha256": "')[2]
    found["config.json"] = sha(config[: -len(own)] + b"0" * 64 + own[64:])
    wanted = {**digests["tensors"], **digests["headers"], **digests["files"], "config.json": own[:64].decode()}
    if "README.md" not in wanted:  # a card, which may be edited
        found.pop("README.md", None)
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("container", type=Path)
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("--out", type=Path, help="write the float32 weights to this safetensors file")
    args = p.parse_args()

    total, sums, weights = hashlib.sha256(), {}, {}
    for name, w in layers(args.container):
        data = np.ascontiguousarray(w, "<f4").tobytes()
        total.update(data)
        sums[name] = hashlib.sha256(data).hexdigest()
        if args.out:
            weights[f"{name}.weight"] = w
        if not args.json:
            print(sums[name], "x".join(map(str, w.shape)), name)
    stored, found = quantization(args.container)["sha256"], digest(args.container)
    if args.json:
        print(json.dumps({"layers": sums, "sha256": total.hexdigest(), "stored": stored, "found": found}))
    else:
        print(total.hexdigest(), "total")
    if args.out:
        save_file(weights, args.out)
    if stored != found:
        print(f"read_container.py: config.json has sha256 {stored}, the tensors have {found}", file=sys.stderr)
        sys.exit(3)
    if names := damaged(args.container):
        print(f"read_container.py: differs from what was written: {', '.join(names)}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
