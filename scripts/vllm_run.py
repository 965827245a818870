#!/usr/bin/env python3
"""What vllm_run.sh does, step by step; it says how.

    prepare REQUIREMENTS PAYLOAD.tar.xz [CARD]
    folders LUTQ MODEL FOLDERS    quantizes and exports, and writes random models
    open FOLDERS OUT SECONDS      opens every folder in vLLM
    table FOLDERS OUT             holds what vLLM said against transformers
    one JSON                      a process of open
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROMPTS, LENGTH, WRITTEN = 4, 128, 64  # texts, tokens of each, and tokens that are written behind it
TEXT = Path(__file__).parent.parent / "calib" / "testdata" / "harbour.txt"
NO_MACHETE = {"VLLM_DISABLED_KERNELS": "MacheteLinearKernel"}
# What the wheel has and these folders need not: other attention, products of other kinds, sources, pages and tuning.
LEFT_OUT = r"vllm_flash_attn/_vllm_fa2.*\.so$|flashmla|third_party/deep_gemm/|vllm-rs$|/static/|fused_moe/configs/|/RECORD$"


@dataclass
class Row:
    """A row of the table: a folder, and how it is opened."""

    name: str
    folder: str  # that vLLM opens
    dense: str  # what it means
    dtype: str = "bfloat16"
    eager: bool = False
    gpus: int = 1
    apart: bool = False  # the engine in a process of its own
    attention: str = "TRITON_ATTN"  # which needs no library, but that for prompts latent attention takes FlashAttention 3
    env: dict[str, str] = field(default_factory=dict)


# The folders, by name: of which model they are quantized, and how. Those with a target are exported too.
FOLDERS = {
    "ct-g128": ("model", ["--for", "ct", "--bits", "4", "--group", "128"], "ct"),
    "ct-g64": ("model", ["--for", "ct", "--bits", "4", "--group", "64"], "ct"),
    "gptq": ("model", ["--for", "gptq", "--bits", "4"], "gptq"),
    "awq": ("model", ["--for", "awq"], "awq"),
    "nvfp4": ("model", ["--for", "nvfp4"], "nvfp4"),
    "mxfp4": ("model", ["--for", "mxfp4"], "mxfp4"),
    "4bit": ("model", ["--bits", "4"], ""),
    "3bit": ("model", ["--bits", "3"], ""),
    "byte": ("model", ["--bits", "4", "--scale-type", "e4m4"], ""),
    "rings": ("model", ["--codebook", "trellis", "--bits", "2.5"], ""),
    "kinds": ("model", {
        "bits": 4, "tensors": [
            {"match": "k_proj", "bits": 3, "group": 32, "scale_type": "e4m4"}, {"match": "v_proj", "kind": "bcq", "bits": 2},
            {"match": "gate_proj", "kind": "trellis", "bits": 2, "codebook": "trellis"}, {"match": "layers\\.1\\.self_attn\\.q_proj", "keep": True},
            {"match": "o_proj", "kind": "lut24"}, {"match": "embed", "bits": 5},
        ],
    }, ""),
    "phi3": ("phi3-model", ["--bits", "4"], ""),
    "mixtral": ("mixtral-model", ["--bits", "4"], ""),
    "qwen3": ("qwen3-model", ["--bits", "4"], ""),
    "deepseek": ("deepseek-model", ["--bits", "4"], ""),
}  # fmt: skip

ROWS = [
    Row("original", "model", "model"),
    Row("ct g128", "ct-g128.ct", "ct-g128"),
    Row("ct g64", "ct-g64.ct", "ct-g64"),
    Row("ct g128, no Machete", "ct-g128.ct", "ct-g128", env=NO_MACHETE),
    Row("gptq", "gptq.gptq", "gptq"),
    Row("awq", "awq.awq", "awq"),
    Row("awq, no Machete", "awq.awq", "awq", env=NO_MACHETE),
    Row("nvfp4", "nvfp4.nvfp4", "nvfp4"),
    Row("mxfp4", "mxfp4.mxfp4", "mxfp4"),
    Row("lutq 4 bits", "4bit", "4bit"),
    Row("lutq 4 bits, unpacked", "4bit", "4bit", env={"LUTQ": ""}),
    Row("lutq 3 bits", "3bit", "3bit"),
    Row("lutq in float32", "4bit", "4bit", dtype="float32", eager=True),
    Row("lutq, scales of a byte", "byte", "byte"),
    Row("lutq, every kind", "kinds", "kinds"),
    Row("lutq, rings of 2.5 bits", "rings", "rings"),
    Row("lutq, an engine of its own process", "4bit", "4bit", eager=True, apart=True),
    Row("lutq on two GPUs", "4bit", "4bit", gpus=2, apart=True),
    Row("lutq, Phi-3", "phi3", "phi3"),
    Row("lutq, Phi-3 on two GPUs", "phi3", "phi3", eager=True, gpus=2, apart=True),
    Row("lutq, Mixtral's experts", "mixtral", "mixtral"),
    Row("lutq, Mixtral's experts in float32", "mixtral", "mixtral", dtype="float32", eager=True),
    Row("lutq, Mixtral's experts, packed", "mixtral", "mixtral", env={"LUTQ_EXPERTS": "packed"}),
    Row("lutq, Mixtral's experts on two GPUs", "mixtral", "mixtral", eager=True, gpus=2, apart=True),
    Row("lutq, Qwen3's experts", "qwen3", "qwen3"),
    Row("lutq, Qwen3's experts, packed", "qwen3", "qwen3", env={"LUTQ_EXPERTS": "packed"}),
    # Against transformers vLLM has a KL of .33 on this random model whatever opens it, in float32 too: the rows are to be alike.
    Row("DeepSeek's mla, dense", "deepseek.dense", "deepseek", attention="TRITON_MLA"),
    Row("lutq, DeepSeek's mla", "deepseek", "deepseek", attention="TRITON_MLA"),
    Row("lutq, DeepSeek's mla by its heads", "deepseek", "deepseek", env={"VLLM_MLA_DISABLE": "1"}),
]


def machine_code(library: bytearray, card: int) -> Iterator[tuple[int, int]]:
    """The stretches of a library that a card has no use for: what is of other cards, and PTX where there is something of its own.
    A fat binary has a header of 16 bytes, magic, version, size of the header (16 bits) and of the rest (64), and entries with
    a header each: kind (1 PTX, 2 machine code), version (16 bits), size of the header (32) and of the rest (64), and at 28 the card (32)."""
    at = 0
    while (at := library.find(struct.pack("<I", 0xBA55ED50), at)) >= 0:
        _, header, size = struct.unpack_from("<HHQ", library, at + 4)
        if header != 16:  # such numbers in data
            at += 4
            continue
        entry, end = at + header, at + header + size
        entries = []
        while entry < end:
            kind, _, own, length = struct.unpack_from("<HHIQ", library, entry)
            (of,) = struct.unpack_from("<I", library, entry + 28)
            entries.append((kind, of, entry + own, entry + own + length))
            entry += own + length
        compiled = any(kind == 2 and of == card for kind, of, _, _ in entries)
        for kind, of, start, stop in entries:
            if of != card and (kind == 2 or compiled or of > card) or kind == 1 and compiled:
                yield start, stop
        at = end


def prepare(requirements: str, payload: str, card: str = "") -> None:
    with tempfile.TemporaryDirectory() as tmp, tarfile.open(payload, "w:xz", preset=6) as out:
        platforms = [option for p in ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "any") for option in ("--platform", p)]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--python-version", "3.12", *platforms, "--dest", tmp, "--requirement", requirements], check=True)
        for wheel in sorted(Path(tmp).glob("*.whl")):
            vllm = wheel.name.startswith("vllm-")
            with zipfile.ZipFile(wheel) as z:
                for info in z.infolist():
                    if info.is_dir() or vllm and re.search(LEFT_OUT, info.filename):
                        continue
                    data = bytearray(z.read(info))
                    if vllm and card and info.filename.endswith(".so"):
                        for start, end in machine_code(data, int(card)):
                            data[start:end] = bytes(end - start)  # which xz makes nothing of
                    with tempfile.TemporaryFile() as f:
                        f.write(data)
                        f.seek(0)
                        entry = tarfile.TarInfo(("pay/" if vllm else "site/") + info.filename)
                        entry.size, entry.mode = len(data), 0o644
                        out.addfile(entry, f)
    print(f"{payload}: {Path(payload).stat().st_size / 1e6:.1f} MB")


def random_models(model: Path, folders: Path) -> None:
    """Checkpoints of other forms, with the tokenizer's vocabulary: q, k and v in one matrix, experts, and latent attention."""
    import torch
    import transformers

    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    common = dict(
        vocab_size=vocabulary, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=1, pad_token_id=2, initializer_range=0.08, intermediate_size=512,
    )  # fmt: skip
    for name, config in {
        "phi3-model": transformers.Phi3Config(**common),
        "mixtral-model": transformers.MixtralConfig(**common | {"intermediate_size": 256}, num_local_experts=4, num_experts_per_tok=2, head_dim=64),
        "qwen3-model": transformers.Qwen3MoeConfig(**common, moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4, head_dim=64),
        "deepseek-model": transformers.DeepseekV2Config(  # whose kernels are for its own widths; without experts
            **common | {"num_key_value_heads": 4}, q_lora_rank=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
            n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=128, first_k_dense_replace=2,
        ),
    }.items():  # fmt: skip
        torch.manual_seed(1)
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folders / name)
        for path in model.glob("tokenizer*"):
            shutil.copy(path, folders / name)


