"""Reads GGUF files and writes what scripts make of them: Hugging Face folders in bfloat16."""

import json
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

F32, F16, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K = 0, 1, 3, 6, 8, 12, 14
BLOCK = 32  # weights per block of Q4_1, Q5_0 and Q8_0
SUPER = 256  # weights per block of the K types

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class GGUF:
    """A GGUF file of version 3: metadata, and tensors dequantized on demand."""

    def __init__(self, data: memoryview):
        self.data, self.pos = data, 0
        if bytes(data[:4]) != b"GGUF":
            raise ValueError("not a GGUF file")
        self.pos = 4
        version, tensors, pairs = self._scalar("<I"), self._scalar("<q"), self._scalar("<q")
        if version != 3:
            raise ValueError(f"GGUF version {version} is not supported")
        self.meta = {self._string(): self._value(self._scalar("<I")) for _ in range(pairs)}
        self.infos = {}
        for _ in range(tensors):
            name = self._string()
            dims = [self._scalar("<q") for _ in range(self._scalar("<I"))]
            # The first dimension is the contiguous one, so the shape reads backwards.
            self.infos[name] = (dims[::-1], self._scalar("<I"), self._scalar("<Q"))
        align = self.meta.get("general.alignment", 32)
        self.base = (self.pos + align - 1) // align * align

    def _scalar(self, fmt: str):
        (value,) = struct.unpack_from(fmt, self.data, self.pos)
        self.pos += struct.calcsize(fmt)
        return value

    def _string(self) -> str:
        n = self._scalar("<Q")
        self.pos += n
        return bytes(self.data[self.pos - n : self.pos]).decode("utf-8")

    def _value(self, kind: int):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, n = self._scalar("<I"), self._scalar("<Q")
            return [self._value(inner) for _ in range(n)]
        return self._scalar(SCALARS[kind])

    def tensor(self, name: str) -> np.ndarray:
        """The tensor in float32."""
        shape, kind, offset = self.infos[name]
        count = int(np.prod(shape))
        raw = self.data[self.base + offset :]

        def blocks(fields: list) -> np.ndarray:
            return np.frombuffer(raw, np.dtype(fields), count // (SUPER if kind in (Q4_K, Q6_K) else BLOCK))

        if kind == F32:
            flat = np.frombuffer(raw, "<f4", count)
        elif kind == F16:
            flat = np.frombuffer(raw, "<f2", count).astype(np.float32)
        elif kind == Q8_0:  # value = d * q
            b = blocks([("d", "<f2"), ("q", "i1", BLOCK)])
            flat = b["d"].astype(np.float32)[:, None] * b["q"].astype(np.float32)
        elif kind == Q4_1:  # value = d * q + m; the low nibbles are the block's first half
            b = blocks([("d", "<f2"), ("m", "<f2"), ("q", "u1", BLOCK // 2)])
            q = np.concatenate([b["q"] & 15, b["q"] >> 4], axis=1).astype(np.float32)
            flat = b["d"].astype(np.float32)[:, None] * q + b["m"].astype(np.float32)[:, None]
        elif kind == Q5_0:  # value = d * (q - 16); the fifth bits lie together
            b = blocks([("d", "<f2"), ("h", "u1", BLOCK // 8), ("q", "u1", BLOCK // 2)])
            q = np.concatenate([b["q"] & 15, b["q"] >> 4], axis=1)
            q |= np.unpackbits(b["h"], axis=1, bitorder="little") << 4
            flat = b["d"].astype(np.float32)[:, None] * (q.astype(np.float32) - 16)
        elif kind == Q4_K:
            flat = q4_k(blocks([("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", SUPER // 2)]))
        elif kind == Q6_K:
            flat = q6_k(blocks([("l", "u1", (2, 64)), ("h", "u1", (2, 32)), ("s", "i1", (16, 1)), ("d", "<f2")]))
        else:
            raise ValueError(f"{name}: GGUF tensor type {kind} is not supported")
        return flat.reshape(shape)


def q4_k(b: np.ndarray) -> np.ndarray:
    """value = d * s * q - m * t, with 6-bit s and t for every 32 weights."""
    low, mid, high = np.split(b["s"], 3, axis=1)
    # The first four s and t are the low 6 bits of their bytes; of the last four the upper two bits
    # are in those bytes' rest and the lower four in the last bytes.
    s = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1).astype(np.float32)
    t = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], axis=1).astype(np.float32)
    q = b["q"].reshape(-1, 4, 1, 32)  # of 64 weights the low nibbles are the first 32
    q = np.concatenate([q & 15, q >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)
    d, m = (b[x].astype(np.float32)[:, None] for x in "dm")
    return (d * s)[:, :, None] * q - (m * t)[:, :, None]


def q6_k(b: np.ndarray) -> np.ndarray:
    """value = d * s * (q - 32), with an 8-bit s for every 16 weights."""
    low = np.stack([b["l"] & 15, b["l"] >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = np.stack([b["h"] >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    q = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    return (b["d"].astype(np.float32)[:, None, None] * b["s"].astype(np.float32)) * q


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds finite float32 values to bfloat16, ties to even; the bits come back as uint16."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, items: dict[str, np.ndarray]) -> None:
    """Writes bfloat16 tensors, given as uint16 bits (numpy has no bfloat16 of its own)."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, w in items.items():
        header[name] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [offset, offset + w.nbytes]}
        offset += w.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for w in items.values():
            f.write(w.astype("<u2", copy=False).tobytes())


def write_folder(
    out: Path, g: GGUF, config: dict, tensors: Iterable[tuple[str, np.ndarray]], tokenizer: dict, tokenizer_config: dict
) -> None:
    """Writes a model folder of all tensors of a file, which come with their new names as bfloat16 bits."""
    items = dict(tensors)
    if len(items) != len(g.infos):
        sys.exit(f"{Path(sys.argv[0]).name}: {len(g.infos)} tensors in the file, {len(items)} used")

    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "model.safetensors", items)
    side = {
        "config.json": config,
        "generation_config.json": {key: config[key] for key in ("bos_token_id", "eos_token_id")},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in side.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{out}: {len(items)} tensors, {sum(w.size for w in items.values()):,} weights")
