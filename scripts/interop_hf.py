#!/usr/bin/env python3
"""Opens containers in transformers with the code that lutq writes into them: the logits must be those of the dense model.

    scripts/interop_hf.py --lutq ./lutq [--model MODEL]… [--only REGEX] [--work FOLDER]
    scripts/interop_hf.py --container FOLDER [--container FOLDER]…

Quantizes every MODEL in many formats, and the tiny random checkpoint of each family of families.py. A container is opened with
trust_remote_code, and its weights, as read_container.py reads them, as a dense checkpoint under their first names; the logits of
random tokens by both, in float32 and bfloat16, must be equal. It also opens one with lutq_hf.py imported by the program,
opens folders twice, generates, and looks at what is said of versions and types that the file does not know. Of a container that
is there already it holds all weights, and some rows of each layer, against those of read_container.py. Prints
the largest difference for each; the exit code is 3 when one is not 0.
"""

import argparse
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils
from transformers.utils import logging

import families
import read_container

EXPERTS = dict(experts_implementation="eager")  # as the packed ones are multiplied
FORMATS = {
    "4 bits": {},
    "3 bits, groups of 32, bf16": {"bits": 3, "group": 32, "scale_type": "bf16"},
    "5 bits, groups of 256, f32": {"bits": 5, "group": 256, "scale_type": "f32", "codebook": "int"},
    "2 bits, rows": {"bits": 2, "group": "row", "codebook": "js"},
    "4 bits, e4m4": {"bits": 4, "group": 32, "scale_type": "e4m4"},
    "e2m1, e8m0": {"codebook": "e2m1", "group": 32, "scale_type": "e8m0"},
    "4 bits, s1e4m3": {"bits": 4, "group": 32, "scale_type": "s1e4m3"},
    "bcq, 3 bits": {"method": "bcq", "bits": 3, "group": 32},
    "bcq, 2 bits, rows, bf16": {"method": "bcq", "bits": 2, "group": "row", "scale_type": "bf16"},
    "lut24, 4 bits": {"method": "magnitude", "group": 128},
    "lut24, 3 bits, rows, bf16": {"method": "magnitude", "bits": 3, "group": "row", "scale_type": "bf16"},
    "trellis, 2 bits": {"codebook": "trellis", "bits": 2},
    "trellis, 3.5 bits, bf16": {"codebook": "trellis", "bits": 3.5, "scale_type": "bf16", "tensors": [{"match": "embed", "bits": 5}]},
    "mul1, 2.5 bits": {"codebook": "mul1", "bits": 2.5},
    "mixed": {
        "bits": 4, "tensors": [
            {"match": "down_proj", "bits": 3, "group": 32, "scale_type": "e4m4"}, {"match": "embed|lm_head", "bits": 5},
            {"match": "layers\\.0\\.", "keep": True}, {"match": "o_proj", "kind": "bcq", "bits": 2},
            {"match": "gate_proj|up_proj", "kind": "trellis", "bits": 2, "codebook": "trellis"},
        ],
    },
}  # fmt: skip
FAMILY = {
    "bits": 3, "group": 64, "tensors": [
        {"match": "o_proj|out_proj", "bits": 4, "group": "row"}, {"match": "down_proj|w2|output_linear", "kind": "trellis", "codebook": "trellis", "bits": 3.5}, {"match": "lm_head|embed", "bits": 5},
    ],
}  # fmt: skip


def quantize(lutq: str, model: Path, out: Path, recipe: dict) -> None:
    path = out.with_suffix(".json")
    path.write_text(json.dumps(recipe))
    subprocess.run([lutq, "quantize", str(model), str(out), "--recipe", str(path)], check=True, capture_output=True)


