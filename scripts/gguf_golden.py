#!/usr/bin/env python3
"""Writes formats/gguf/testdata/blocks.json: blocks of every type that lutq decodes, and the
SHA-256 of the float32 values that gguf-py's dequantize makes of them.

    scripts/gguf_golden.py OUT.json        (needs the packages gguf and numpy; made with gguf 0.19.0)

The bytes are random, so that every code and every scale occurs; of the F16 numbers among them
those that are infinite or NaN are replaced.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

# Where a block has F16 numbers.
HALVES = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "IQ4_XS": [0], "MXFP4": [], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
BLOCKS = 24


def main() -> None:
    rng = np.random.default_rng(20)
    out = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in halves:
            h = blocks[:, at : at + 2].copy().view(np.uint16)
            h[(h & 0x7C00) == 0x7C00] &= 0xBFFF
            h[:3, 0] = [0, 0x8000, 0x0001]  # zeros and the smallest
            blocks[:, at : at + 2] = h.view(np.uint8)
        if name == "MXFP4":
            blocks[:4, 0] = [0, 1, 2, 254]
        values = dequantize(blocks, kind).astype("<f4")
        out[name] = {
            "blocks": base64.b64encode(blocks.tobytes()).decode(),
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        }
    Path(sys.argv[1]).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
