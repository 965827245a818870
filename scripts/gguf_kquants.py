#!/usr/bin/env python3
"""Prints the relative error of ggml's own quantizers on weights, to hold lutq's against.

    scripts/gguf_kquants.py LIBGGML WEIGHTS.f32 [COLUMNS]

LIBGGML is libggml-base.so of a llama.cpp build, such as the one that node-llama-cpp carries;
WEIGHTS.f32 are float32 numbers, little endian, rows of COLUMNS (256) after one another.
"""

import ctypes
import sys

import gguf
import numpy as np
from gguf.quants import dequantize

TYPES = ["Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]


def main() -> None:
    lib = ctypes.CDLL(sys.argv[1])
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    columns = int(sys.argv[3]) if len(sys.argv) > 3 else 256
    w = np.fromfile(sys.argv[2], "<f4")
    w = w[: w.size // columns * columns].reshape(-1, columns)
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros(w.size // elements * size, np.uint8)
        lib.ggml_quantize_chunk(int(kind), w.ctypes.data, out.ctypes.data, 0, w.shape[0], columns, None)
        got = dequantize(out.reshape(w.shape[0], -1), kind)
        error = np.sqrt(((w - got).astype(np.float64) ** 2).sum() / (w.astype(np.float64) ** 2).sum())
        print(f"{name}\t{error:.6f}")


if __name__ == "__main__":
    main()