def dense(container: Path, out: Path) -> Path:
    """Writes what a container means as a checkpoint of its model, in float32."""
    out.mkdir()
    config = json.loads((container / "config.json").read_text())
    quantized = config.pop("quantization_config")
    config.pop("auto_map")
    (out / "config.json").write_text(json.dumps(config))
    stored = [f"{layer}.{part}" for layer in quantized["tensors"] for part in ("codes", "scales", "codebook", "planes", "alphas", "offsets", "pattern", "rings", "factors", "pairs")]
    tensors = {}
    for shard in container.glob("*.safetensors"):
        with safe_open(shard, "pt") as f:
            tensors |= {name: f.get_tensor(name) for name in f.keys() if name not in stored}
    for layer, w in read_container.layers(container):
        c, w = quantized["tensors"][layer], torch.from_numpy(w)
        if n := c.get("experts"):
            w = w.view(n, -1, w.shape[1])
            transposed = c.get("transposed") or config["model_type"] == "gpt_oss"  # as its MXFP4 is unpacked
            tensors[layer] = (w.transpose(1, 2) if transposed else w).contiguous()
        else:
            tensors[layer + ".weight"] = w
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@torch.inference_mode()
def logits(path: Path, ids: torch.Tensor, dtype: torch.dtype, **options) -> torch.Tensor:
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **EXPERTS, **options)
    if any(info.values()):
        sys.exit(f"interop_hf.py: {path}: {info}")
    return model(input_ids=ids).logits.float()


def difference(container: Path, work: Path) -> float:
    plain = dense(container, work / "dense")
    config = json.loads((container / "config.json").read_text())
    vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
    ids = torch.randint(3, min(vocab, 60), (2, 40), generator=torch.Generator().manual_seed(1))
    worst = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        want, got = logits(plain, ids, dtype), logits(container, ids, dtype, trust_remote_code=True)
        if not (want.std() > 1e-3 and bool(torch.isfinite(want).all())):
            sys.exit(f"interop_hf.py: {container}: the logits say nothing")
        worst = max(worst, float((got - want).abs().max()))
    shutil.rmtree(plain)
    return worst