def folders(lutq: str, model: str, out: str) -> None:
    out = Path(out)
    out.mkdir()
    shutil.copytree(model, out / "model")
    random_models(out / "model", out)
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(out / "model" / "tokenizer.json")).encode(TEXT.read_text(), add_special_tokens=False).ids
    step = (len(ids) - LENGTH) // (PROMPTS - 1)
    (out / "prompts.json").write_text(json.dumps([ids[i * step : i * step + LENGTH] for i in range(PROMPTS)]))

    def steps(name: str) -> list[list[str]]:
        of, options, target = FOLDERS[name]
        if isinstance(options, dict):
            (out / f"{name}.json").write_text(json.dumps(options))
            options = ["--recipe", str(out / f"{name}.json"), "--split-fused"]
        quantized = str(out / name)
        done = [["quantize", str(out / of), quantized, "--preset", "fast", *options], ["export", quantized, f"{quantized}.dense", "--to", "dense", "--dtype", "f32"]]
        return [*done, ["export", quantized, f"{quantized}.{target}", "--to", target]] if target else done

    chosen = [name for name in FOLDERS if any(row.dense == name for row in rows())]
    for number in range(3):
        running = [subprocess.Popen([lutq, *steps(name)[number], "--quiet"]) for name in chosen if number < len(steps(name))]
        if any([p.wait() for p in running]):
            sys.exit("vllm_run.py: lutq failed")


