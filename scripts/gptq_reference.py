#!/usr/bin/env python3
"""Writes quantize/gptq/testdata/reference.json: codes of GPTQ as its authors describe it
(arXiv:2210.17323), in float64, with the inverse of the Hessian and errors propagated by its
Cholesky factor, static groups and columns by falling diagonal, and with weights
retargeted as in Qronos (arXiv:2505.11695) damped. It shares nothing with the program but the
inputs, which are integers of a generator that both have."""
import argparse
import json
import pathlib

import numpy as np

NF = {2: [-1, 0, 0.3379151367, 1],
      3: [-1, -0.4786290853, -0.21714178, 0, 0.1609301444, 0.3379151367, 0.562616888, 1]}
TOKENS = 400


def integers(seed, n):
    """n integers from -8 to 7."""
    out = np.empty(n)
    for i in range(n):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = (seed >> 60) - 8
    return out


def layer(n, k):
    """Weights, inputs, and what the inputs are off by: multiples of powers of two."""
    z = integers(1, TOKENS * k).reshape(TOKENS, k)
    x = z + 2 * np.roll(z, 1, axis=1) + 3 * z[:, :1] * (np.arange(k) % 3)
    w = (integers(2, n * k) + integers(3, n * k) / 16 + integers(4, n * k) / 256).reshape(n, k)
    drift = np.sign(np.roll(x, 1, axis=1)) * (np.abs(z) > 4)
    return w, x, drift


def gptq(w, h, table, group, damp):
    """The codes of w, one column after the other, and the scales."""
    n, k = w.shape
    scale = np.stack([np.abs(w[:, g:g + group]).max(1) for g in range(0, k, group)], 1).astype(np.float32).astype(float)
    order = np.argsort(-np.diag(h), kind="stable")
    w, hp = w[:, order].copy(), h[np.ix_(order, order)] + damp * np.diag(h).mean() * np.eye(k)
    u = np.linalg.cholesky(np.linalg.inv(hp)).T
    codes = np.empty((n, k), int)
    for i, col in enumerate(order):
        s = scale[:, col // group]
        codes[:, col] = np.abs(w[:, i, None] / s[:, None] - table).argmin(1)
        error = (w[:, i] - table[codes[:, col]] * s) / u[i, i]
        w[:, i:] -= error[:, None] * u[i, i:]
    return codes, scale


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=pathlib.Path, default="quantize/gptq/testdata/reference.json")
    out = parser.parse_args().out
    cases = []
    for bits, group, n, k, damp, alpha in [
        (3, 32, 16, 150, .01, 0), (2, 257, 8, 257, .1, 0), (3, 64, 16, 150, .03, .5), (2, 32, 8, 131, .01, 1)]:
        w, x, drift = layer(n, k)
        h, d = x.T @ x, drift.T @ x
        if alpha:
            w = w + alpha * w @ d @ np.linalg.inv(h + damp * np.diag(h).mean() * np.eye(k))
        codes, _ = gptq(w, h, np.array(NF[bits], np.float32).astype(float), group, damp)
        cases.append({"bits": bits, "group": group, "n": n, "k": k, "damp": damp, "retarget": alpha,
                      "codes": ["".join(map(str, row)) for row in codes]})
    out.write_text(json.dumps({"tokens": TOKENS, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
