#!/usr/bin/env python3
"""Learned scales as FLUTE's code learns them, in PyTorch: an independent second opinion on
`lutq quantize --method nfl --learn-mode flute`. It needs torch and transformers, and a GPU for all but small models.

    scripts/flute_reference.py MODEL --bits 3 --calib wiki.valid.raw --text wiki.test.raw --out reference.json
    lutq quantize MODEL OUT --bits 3 --method nfl --learn-mode flute --calib wiki.valid.raw --valid-windows 0 --json > lutq.json
    lutq eval-ppl OUT --text wiki.test.raw --json > ppl.json
    scripts/flute_reference.py MODEL … --lutq lutq.json --lutq-ppl ppl.json

What it does (flute/integrations/learnable.py): every linear layer of the blocks gets a NormalFloat table and the
largest magnitude of each group as its scale. In each forward pass the codes are chosen from weight/scale, and the
weight is table[code]·scale, the gradient of which reaches the scale with the code held constant. One step of Adam
at 1e-4 for each window: BOS and the next 2047 tokens of the text, from its beginning. The loss is the mean negative
log-likelihood.

--params bf16 is what was published: model, table, quotients, scales and the optimizer's state in bfloat16. With
--params f32 all of that is float32, and scales are rounded to --scale-type in each forward pass. --compute is the type
of the model's activations.

With --lutq it compares the loss curves, with --lutq-ppl the perplexities, and exits with 3 when they differ by more
than --loss-tolerance (1 %) of any loss or --ppl-tolerance (0.5 %).
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def normal_float(bits: int) -> torch.Tensor:
    """FLUTE's table (flute/nf_utils.py): quantiles of the normal distribution, asymmetric around an exact zero."""
    offset = 0.5 * (1 / 32 + 1 / 30)  # that of QLoRA's 4 bits, for every width
    half = 2 ** (bits - 1)
    below = -torch.special.ndtri(torch.linspace(1 - offset, 0.5, half, dtype=torch.float64))
    above = torch.special.ndtri(torch.linspace(0.5, 1 - offset, half + 1, dtype=torch.float64)[1:])
    values = torch.cat([below, above])
    return (values / values.abs().max()).float()


