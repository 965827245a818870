#!/usr/bin/env python3
"""Holds lutq's EXL3 against exllamav3 1.6.5, on an NVIDIA GPU.

    scripts/exl3_check.py MODEL WORK --lutq ./lutq --text TEXT --bits 2.5 4 --made CONTAINER --tiles

--bits has exllamav3 convert the model; lutq takes its folder over and exports it again, to the same bytes. --made names
containers of the model that lutq quantized with --for exl3, which are exported. Both exports exllamav3 opens: its
logits on windows of the text, in float16, are held against those of lutq's float32 weights in transformers, and the weights
that its kernels reconstruct against lutq's, bit for bit once they are mixed in the same order. --tiles does the latter
with the folders in formats/exl3/testdata, of all codebooks and widths. One JSON object a line goes to WORK/results.jsonl, a
table to stdout. The exit code is 3 when something differs.

It takes exllamav3==1.6.5 (requirements-exl3.txt), which builds its CUDA code when it is first imported:
TORCH_CUDA_ARCH_LIST names the one architecture that is wanted.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from exllamav3 import Config, Model
from exllamav3.conversion import convert_model
from exllamav3.ext import exllamav3_ext as ext
from exllamav3.modules.quant.exl3_lib.quantize import preapply_had_l, preapply_had_r

TESTDATA = Path(__file__).parent.parent / "formats" / "exl3" / "testdata"
BOUND = 1e-5  # of the divergence
DEVICE = torch.device(0)
torch.backends.cuda.matmul.allow_tf32 = False


def tensors(folder):
    """All tensors of a folder."""
    return {k: v for f in sorted(Path(folder).glob("*.safetensors")) for k, v in load_file(f).items()}


def differing(a, b):
    """The tensors of one folder that are not in another byte for byte, or the other way."""
    same = lambda k: a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(a[k].contiguous().view(-1).view(torch.uint8), b[k].contiguous().view(-1).view(torch.uint8))
    return [k for k in sorted(a.keys() | b.keys()) if k not in a or k not in b or not same(k)]


def mixed(w):
    """A matrix times Hadamard matrices of 128 down its first axis, not normed, in the order of butterflies."""
    w, h = w.reshape(-1, 128, w.shape[1]), 1
    while h < 128:
        v = w.reshape(w.shape[0], 128 // (2 * h), 2, h, w.shape[2])
        w, h = torch.stack([v[:, :, 0] + v[:, :, 1], v[:, :, 0] - v[:, :, 1]], 2).reshape(w.shape), 2 * h
    return w.reshape(-1, w.shape[2])


def signs(words):
    """Factors of which a bit is stored each."""
    return 1 - 2 * (words.to(torch.int32).unsqueeze(1) >> torch.arange(16, device=words.device) & 1).flatten().half()


def compare_weights(folder, dense):
    """Of how many layers exllamav3's own weights are lutq's, of how many, and how far those are off that it mixes in float16."""
    t, d = tensors(folder), tensors(dense)
    equal = layers = 0
    worst = 0.0
    for key in sorted(k.removesuffix(".trellis") for k in t if k.endswith(".trellis")):
        tiles = t[key + ".trellis"].to(DEVICE)
        suh, svh = (t[key + f"{x}h"].to(DEVICE) if key + f"{x}h" in t else signs(t[key + x].to(DEVICE)) for x in (".su", ".sv"))
        bits = tiles.shape[2] / 16
        w = torch.empty((tiles.shape[0] * 16, tiles.shape[1] * 16), dtype=torch.half, device=DEVICE)
        ext.reconstruct(w, tiles, int(bits) if bits == int(bits) else bits, key + ".mcg" in t, key + ".mul1" in t)
        want = d[key + ".weight"].to(DEVICE)
        n, k = want.shape
        ours = mixed(mixed(w.float()).T.contiguous()) * (1 / 128) * svh.float()[:, None] * suh.float()
        own = preapply_had_l(w.clone(), 128) * suh[:, None]
        own = (preapply_had_r(own, 128) * svh).T[:n, :k].float()
        layers, equal = layers + 1, equal + torch.equal(ours[:n, :k], want)
        worst = max(worst, ((own - want).norm() / want.norm()).item())
    return equal, layers, worst


def windows(o):
    """Windows of the text, as token ids."""
    ids = Tokenizer.from_file(str(o.model / "tokenizer.json")).encode(o.text.read_text(errors="replace")[: 8 * o.windows * o.context]).ids
    return torch.tensor(ids[: o.windows * o.context]).view(o.windows, o.context)


def own_logits(folder, ids):
    """The logits by exllamav3."""
    model = Model.from_config(Config.from_directory(str(folder)))
    model.load(device=DEVICE, progressbar=False)
    with torch.inference_mode():
        all = torch.cat([model.forward(x[None], {"attn_mode": "flash_attn_nc"}).to("cpu", copy=True) for x in ids])
    model.unload()
    return all


def wanted(dense, ids):
    """The log probabilities by transformers in float32."""
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager").to(DEVICE).eval()
    with torch.inference_mode():
        return torch.cat([model(x[None].to(DEVICE), use_cache=False).logits.double().log_softmax(-1).cpu() for x in ids])


def divergence(want, logits):
    """The mean divergence of a token."""
    got = logits[..., : want.shape[-1]].double().log_softmax(-1)
    return (want.exp() * (want - got)).sum(-1).mean().item()


def convert(o, bits, out):
    """A folder that exllamav3 converts."""
    work = out.with_suffix(".work")
    for d in (work, out):
        shutil.rmtree(d, ignore_errors=True)
        d.mkdir(parents=True)
    args = ["-i", str(o.model), "-w", str(work), "-o", str(out), "-b", str(bits), "-hb", str(o.head), "-cr", str(o.rows), "-cc", "512"]
    args += ["-cd", str(o.calib)] if o.calib else []
    in_args, state, ok, err = convert_model.prepare(convert_model.parser.parse_args(args))
    if not ok:
        raise SystemExit(f"exllamav3 does not convert: {err}")
    convert_model.main(in_args, state)
    shutil.rmtree(work)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", default="./lutq", help="the program")
    p.add_argument("--text", type=Path)
    p.add_argument("--bits", nargs="*", type=float, default=[], help="that exllamav3 converts the model to")
    p.add_argument("--head", type=float, default=6, help="bits of the output head there; 16 leaves it as it is")
    p.add_argument("--made", nargs="*", type=Path, default=[], help="containers of the model")
    p.add_argument("--tiles", action="store_true")
    p.add_argument("--rows", type=int, default=64, help="of 512 tokens that exllamav3 calibrates on")
    p.add_argument("--calib", type=Path, help="these, as safetensors, in the place of exllamav3's own")
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--context", type=int, default=512)
    o = p.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)

    def lutq(*args):
        r = subprocess.run([o.lutq, *map(str, args)], capture_output=True, text=True)
        if r.returncode:
            raise SystemExit(f"lutq {' '.join(map(str, args))}: {r.stderr}")
        return r.stdout

    rows, failed = [], False

    def record(**row):
        nonlocal failed
        rows.append(row)
        failed = failed or row["equal"] < row["layers"] or row.get("differ", 0) > 0 or row.get("kl", 0) > BOUND or row.get("apart", 0) > 0
        with open(o.work / "results.jsonl", "a") as f:
            f.write(json.dumps(row) + "\n")
        print(row, flush=True)

    if o.tiles:
        for folder in sorted(p for p in TESTDATA.iterdir() if p.is_dir()):
            dense = o.work / f"tiles-{folder.name}"
            lutq("export", folder, dense, "--to", "dense", "--dtype", "f32", "--force", "--quiet")
            equal, layers, off = compare_weights(folder, dense)
            record(what=f"testdata/{folder.name}", equal=equal, layers=layers, off=off)
    ids = windows(o) if o.bits or o.made else None
    for bits in o.bits:
        begin = time.time()
        theirs, made, out, dense = (o.work / f"{name}-{bits:g}" for name in ("theirs", "made", "out", "dense"))
        convert(o, bits, theirs)
        took = time.time() - begin
        lutq("import", theirs, made, "--force", "--quiet")
        lutq("export", made, out, "--to", "exl3", "--force", "--quiet")
        lutq("export", out, dense, "--to", "dense", "--dtype", "f32", "--force", "--quiet")
        a, b = tensors(theirs), tensors(out)
        equal, layers, off = compare_weights(out, dense)
        logits = own_logits(out, ids)
        record(what=f"converted by exllamav3, {bits:g} bits", tensors=len(a), differ=len(differing(a, b)), equal=equal, layers=layers, off=off,
               kl=divergence(wanted(dense, ids), logits), apart=(logits - own_logits(theirs, ids)).abs().max().item(), seconds=took)
    for made in o.made:
        out, dense = (o.work / f"{name}-{made.name}" for name in ("out", "dense"))
        lutq("export", made, out, "--to", "exl3", "--force", "--quiet")
        lutq("export", made, dense, "--to", "dense", "--dtype", "f32", "--force", "--quiet")
        equal, layers, off = compare_weights(out, dense)
        record(what=f"quantized by lutq, {made.name}", equal=equal, layers=layers, off=off, kl=divergence(wanted(dense, ids), own_logits(out, ids)))
    print(f"{'':34} {'tensors equal':>13} {'layers equal':>12} {'float16':>8} {'KL':>8} {'logits apart':>12}")
    for r in rows:
        cells = [f"{r['tensors'] - r['differ']} of {r['tensors']}" if "tensors" in r else "", f"{r['equal']} of {r['layers']}", f"{r['off']:.1e}",
                 f"{r['kl']:.1e}" if "kl" in r else "", f"{r['apart']:g}" if "apart" in r else ""]
        print(f"{r['what']:34} {cells[0]:>13} {cells[1]:>12} {cells[2]:>8} {cells[3]:>8} {cells[4]:>12}")
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
