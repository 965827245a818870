"""Opens models that lutq has quantized in transformers 5.

lutq writes this file into every model's folder, where config.json names it, so that nothing is to be installed:

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

After `import lutq_hf` transformers opens such folders without trust_remote_code too.

Quantized layers stay packed in memory. A layer is unpacked, some rows at a time, when it is multiplied by; the
weights are, bit for bit, those that lutq defines, rounded once to the type of the activations. With
LUTQ_TORCH=FOLDER in the environment, a folder that `lutq repack MODEL FOLDER --target torch` has written, an NVIDIA
GPU multiplies by the packed weights instead.
"""

import base64
import importlib.util
import math
import os
import re
import sys

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"lutq_hf.py is for transformers 5 and later: this is {transformers.__version__}")

VERSIONS = (1, 2, 3)  # of the container
PARTS = {
    "lut": ("codes", "scales", "codebook"),
    "bcq": ("planes", "alphas", "offsets"),
    "lut24": ("codes", "scales", "codebook", "pattern"),
    "trellis": ("rings", "scales", "factors", "pairs"),
}
OPTIONAL = ("offsets", "factors", "pairs")
CHUNK = 1 << 22  # weights that are unpacked at a time


def numbers(stored: Tensor, kind: str) -> Tensor:
    """Scales in float32. Bytes become numbers by arithmetic: a CUDA graph could not take a table from the host."""
    if stored.dtype != torch.uint8:
        return stored.float()
    b = stored.int()
    if kind == "e8m0":  # 2^(b-127), of which float32 has the least as a subnormal; the last is NaN
        return torch.where(b == 0, 1 << 22, torch.where(b == 255, 0x7FC00000, b << 23)).view(torch.float32)
    m = {"e4m4": 4, "s1e4m3": 3}[kind]  # bits of the mantissa; the exponent's bias is 11, and s1e4m3 has a sign
    e, f = b >> m & 15, b & (1 << m) - 1
    value = torch.where(e > 0, (e + 127 - 11 << 23 | f << 23 - m).view(torch.float32), f.float() * 2.0 ** (1 - 11 - m))
    return torch.where(b > 127, -value, value) if kind == "s1e4m3" else value


def spread(values: Tensor, k: int, group: int) -> Tensor:
    """A value for each of k columns, out of one for each group."""
    return values.repeat_interleave(k if group < 0 else group, dim=-1)[..., :k]


def lookup(codes: Tensor, table: Tensor, k: int) -> Tensor:
    """The values [n, k] of codes [n, bytes], each row a little-endian bit stream. They are looked up two and more at a time."""
    bits = (table.numel() - 1).bit_length()
    together = 8 // bits if 8 % bits == 0 else 2
    every = torch.arange(1 << bits * together, device=table.device)
    several = torch.stack([table[every >> bits * i & (1 << bits) - 1] for i in range(together)], dim=1)
    if 8 % bits == 0:
        index = codes.int()
    else:  # eight codes are as many bytes as a code has bits
        words = F.pad(codes, (0, -codes.shape[1] % bits)).view(codes.shape[0], -1, bits).long()
        word = sum(words[..., i] << 8 * i for i in range(bits))
        index = torch.stack([word >> 2 * bits * i & (1 << 2 * bits) - 1 for i in range(4)], dim=-1)
    return F.embedding(index, several).flatten(1)[:, :k]


def tables(codes: Tensor, scales: Tensor, codebook: Tensor, k: int, group: int, scale_type: str) -> Tensor:
    """Weights [n, k] of the kind lut: codebook[code] * scale."""
    w, s = lookup(codes, codebook, k), numbers(scales, scale_type)
    if group > 0 and k % group == 0:
        return (w.view(*s.shape, group) * s[..., None]).view(w.shape)
    return w * spread(s, k, group)


def binary(planes: Tensor, alphas: Tensor, offsets: Tensor | None, k: int, group: int, scale_type: str) -> Tensor:
    """Weights [n, k] of the kind bcq: offset ± alpha for one plane after the other."""
    a = numbers(alphas, scale_type)
    w = a.new_zeros(1) if offsets is None else spread(numbers(offsets, scale_type), k, group)
    sign = a.new_tensor([-1, 1])
    for i in range(planes.shape[1]):
        w = w + lookup(planes[:, i], sign, k) * spread(a[..., i], k, group)
    return w