class LearnedLinear(nn.Module):
    def __init__(self, linear: nn.Linear, table: torch.Tensor, group: int, params: torch.dtype, scale_type: torch.dtype):
        super().__init__()
        n, k = linear.weight.shape
        if k % group:
            raise SystemExit(f"a layer of {k} input features is no multiple of the group of {group}")
        device = linear.weight.device
        self.register_buffer("weight", linear.weight.detach().to(params).reshape(n, k // group, group), persistent=False)
        self.register_buffer("table", table.to(device, params), persistent=False)
        self.register_buffer("pivots", ((table[1:] + table[:-1]) / 2).to(device, params), persistent=False)
        self.bias = linear.bias
        self.scale_type = scale_type
        self.scale = nn.Parameter(self.weight.abs().amax(-1, keepdim=True).to(scale_type).to(params))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = self.scale
        s = s + (s.to(self.scale_type).to(s.dtype) - s).detach()  # as it is stored
        with torch.no_grad():
            quotient = torch.where(s == 0, torch.zeros_like(s), self.weight / s)
            codes = torch.searchsorted(self.pivots, quotient)  # the lower code of a tie
        weight = (self.table[codes] * s).reshape(self.weight.shape[0], -1)
        return F.linear(x, weight.to(x.dtype), self.bias)


def replace_layers(model: nn.Module, make) -> list[nn.Parameter]:
    for p in model.parameters():
        p.requires_grad_(False)
    scales = []
    for block in model.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in list(parent.named_children()):
                if name in LAYERS:
                    learned = make(child)
                    setattr(parent, name, learned)
                    scales.append(learned.scale)
    return scales


@torch.no_grad()
def perplexity(model: nn.Module, ids: list[int], ctx: int, windows: int) -> float:
    """Consecutive windows without special tokens, every token after a window's first scored, the tail dropped."""
    count = len(ids) // ctx
    count = min(count, windows) if windows else count
    total = 0.0
    for i in range(count):
        window = torch.tensor([ids[i * ctx : (i + 1) * ctx]], device=model.device)
        logits = model(window, use_cache=False).logits[0, :-1].float()
        total += F.cross_entropy(logits, window[0, 1:], reduction="sum").item()
    return math.exp(total / (count * (ctx - 1)))


def compare(name: str, got: list[float], want: list[float], tolerance: float) -> bool:
    if len(got) != len(want):
        print(f"{name}: {len(want)} of lutq, {len(got)} here")
        return False
    worst = max(abs(a - b) / abs(b) for a, b in zip(want, got))
    ok = worst <= tolerance
    print(f"{name}: largest difference {100 * worst:.3f} %, at most {100 * tolerance:g} %: {'ok' if ok else 'TOO MUCH'}")
    return ok


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--calib", type=Path, required=True, help="text to learn on")
    p.add_argument("--text", type=Path, help="text to measure perplexity on")
    p.add_argument("--bits", type=int, default=3)
    p.add_argument("--group", type=int, default=64)
    p.add_argument("--windows", type=int, default=128, help="windows to learn on, a step each")
    p.add_argument("--ctx", type=int, default=2048, help="tokens of a window")
    p.add_argument("--eval-windows", type=int, default=0, help="windows of --text (default all)")
    p.add_argument("--rate", type=float, default=1e-4)
    p.add_argument("--params", choices=("bf16", "f32"), default="f32", help="type of scales, table, quotients and Adam's state")
    p.add_argument("--scale-type", choices=TYPES, help="type that scales are stored in (default f16; bf16 with --params bf16)")
    p.add_argument("--compute", choices=TYPES, help="type of activations (default the parameters')")
    p.add_argument("--checkpointing", action="store_true", help="compute blocks again on the way back, for large models")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out", type=Path, help="write the report as JSON")
    p.add_argument("--lutq", type=Path, help="JSON of lutq quantize, to compare losses with")
    p.add_argument("--lutq-ppl", type=Path, help="JSON of lutq eval-ppl, to compare the perplexity with")
    p.add_argument("--loss-tolerance", type=float, default=0.01)
    p.add_argument("--ppl-tolerance", type=float, default=0.005)
    args = p.parse_args()
    params = TYPES[args.params]
    scale_type = TYPES[args.scale_type or ("bf16" if args.params == "bf16" else "f16")]
    compute = TYPES[args.compute or args.params]

    # The weights as they are stored, for the codes; what is not quantized computes in the type asked for.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto").to(args.device)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    table = normal_float(args.bits)
    scales = replace_layers(model, lambda linear: LearnedLinear(linear, table, args.group, params, scale_type))
    for module in model.modules():  # all but the learned layers' own
        if not isinstance(module, LearnedLinear):
            for own in (module._parameters, module._buffers):
                for key, value in own.items():
                    if value is not None and value.is_floating_point():
                        value.data = value.data.to(compute)
        elif module.bias is not None:
            module.bias.data = module.bias.data.to(compute)
    model.config.use_cache = False
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def tokens(path: Path) -> list[int]:
        return tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)["input_ids"]

    report = {
        "model": args.model.name, "bits": args.bits, "group": args.group, "windows": args.windows, "ctx": args.ctx, "rate": args.rate,
        "params": args.params, "scale_type": str(scale_type), "compute": str(compute), "device": args.device,
        "torch": torch.__version__, "parameters": sum(s.numel() for s in scales),
    }  # fmt: skip
    test = tokens(args.text) if args.text else None
    model.eval()
    if test:
        report["ppl_before"] = perplexity(model, test, args.ctx, args.eval_windows)

    calib = tokens(args.calib)
    body = args.ctx - 1
    if len(calib) < args.windows * body:
        raise SystemExit(f"{args.calib} has {len(calib) // body} windows of {args.ctx} tokens: want {args.windows}")
    adam = torch.optim.Adam(scales, lr=args.rate)
    if args.checkpointing:
        model.train()
    losses = []
    start = time.perf_counter()
    for i in range(args.windows):
        window = [model.config.bos_token_id, *calib[i * body : (i + 1) * body]]
        ids = torch.tensor([window], device=args.device)
        logits = model(ids, use_cache=False).logits[0, :-1]
        loss = F.cross_entropy(logits.float(), ids[0, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
        if i % 16 == 0:
            print(f"step {i + 1} of {args.windows}: loss {losses[-1]:.4f}", file=sys.stderr)
    seconds = time.perf_counter() - start
    report |= {"losses": losses, "seconds": seconds, "tokens_per_second": args.windows * args.ctx / seconds}
    model.eval()
    if test:
        report["ppl"] = perplexity(model, test, args.ctx, args.eval_windows)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, {report['tokens_per_second']:.0f} tokens/s")
    if test:
        print(f"perplexity {report['ppl_before']:.4f} to {report['ppl']:.4f}")

    ok = True
    if args.lutq:
        ok &= compare("losses", losses, json.loads(args.lutq.read_text())["learn"]["losses"], args.loss_tolerance)
    if args.lutq_ppl:
        if not test:
            raise SystemExit("--lutq-ppl needs --text")
        ok &= compare("perplexity", [report["ppl"]], [json.loads(args.lutq_ppl.read_text())["ppl"]], args.ppl_tolerance)
    sys.exit(0 if ok else 3)


if __name__ == "__main__":
    main()