def rows() -> list[Row]:
    return [row for row in ROWS if re.search(os.environ.get("ONLY", ""), row.name)]


def label(row: Row) -> str:
    return re.sub(r"\W+", "-", row.name)


def open_all(folders: str, out: str, seconds: str) -> None:
    """Starts a process for each row, those that take longest first, and ends those that are not done in time."""
    import torch

    end, cards = time.time() + float(seconds), max(1, torch.cuda.device_count())
    running = []

    def start(number: int, row: Row):
        card = ",".join(map(str, range(row.gpus))) if row.gpus > 1 else str(number % cards)
        env = os.environ | row.env | {
            "CUDA_VISIBLE_DEVICES": card, "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(row.apart)), "VLLM_CACHE_ROOT": f"{folders}/cache-{label(row)}",
        }  # fmt: skip
        log = open(f"{out}/{label(row)}.log", "w")
        spec = json.dumps(asdict(row) | {"folders": folders, "out": out})
        running.append((row, subprocess.Popen([sys.executable, __file__, "one", spec], env=env, stdout=log, stderr=log, start_new_session=True)))

    for number, row in enumerate(sorted((r for r in rows() if r.gpus <= cards), key=lambda r: (-r.gpus, r.eager))):
        start(number, row)
        time.sleep(0.3)
    for row, process in running:
        try:
            process.wait(max(0, end - time.time()))
        except subprocess.TimeoutExpired:
            print(f"{row.name}: ended, it took too long", flush=True)
    for _, process in running:
        try:  # and what it has started
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def linear_methods(model) -> list[str]:
    """What multiplies in the first block, of those that are not as vLLM has them."""
    found = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if ".layers.0." in f"{name}." and method is not None and not re.match("Unquantized|.*KVCache", type(method).__name__):
            kernel = getattr(method, "kernel", None) or getattr(getattr(module, "scheme", None), "kernel", None) or getattr(module, "scheme", None)
            if kernel is None and hasattr(method, "held"):
                found.add("lutq's kernels" if method.held else "unpacked")
            else:
                found.add(type(method if kernel is None else kernel).__name__)
    return sorted(found)