def sparse(codes: Tensor, scales: Tensor, codebook: Tensor, pattern: Tensor, k: int, group: int, scale_type: str) -> Tensor:
    """Weights [n, k] of the kind lut24: two of four columns, which a nibble of the pattern names, have a code."""
    kept = tables(codes, scales, codebook, k // 2, group if group < 0 else group // 2, scale_type)
    pairs = torch.stack([pattern & 15, pattern >> 4], dim=-1).flatten(1)[:, : k // 4].long()
    columns = torch.stack([pairs & 3, pairs >> 2], dim=-1) + torch.arange(0, k, 4, device=pairs.device)[:, None]
    return kept.new_zeros(kept.shape[0], k).scatter(1, columns.flatten(1), kept)


WINDOW, BLOCK, ENTRIES = 16, 128, 256  # bits, columns that are mixed, and pairs of a table, of the kind trellis


def hashed(x: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """The pairs of a table that windows stand for, and the bits in which their two float16 are turned over."""
    y = x * 0xCBAC1FED
    return y >> 7 & ENTRIES - 1, y & (0x83C08060 if rate > 8 else 0x81808000)


def halves(y: Tensor) -> Tensor:
    """The two float16 of 32 bits, the low one first, in float32."""
    return y.to(torch.int32).view(torch.float16).view(-1, 2).float()


def values(codebook: str, rate: int, pairs: Tensor | None, device: torch.device) -> Tensor:
    """What all windows stand for [65536, 2], or [65536, 1] of EXL3's codebooks."""
    x = torch.arange(1 << WINDOW, device=device)
    if codebook == "trellis":
        index, flip = hashed(x, rate)
        return halves(pairs.view(torch.int32).flatten()[index] ^ flip)
    if codebook == "mul1":  # numbers whose products and sums float32 holds
        y = x * 0x83DCD12D
        total = (y & 255) + (y >> 8 & 255) + (y >> 16 & 255) + (y >> 24 & 255)
        value = (1024 + total).float() * (1774 * 2.0**-18) - 10.3828125
    else:
        y = x * 0xCBAC1FED if codebook == "mcg" else x * 89226354 + 64248484
        value = halves(y & 0x8FFF8FFF ^ 0x3B603B60).sum(dim=1)
    return value.half().float()[:, None]


def table(text: str) -> Tensor:
    """The pairs of a table in a configuration, 32 bits each."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.int32)


def windows(rings: Tensor, codebook: str, rate: int) -> Tensor:
    """The windows of rings [..., bytes] in the order of weights: [..., rows, columns], where a column of the codebook trellis is two."""
    size = rings.shape[-1]
    if codebook == "trellis":
        row, col = torch.arange(8, device=rings.device)[:, None], torch.arange(8, device=rings.device)
        at = ((col >> 1) << 4 | (row >> 1) << 2 | (col & 1) << 1 | row & 1) * rate
        byte = [rings[..., (at // 8 + i) % size].int() << 8 * i for i in range(3)]
        return (byte[0] | byte[1] | byte[2]) >> at % 8 & 0xFFFF
    row, col = torch.arange(16, device=rings.device)[:, None], torch.arange(16, device=rings.device)
    step = (row & 7) << 5 | (col & 6) << 2 | (row & 8) >> 1 | (col & 8) >> 2 | col & 1
    end = (step + 2) // 2 * (rate // 2) + (step + 1) // 2 * (rate - rate // 2)
    at = (end - WINDOW) % (8 * size)
    # Bits come from the highest of a word of four bytes on, which is little-endian.
    byte = [rings[..., (at // 8 + i) % size ^ 3].int() << 16 - 8 * i for i in range(3)]
    return (byte[0] | byte[1] | byte[2]) >> 8 - at % 8 & 0xFFFF


def mixed(v: Tensor) -> Tensor:
    """Hadamard's matrix of ±1 times the last dimension, a power of two: distances 1, 2, 4 and so on."""
    h = 1
    while h < v.shape[-1]:
        a, b = v.unflatten(-1, (-1, 2, h)).unbind(-2)
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        plus, minus = out.unflatten(-1, (-1, 2, h)).unbind(-2)
        torch.add(a, b, out=plus)
        torch.sub(a, b, out=minus)
        v, h = out, 2 * h
    return v


def across(w: Tensor) -> Tensor:
    """Rows that are mixed, by blocks of BLOCK columns and then of smaller powers of two, all to the same size."""
    k = w.shape[1]
    at, done = k - k % BLOCK, []
    if at:
        done.append(mixed(w[:, :at].unflatten(1, (-1, BLOCK))).flatten(1))
    size = BLOCK
    while at < k:
        while size > k - at:
            size //= 2
        done.append(mixed(w[:, at : at + size]) * math.sqrt(BLOCK / size))
        at += size
    return torch.cat(done, dim=1)


def signs(k: int, device: torch.device, first: int = 0) -> Tensor:
    """The factors of k columns from a first one on, where none are stored."""
    x = torch.arange(first + 1, first + k + 1, device=device) * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x85EBCA77
    return 1 - (x >> 15 & 2).float()


def rotated(rings: Tensor, scales: Tensor, factors: Tensor, each: Tensor, k: int, codebook: str, rate: int) -> Tensor:
    """Weights [bands * band, k] in float32 of rings [bands, rings down, rings across, bytes] and scales [bands, band]. each has
    what each window stands for."""
    r = F.embedding(windows(rings, codebook, rate), each).flatten(-2)  # [bands, down, across, rows, columns]
    r = r.transpose(2, 3).flatten(3).flatten(0, 2)
    if codebook == "trellis":
        r = across(r[:, :k])
    else:
        r = across(r).unflatten(0, (-1, BLOCK)).transpose(1, 2)
        r = (mixed(r) / BLOCK).transpose(1, 2).flatten(0, 1)[:, :k]
    return r * scales.float().flatten()[:, None] * factors[:k]


def unwind(
    rings: Tensor, scales: Tensor, factors: Tensor | None, pairs: Tensor | None, k: int, codebook: str, rate: int, dtype: torch.dtype
) -> Tensor:
    """Weights of the kind trellis, rounded to dtype: as rotated has them, some bands at a time."""
    bands, band = scales.shape
    each = values(codebook, rate, pairs, rings.device)
    signed = signs(k, rings.device) if factors is None else factors.float()
    step = max(1, CHUNK // (k * band))
    out = torch.empty(bands * band, k, dtype=dtype, device=rings.device)
    for at in range(0, bands, step):
        some = slice(at, at + step)
        out[at * band : (at + step) * band] = rotated(rings[some], scales[some], signed, each, k, codebook, rate)
    return out


def weights(
    first: Tensor, scales: Tensor, third: Tensor | None, pattern: Tensor | None, k: int, group: int, kind: str, scale_type: str
) -> Tensor:
    """Weights [n, k] in float32 of the parts of a layer, or of some rows of it."""
    if kind == "lut24":
        return sparse(first, scales, third, pattern, k, group, scale_type)
    return (binary if kind == "bcq" else tables)(first, scales, third, k, group, scale_type)


def dequantize(
    first: Tensor,
    scales: Tensor,
    third: Tensor | None,
    pattern: Tensor | None,
    k: int,
    group: int,
    kind: str,
    scale_type: str,
    dtype: torch.dtype,
) -> Tensor:
    """Weights [n, k], rounded to dtype."""
    n, rows = first.shape[0], max(1, CHUNK // k)
    if n <= rows:
        return weights(first, scales, third, pattern, k, group, kind, scale_type).to(dtype)
    out = torch.empty(n, k, dtype=dtype, device=first.device)
    for at in range(0, n, rows):
        rest = slice(at, at + rows)
        last = third[rest] if kind == "bcq" and third is not None else third
        where = None if pattern is None else pattern[rest]
        out[rest] = weights(first[rest], scales[rest], last, where, k, group, kind, scale_type)
    return out


# For torch.compile it is one operation. Every model's folder has this file, and is a module of its own.
if not hasattr(torch.ops.lutq, "dequantize"):
    torch.library.custom_op("lutq::dequantize", dequantize, mutates_args=()).register_fake(
        lambda first, scales, third, pattern, k, group, kind, scale_type, dtype: first.new_empty(first.shape[0], k, dtype=dtype)
    )
if not hasattr(torch.ops.lutq, "unwind"):
    torch.library.custom_op("lutq::unwind", unwind, mutates_args=()).register_fake(
        lambda rings, scales, factors, pairs, k, codebook, rate, dtype: rings.new_empty(scales.numel(), k, dtype=dtype)
    )


class Packed(nn.Module):
    """A quantized matrix [n, k], or a stack of `experts` of them, as it is stored."""

    def __init__(self, name: str, config: dict, like: Tensor, stored: set[str]):
        super().__init__()
        self.like, device = like.dtype, like.device  # what it computes in where it is not told
        self.name, (self.rows, self.k) = name, config["shape"]
        self.group, self.kind, self.scale_type = config["group"], config.get("kind") or "lut", config["scale_type"]
        self.experts, self.transposed = config.get("experts", 0), config.get("transposed", False)
        groups = 1 if self.group < 0 else -(-self.k // self.group)
        scale = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}.get(self.scale_type, torch.uint8)
        if self.kind == "lut":
            shapes = [self.rows, -(-self.k * config["bits"] // 8)], [self.rows, groups], [1 << config["bits"]]
            types = torch.uint8, scale, torch.float32
        elif self.kind == "lut24":
            codes, pattern = -(-self.k // 2 * config["bits"] // 8), (self.k // 4 + 1) // 2
            shapes = [self.rows, codes], [self.rows, groups], [1 << config["bits"]], [self.rows, pattern]
            types = torch.uint8, scale, torch.float32, torch.uint8
        elif self.kind == "trellis":
            self.codebook, self.rate = config["codebook"], 2 * config["bits"] + config.get("half", False)
            fast = self.codebook == "trellis"
            self.band, side, pad = (8, 8, 16) if fast else (BLOCK, 16, BLOCK)  # rows of a band and of a ring, columns
            bands, columns = -(-self.rows // self.band), -(-self.k // pad) * pad
            shapes = [bands, self.band // side, columns // 16, side * self.rate], [self.rows], [self.k], [ENTRIES, 2]
            if not fast:
                shapes = shapes[0], [bands, self.band], [columns], [ENTRIES, 2]
            types = torch.uint8, scale, torch.float16, torch.float16
            self.table = config.get("table")  # of pairs, where the layer stores none: as text, and later as integers
        else:
            shapes = [self.rows, config["bits"], -(-self.k // 8)], [self.rows, groups, config["bits"]], [self.rows, groups]
            types = torch.uint8, scale, scale
        for part, shape, dtype in zip(PARTS[self.kind], shapes, types):
            empty = None if part in OPTIONAL and part not in stored else torch.empty(shape, dtype=dtype, device=device)
            self.register_buffer(part, empty)

    def parts(self) -> list[Tensor | None]:
        return [getattr(self, part) for part in PARTS[self.kind]]

    def dense(self, dtype: torch.dtype, rows: slice | Tensor | None = None) -> Tensor:
        """The matrix, or some of its rows."""
        if self.kind == "trellis":
            return self._unwound(dtype, rows)
        parts = self.parts()
        if rows is not None:
            parts = [p[rows] if p is not None and part != "codebook" else p for p, part in zip(parts, PARTS[self.kind])]
        op = torch.ops.lutq.dequantize if torch.compiler.is_compiling() else dequantize
        return op(*parts, *[None] * (4 - len(parts)), self.k, self.group, self.kind, self.scale_type, dtype)

    def _unwound(self, dtype: torch.dtype, rows: slice | Tensor | None) -> Tensor:
        """Rows of the kind trellis, by way of the bands that have them."""
        scales = self.scales.flatten()
        scales = F.pad(scales, (0, len(self.rings) * self.band - len(scales))).view(-1, self.band)
        op = torch.ops.lutq.unwind if torch.compiler.is_compiling() else unwind
        pairs = self.table if self.pairs is None else self.pairs

        def bands(which: slice | Tensor) -> Tensor:
            return op(self.rings[which], scales[which], self.factors, pairs, self.k, self.codebook, self.rate, dtype)

        if isinstance(rows, Tensor):
            if rows.numel() * self.band > self.rows:
                return bands(slice(None))[rows]
            return bands(rows // self.band).unflatten(0, (-1, self.band))[torch.arange(rows.numel(), device=rows.device), rows % self.band]
        if rows is None:  # without slice.indices, which torch.compile does not know
            return bands(slice(None))[: self.rows]
        first, last, _ = rows.indices(self.rows)
        at = first // self.band
        return bands(slice(at, -(-last // self.band)))[first - at * self.band : last - at * self.band]

    def loaded(self):
        """Readies what is not loaded: the table that is not stored."""
        if self.kind == "trellis" and self.pairs is None and isinstance(self.table, str):
            self.table = table(self.table).to(self.rings.device)

    @property
    def weight(self) -> Tensor:
        """The matrix, for code that looks at a layer's weight."""
        return self.dense(self.like)

    def _apply(self, fn, recurse=True):
        # .half() and the like are for what is computed: what is stored keeps its types.
        types = {name: b.dtype for name, b in self._buffers.items() if b is not None}
        for name in types:
            self._buffers[name] = self._buffers[name].view(torch.uint8)
        super()._apply(fn, recurse)
        for name, dtype in types.items():
            self._buffers[name] = self._buffers[name].view(dtype)
        if isinstance(getattr(self, "table", None), Tensor):
            self.table = fn(self.table)
        self.like = fn(torch.empty(0, dtype=self.like)).dtype
        return self

    def extra_repr(self) -> str:
        how = f"{self.codebook}, {self.rate / 2:g} bits" if self.kind == "trellis" else f"group {self.group}"
        return f"{self.name}, {self.rows}x{self.k}, {self.kind}, {how}, {self.scale_type}"


class LutqLinear(Packed):
    """Stands for nn.Linear."""

    def __init__(self, name: str, config: dict, linear: nn.Module, stored: set[str]):
        super().__init__(name, config, linear.weight, stored)
        self.in_features, self.out_features, self.bias = self.k, self.rows, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dense(x.dtype), self.bias)


class LutqEmbedding(Packed):
    """Stands for nn.Embedding, and those of models that scale it."""

    def __init__(self, name: str, config: dict, embedding: nn.Embedding, stored: set[str]):
        super().__init__(name, config, embedding.weight, stored)
        self.num_embeddings, self.embedding_dim, self.padding_idx = self.rows, self.k, embedding.padding_idx
        self.scale = getattr(embedding, "scalar_embed_scale", None)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dense(self.like, ids.flatten()).view(*ids.shape, self.k)
        return x if self.scale is None else x * torch.tensor(self.scale).to(x)


class Tied(nn.Module):
    """An output layer that multiplies by the embeddings."""

    def __init__(self, embedding: LutqEmbedding):
        super().__init__()
        self.embedding = (embedding,)  # which is not a part of it

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding[0].dense(x.dtype))


class Stack(Packed):
    """Stands for experts' weights in one tensor: stack[e] is an expert's. torch.bmm(x, stack) multiplies by all, one after the other."""

    @property
    def shape(self) -> torch.Size:
        n = self.rows // self.experts
        return torch.Size((self.experts, self.k, n) if self.transposed else (self.experts, n, self.k))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is not torch.bmm or kwargs:
            return NotImplemented
        x, stack = args
        return torch.stack([x[e] @ stack[e].to(x.dtype) for e in range(stack.experts)])

    def __getitem__(self, expert: int | Tensor) -> Tensor:
        n = self.rows // self.experts
        w = self.dense(self.like, slice(int(expert) * n, (int(expert) + 1) * n))
        return w.T if self.transposed else w


class Gathered:
    """Stands for experts' weights in one tensor where the checkpoint has matrices for each expert."""

    def __init__(self, weight: Tensor):
        self.weight, self.matrices = weight, {}  # what it stands for, without data

    def __getitem__(self, expert: int | Tensor) -> Tensor:
        parts = self.matrices[int(expert)]
        return torch.cat([parts[i].dense(parts[i].like) for i in sorted(parts)])


class LutqConfig(QuantizationConfigMixin):
    """The quantization_config of a container."""

    def __init__(self, **keys):
        version = keys.get("version")
        if version not in VERSIONS:
            raise ValueError(f"lutq_hf.py reads lutq containers of versions 1 to 3, not {version!r}: take the file from a newer lutq")
        self.__dict__.update(keys)
        self.quant_method = "lutq"

    def of(self, layer: str) -> dict:
        """The complete configuration of a layer."""
        own = self.tensors[layer]
        c = {**self.__dict__, **own}
        if "bits" in own:  # which half a bit goes with
            c["half"] = own.get("half", False)
        kind, scale = c.get("kind") or "lut", c["scale_type"]
        if kind not in PARTS or scale not in ("f16", "bf16", "f32", "e4m4", "s1e4m3", "e8m0"):
            raise ValueError(f"{layer}: lutq_hf.py knows no {kind} with scales of type {scale}: take the file from a newer lutq")
        if kind == "trellis":
            if c["codebook"] not in ("trellis", "mul1", "mcg", "3inst"):
                raise ValueError(f"{layer}: lutq_hf.py knows no codebook {c['codebook']}: take the file from a newer lutq")
            c["table"] = self.__dict__.get("tables", {}).get(f"{c['bits']}{'.5' if c.get('half') else ''}")
        return c


def names_in(model: nn.Module):
    """Returns what says where a checkpoint's tensor goes: to which of the model's, as which expert's part."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    state = model.state_dict()

    def place(tensor: str) -> tuple[str, int | None, int]:
        name, pattern = rename_source_key(tensor, renamings, converters, model.base_model_prefix, state)
        if pattern is None:
            return name, None, 0
        sources = next(c.source_patterns for c in converters if pattern in c.source_patterns)
        expert = re.search(r"\.(\d+)\.[^.]+\.weight$", tensor)
        return name, int(expert[1]) if expert else None, sources.index(pattern)

    def renamed(tensor: str) -> str:
        return rename_source_key(tensor, renamings, [])[0]

    return place, renamed


class LutqQuantizer(HfQuantizer):
    requires_calibration = True  # it opens what is quantized

    def _process_model_before_weight_loading(self, model, **kwargs):
        config = self.quantization_config
        self.types = {name: p.dtype for name, p in model.named_parameters()}
        place, renamed = names_in(model)
        # Only containers with digests say what was left out.
        stored = (getattr(config, "digests", None) or {}).get("tensors")
        for layer in config.tensors:
            c = config.of(layer)
            tensor = layer if c.get("experts") else layer + ".weight"
            name, expert, part = place(tensor)
            path, _, leaf = name.rpartition(".")
            try:
                module = model.get_submodule(path)
                old = getattr(module, leaf)
            except AttributeError:
                # Such as layers that predict further tokens.
                if any(re.search(p, tensor) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()):
                    continue
                raise ValueError(f"{layer} is quantized, and {type(model).__name__} has no such layer") from None
            there = {part for part in OPTIONAL if (part == "offsets" if stored is None else f"{layer}.{part}" in stored)}
            if c.get("experts"):
                self._eager(module)
                delattr(module, leaf)
                # Which way the model has it: MXFP4 is stored the other way round than what it is unpacked to.
                c["transposed"] = getattr(module, "is_transposed", c.get("transposed", False))
                n, k = c["shape"][0] // c["experts"], c["shape"][1]
                if old.shape != (c["experts"], *((k, n) if c["transposed"] else (n, k))):
                    raise ValueError(f"{layer}: {type(module).__name__} has it as {list(old.shape)}, not {c['experts']} of {n}x{k}")
                setattr(module, leaf, Stack(layer, c, old, there))
            elif expert is not None:
                self._gather(module, leaf, layer, c, expert, part, renamed(layer).rpartition(".")[2], there)
            elif leaf == "weight" and isinstance(module, (nn.Linear, nn.Embedding)):
                new = (LutqLinear if isinstance(module, nn.Linear) else LutqEmbedding)(layer, c, module, there)
                replace(model, path, new)
            else:
                raise ValueError(f"{layer}: lutq_hf.py cannot put it in the place of {name}, a part of {type(module).__name__}")
        self._tie(model)
        return model

    def _gather(self, module, leaf, layer, c, expert, part, own, there):
        """Puts an expert's matrix under its own name, and beside it what the module's code indexes."""
        self._eager(module)
        if leaf in module._parameters:
            weight = getattr(module, leaf)
            delattr(module, leaf)
            setattr(module, leaf, Gathered(weight))
        gathered = getattr(module, leaf)
        packed = Packed(layer, c, gathered.weight, there)
        gathered.matrices.setdefault(expert, {})[part] = packed
        if not hasattr(module, str(expert)):
            module.add_module(str(expert), nn.Module())
        module.get_submodule(str(expert)).add_module(own, packed)

    @staticmethod
    def _eager(experts):
        # The others multiply by all experts at once.
        if hasattr(experts, "config"):
            experts.config._experts_implementation_internal = "eager"

    @staticmethod
    def _tie(model):
        """Takes quantized layers out of what transformers ties, and ties the output layer itself."""
        tied = model.all_tied_weights_keys
        for target, source in list(tied.items()):
            to, of = (model.get_submodule(name.rpartition(".")[0]) for name in (target, source))
            if isinstance(of, LutqEmbedding) and not isinstance(to, Packed):
                replace(model, target.rpartition(".")[0], Tied(of))
            if isinstance(of, Packed) or isinstance(to, Packed):
                del tied[target]

    def _process_model_after_weight_loading(self, model, **kwargs):
        if not hasattr(HfQuantizer, "get_new_dtype"):  # then what has another name on disk keeps its type
            for name, p in model.named_parameters():
                p.data = p.data.to(self.types.get(name, p.dtype))
        for module in model.modules():
            if isinstance(module, Packed):
                module.loaded()
        if folder := os.environ.get("LUTQ_TORCH"):
            kernels(folder).use(model, folder)
        return model

    def param_needs_quantization(self, model, param_name, **kwargs):
        return False

    def is_serializable(self, *args, **kwargs):
        return False

    is_trainable = False
    is_compileable = True


def kernels(folder: str):
    """The module lutq_torch of a folder, or the one that is there: it defines an operation, which can be done once."""
    if "lutq_torch" not in sys.modules:
        spec = importlib.util.spec_from_file_location("lutq_torch", os.path.join(folder, "lutq_torch.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["lutq_torch"] = module
    return sys.modules["lutq_torch"]


def replace(model: nn.Module, path: str, new: nn.Module):
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)


# Assigned: registering twice would fail, and every folder brings this file.
AUTO_QUANTIZATION_CONFIG_MAPPING["lutq"] = LutqConfig
AUTO_QUANTIZER_MAPPING["lutq"] = LutqQuantizer


def __getattr__(name: str) -> type:
    """Makes the classes that auto_map names: LutqX for transformers' model X, and LutqXConfig for its configuration."""
    if not name.startswith("Lutq"):
        raise AttributeError(f"lutq_hf.py has no {name}")
    model = getattr(transformers, name.removeprefix("Lutq").removesuffix("Config"), None)
    config = getattr(model, "config_class", None)
    if config is None:
        raise AttributeError(f"transformers {transformers.__version__} has no model {name.removeprefix('Lutq').removesuffix('Config')}")
    if name.endswith("Config"):
        made = type(name, (config,), {"__module__": __name__})
    else:
        made = type(name, (model,), {"__module__": __name__, "config_class": __getattr__(name + "Config")})
    return globals().setdefault(name, made)
