#!/usr/bin/env python3
"""Writes what transformers leaves to draw from under temperature, top-k, top-p and min-p, for the tests of calib/decode.

    scripts/sampling.py > calib/decode/testdata/sampling.json

The order is that of GenerationMixin. Needs torch and transformers.
"""

import itertools
import json

import torch
from transformers.generation import logits_process as lp

torch.manual_seed(1)
logits = [
    (torch.randn(40) * 3).tolist(),
    (torch.randn(12) * 0.5).tolist(),
    [2.0, 2.0, 1.0, 1.0, 1.0, 0.0, -3.0, 9.0 / 4],
]
cases = []
for row, t, k, p, m in itertools.product(range(3), (0.5, 1.0, 1.7), (0, 4, 10), (0, 0.3, 0.9), (0, 0.05, 0.4)):
    x = torch.tensor([logits[row]], dtype=torch.float64)
    steps = [lp.TemperatureLogitsWarper(t)]
    if k:
        steps.append(lp.TopKLogitsWarper(k))
    if p:
        steps.append(lp.TopPLogitsWarper(p))
    if m:
        steps.append(lp.MinPLogitsWarper(m))
    for step in steps:
        x = step(None, x)
    probs = {i: v for i, v in enumerate(x.softmax(-1)[0].tolist()) if v > 0}
    cases.append({"row": row, "temperature": t, "top_k": k, "top_p": p, "min_p": m, "probs": {i: round(v, 7) for i, v in probs.items()}})
print(json.dumps({"logits": logits, "cases": cases}))