def one(spec: str) -> None:
    spec = json.loads(spec)
    row, out = Row(**{k: v for k, v in spec.items() if k not in ("folders", "out")}), Path(spec["out"])
    found = {}
    started = time.time()
    try:
        import numpy as np
        import torch
        from vllm import LLM, SamplingParams

        prompts = [{"prompt_token_ids": ids} for ids in json.loads(Path(spec["folders"], "prompts.json").read_text())]
        vocabulary = json.loads(Path(spec["folders"], row.folder, "config.json").read_text())["vocab_size"]
        options = {} if row.eager else {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}
        if torch.cuda.is_available():
            options["attention_backend"] = row.attention
        llm = LLM(
            f"{spec['folders']}/{row.folder}", dtype=row.dtype, enforce_eager=row.eager, tensor_parallel_size=row.gpus, max_model_len=512, max_num_seqs=PROMPTS,
            max_logprobs=-1, enable_prefix_caching=False, skip_tokenizer_init=True, gpu_memory_utilization=0.02, kv_cache_memory_bytes=1 << 28, seed=0,
            disable_log_stats=True, **options,
        )  # fmt: skip
        found["load"] = round(time.time() - started, 1)
        if not row.apart:  # to an engine elsewhere a function cannot be sent
            found["methods"] = llm.apply_model(linear_methods)[0]
        greedy = SamplingParams(temperature=0, max_tokens=WRITTEN, ignore_eos=True, detokenize=False)
        found["greedy"] = [list(r.outputs[0].token_ids) for r in llm.generate(prompts, greedy, use_tqdm=False)]
        likely = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=-1, flat_logprobs=True)
        every = np.full((PROMPTS, LENGTH - 1, vocabulary), np.nan, np.float32)
        for text, result in zip(every, llm.generate(prompts, likely, use_tqdm=False)):
            p = result.prompt_logprobs
            for position, start, end in zip(text, p.start_indices[1:], p.end_indices[1:]):
                position[p.token_ids[start:end]] = p.logprobs[start:end]
        np.save(out / f"{label(row)}.npy", every)
    except BaseException as e:
        traceback.print_exc()
        while e.__cause__ or e.__context__:
            e = e.__cause__ or e.__context__
        found["error"] = f"{type(e).__name__}: {e}"[:300]
    (out / f"{label(row)}.json").write_text(json.dumps(found))


def table(folders: str, out: str) -> None:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    prompts = torch.tensor(json.loads(Path(folders, "prompts.json").read_text()), device=device)
    known: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def dense(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name not in known:
            path = f"{folders}/{name}" + ("" if name == "model" else ".dense")
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").to(device).eval()
            with torch.no_grad():
                likely = model(prompts).logits[:, :-1].double().log_softmax(-1).cpu()
                written = model.generate(
                    prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, do_sample=False, eos_token_id=None, pad_token_id=0
                )  # fmt: skip
            known[name] = likely, written[:, LENGTH:].cpu()
        return known[name]

    lines = ["| folder | type | mode | KL | max difference | greedy of 64 | load s | by |", "|---|---|---|--:|--:|---|--:|---|"]
    for row in rows():
        mode = ("eager" if row.eager else "graphs") + (f", {row.gpus} GPUs" if row.gpus > 1 else "")
        path = Path(out, f"{label(row)}.json")
        found = json.loads(path.read_text()) if path.exists() else {"error": "not opened: too few GPUs, or no time"}
        if error := found.get("error"):
            lines.append(f"| {row.name} | {row.dtype} | {mode} | {error.splitlines()[0]} | | | | |")
            continue
        likely, written = dense(row.dense)
        got = torch.from_numpy(np.load(Path(out, f"{label(row)}.npy"))).double()
        kl, most = float((likely.exp() * (likely - got)).sum(-1).mean()), float((likely - got).abs().max())
        same = [next((i for i, (a, b) in enumerate(zip(g, w)) if a != b), WRITTEN) for g, w in zip(found["greedy"], written.tolist())]
        lines.append(
            f"| {row.name} | {row.dtype} | {mode} | {kl:.2g} | {most:.3f} | {' '.join(map(str, same))} | {found['load']} | {', '.join(found.get('methods', []))} |"
        )
    text = "\n".join(lines)
    Path(out, "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    {"prepare": prepare, "folders": folders, "open": open_all, "table": table, "one": one}[sys.argv[1]](*sys.argv[2:])