def checkpoint(name: str, path: Path) -> Path:
    """Writes the tiny random checkpoint of a family."""
    path.mkdir()
    v = families.VARIANTS[name]
    config, entries = families.write(v, path)
    save_file({e.name: families.tensor(e, 0) for e in entries}, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def refused(container: Path, work: Path, change, want: str) -> str:
    """What is wrong with the way in which a changed container is refused, or nothing."""
    bad = work / "bad"
    shutil.copytree(container, bad)
    config = json.loads((bad / "config.json").read_text())
    change(config["quantization_config"])
    (bad / "config.json").write_text(json.dumps(config))
    try:
        AutoModelForCausalLM.from_pretrained(bad, trust_remote_code=True)
        return "it opens"
    except ValueError as e:
        return "" if want in str(e) and "\n" not in str(e) else str(e)
    finally:
        shutil.rmtree(bad)


def apart(got: torch.Tensor, want: torch.Tensor) -> str:
    worst = (got - want).detach().abs().max().item()
    return "" if worst == 0 else f"{worst:.3g}"


def others(container: Path, work: Path) -> dict[str, str]:
    """What else must hold for a container of a whole model: what is wrong with it, or nothing."""
    model = AutoModelForCausalLM.from_pretrained(container, trust_remote_code=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(container, trust_remote_code=True)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    text = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    out = {"generates": "" if text.shape[1] == ids.shape[1] + 8 else f"{text.shape[1]} tokens"}
    want = model(input_ids=ids).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out["compiles"] = apart(compiled(input_ids=ids).logits, want)
    sys.path.insert(0, str(container))
    importlib.import_module("lutq_hf")
    imported = AutoModelForCausalLM.from_pretrained(container, dtype=torch.float32)
    out["opens where lutq_hf.py is imported"] = apart(imported(input_ids=ids).logits, want)
    stored = {n: b.dtype for n, b in model.named_buffers() if n.endswith(("codes", "scales", "codebook", "rings"))}
    torch.nn.Module.half(model)
    kept = all(b.dtype == stored[n] for n, b in model.named_buffers() if n in stored)
    half = model(input_ids=ids).logits
    out["half() keeps what is stored"] = "" if stored and kept and half.dtype == torch.float16 else f"{half.dtype}"
    out["version"] = refused(container, work, lambda c: c.update(version=4), "versions 1 to 3, not 4")
    out["kind"] = refused(container, work, lambda c: next(iter(c["tensors"].values())).update(kind="tree"), "knows no tree")
    out["scale type"] = refused(container, work, lambda c: c.update(scale_type="f8"), "scales of type f8")
    out["layer"] = refused(container, work, lambda c: c["tensors"].update(x=next(iter(c["tensors"].values()))), "x is quantized")
    return out


def packed(container: Path) -> dict[str, float]:
    """How far the weights of each layer are from what they should be: all, a stretch of rows, and rows by their numbers."""
    torch.set_num_threads(1)  # for these sizes
    spec = importlib.util.spec_from_file_location("lutq_hf", container / "lutq_hf.py")
    lutq_hf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lutq_hf)
    config, folder = lutq_hf.LutqConfig(**read_container.quantization(container)), read_container.Folder(container)
    found = {}
    for name, w in read_container.layers(container):
        w = torch.from_numpy(np.ascontiguousarray(w))
        layer = lutq_hf.Packed(name, config.of(name), torch.empty(0), {p for p in lutq_hf.OPTIONAL if f"{name}.{p}" in folder.where})
        for part, stored in layer.named_buffers():
            shape, data = folder.raw(f"{name}.{part}")[1:]
            if list(stored.shape) != shape:
                sys.exit(f"interop_hf.py: {name}.{part} is {shape}, not {list(stored.shape)}")
            stored.copy_(torch.frombuffer(bytearray(data), dtype=stored.dtype).view(shape))
        layer.loaded()
        n, worst, whole = layer.rows, 0.0, lutq_hf.CHUNK
        for chunk, dtype, rows in (
            (whole, torch.float32, slice(None)), (1 << 15, torch.bfloat16, slice(None)), (whole, torch.float32, slice(n // 3, n // 3 + 5)),
            (whole, torch.float32, slice(n - 1, n)), (whole, torch.float32, torch.tensor([n - 1, 0, n // 2])), (whole, torch.float32, torch.arange(0, n, 3)),
        ):  # fmt: skip
            lutq_hf.CHUNK = chunk
            worst = max(worst, (layer.dense(dtype, rows).float() - w[rows].to(dtype).float()).abs().max().item())
        lutq_hf.CHUNK = whole
        found[layer.extra_repr()] = worst
    return found


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lutq", help="the binary")
    p.add_argument("--container", type=Path, action="append", help="a container to look at the weights of, and at nothing else; repeatable")
    p.add_argument("--model", type=Path, action="append", default=[], help="a checkpoint to quantize in many formats; repeatable")
    p.add_argument("--only", default="", metavar="REGEX", help="of the families")
    p.add_argument("--work", type=Path, help="folder to work in (default a temporary one)")
    args = p.parse_args()
    logging.disable_progress_bar()
    bad = 0

    def say(what: str, found: str) -> None:
        nonlocal bad
        bad += found not in ("", "0")
        print(f"{what:60} {found or 'yes'}", flush=True)

    if args.container:
        for container in args.container:
            for what, worst in packed(container).items():
                say(what, f"{worst:.3g}")
        return 3 if bad else 0
    if not args.lutq:
        p.error("want --lutq or --container")
    with tempfile.TemporaryDirectory(dir=args.work) as tmp:
        dynamic_module_utils.HF_MODULES_CACHE = f"{tmp}/modules"  # where code of folders is copied to
        for model in args.model:
            for i, (name, recipe) in enumerate(FORMATS.items()):
                work = Path(tmp) / f"{model.name}-{i}"
                work.mkdir()
                quantize(args.lutq, model, work / "out", recipe)
                say(f"{model.name}, {name}", f"{difference(work / 'out', work):.3g}")
                if i == 0 or recipe.get("codebook") == "trellis" and "tensors" not in recipe:
                    for what, found in others(work / "out", work).items():
                        say(f"{model.name}, {name}: {what}", found)
                shutil.rmtree(work)
        for name in families.VARIANTS:
            if not re.search(args.only, name):
                continue
            work = Path(tmp) / name
            work.mkdir()
            quantize(args.lutq, checkpoint(name, work / "model"), work / "out", FAMILY)
            say(name, f"{difference(work / 'out', work):.3g}")
            shutil.rmtree(work)
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
