#!/usr/bin/env python3
"""Times vLLM on lutq's folders: tokens a second that llm.generate writes, beside bfloat16 and compressed-tensors of 4 bits.

    scripts/vllm_speed.py [--only bf16,ct,lutq] [--layers 32] [--requests 1,16,64,256] [--work FOLDER]

The models have the shape of Llama-3-8B and weights that are random where they lie, so that nothing is read but a config.json. Each is
loaded in a process of its own, all beside each other, after the plugin has measured how to multiply; then one after the other is timed: requests of 16 tokens each, to which as
many are added as --tokens says, the best of three times; decoding alone by the difference from an eighth of the tokens; and
prompts of 896 tokens. bf16 is the model as it was, ct what `lutq export --to ct` writes, in groups of 128, and lutq a
container in groups of --group columns, by the plugin for vLLM.

Needs an NVIDIA GPU with 40 GB, vLLM, and on the path for Python formats/lutq; for kernels the program lutq on the PATH, or LUTQ.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

SHAPE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False,
    dtype="bfloat16", bos_token_id=0, eos_token_id=1, attention_bias=False, mlp_bias=False,
)  # fmt: skip
LAYERS = {
    "self_attn.q_proj": [4096, 4096], "self_attn.k_proj": [1024, 4096], "self_attn.v_proj": [1024, 4096], "self_attn.o_proj": [4096, 4096],
    "mlp.gate_proj": [14336, 4096], "mlp.up_proj": [14336, 4096], "mlp.down_proj": [4096, 14336],
}  # fmt: skip


def config(name: str, layers: int, group: int) -> dict:
    c = SHAPE | {"num_hidden_layers": layers}
    if name == "ct":
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False, "observer": "minmax"}
        group0 = {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": weights}
        c["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
            "kv_cache_scheme": None, "config_groups": {"group_0": group0},
        }  # fmt: skip
    elif name == "lutq":
        tensors = {f"model.layers.{i}.{leaf}": {"shape": shape} for i in range(layers) for leaf, shape in LAYERS.items()}
        c["quantization_config"] = {"quant_method": "lutq", "version": 1, "bits": 4, "group": group, "codebook": "nf", "scale_type": "f16", "tensors": tensors}
    return c


def fill_at_random() -> None:
    """Has vLLM's weights that are not loaded be such that all of the hardware is kept as busy as by a model's: codes too are random."""
    import torch
    import vllm.model_executor.model_loader.dummy_loader as dummy

    usual = dummy.initialize_dummy_weights

    def fill(model, *args, **options):
        usual(model, *args, **options)
        for m in model.modules():
            if type(m).__name__ == "Share":  # of lutq_vllm.py
                m.codes.random_(0, 256)
                m.scales.uniform_(0.5e-3, 2e-3)
                m.codebook.copy_(torch.linspace(-1, 1, len(m.codebook)) ** 3)
                m.missing.clear()
        for p in model.parameters():
            if p.dtype == torch.int32 and p.dim() > 1:  # eight codes of compressed-tensors
                p.random_(-(2**31), 2**31 - 1)

    dummy.initialize_dummy_weights = fill


def measure(group: int) -> None:
    """Has the plugin measure how to multiply while nothing else is on the GPU, and prints what it has found, each row's fastest first."""
    import lutq_kernels
    import torch

    matrix = lambda leaf: types.SimpleNamespace(rows=LAYERS[leaf][0], k=LAYERS[leaf][1], bits=4, group=group, scale_type="f16")  # noqa: E731
    for fused in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
        lutq_kernels.want([matrix(next(leaf for leaf in LAYERS if leaf.endswith(part))) for part in fused], torch.bfloat16)
    op = lutq_kernels.KERNELS.find(next(iter(lutq_kernels.KERNELS.wanted["bf16"])), "bf16", torch.device("cuda", 0))
    for name, layer in (op.plan["layers"] if op else {}).items():
        for t in op.plan["products"][layer["products"][0]].get("timings", ()):
            if t["rows"] in (48, 64, 96, 128, 256, 512, 1024) and t["us"]:
                print(f"{name}, {t['rows']} rows, us:", ", ".join(f"{way} {us:.1f}" for way, us in sorted(t["us"].items(), key=lambda v: v[1] or 1e9)))


def one(folder: Path, args: argparse.Namespace) -> None:
    """Loads a model and, when it is told, times it: result.json."""
    start, found = time.time(), {}

    def keep():
        (folder / "result.tmp").write_text(json.dumps(found))
        os.replace(folder / "result.tmp", folder / "result.json")

    fill_at_random()
    import torch
    from vllm import LLM, SamplingParams

    options = dict(
        dtype="bfloat16", load_format="dummy", max_model_len=1024, max_num_seqs=max(args.requests), skip_tokenizer_init=True, enable_prefix_caching=False,
        gpu_memory_utilization=0.05, kv_cache_memory_bytes=6 << 30, compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256]},
    )  # fmt: skip
    if args.attention:
        options["attention_backend"] = args.attention
    llm = LLM(str(folder), **options)
    found["load_s"], found["gb"] = round(time.time() - start), round(torch.cuda.max_memory_allocated() / 1e9, 1)

    def methods(model) -> list[str]:
        all = {}
        for name, m in model.named_modules():
            method = getattr(m, "quant_method", None)
            if method is not None and ".layers.0." in name and "proj" in name:
                kernel = getattr(getattr(m, "scheme", None), "kernel", None)
                all[type(kernel or method).__name__ + (" by kernels" if getattr(method, "held", None) else "")] = None
        return list(all)

    found["layers"] = llm.apply_model(methods)[0]
    g = torch.Generator().manual_seed(1)

    def generate(requests: int, length: int, tokens: int) -> float:
        prompts = [{"prompt_token_ids": torch.randint(3, SHAPE["vocab_size"], (length,), generator=g).tolist()} for _ in range(requests)]
        begin = time.perf_counter()
        results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False), use_tqdm=False)
        took = time.perf_counter() - begin
        assert all(len(r.outputs[0].token_ids) == tokens for r in results)
        return took

    generate(2, 16, 4)
    keep()
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    for n in args.requests:
        generate(n, 16, 8)
        took = min(generate(n, 16, args.tokens) for _ in range(3))
        short = min(generate(n, 16, args.tokens // 8) for _ in range(2))
        found[f"rate{n}"] = n * args.tokens / took
        found[f"step{n}"] = 1e3 * (took - short) / (args.tokens - args.tokens // 8)
        keep()
    generate(16, 896, 1)
    found["prompts"] = 16 * 896 / min(generate(16, 896, 1) for _ in range(2))
    keep()
    (folder / "done").touch()


def table(names: list[str], work: Path, requests: list[int]) -> int:
    results = {n: json.loads(f.read_text()) if (f := work / n / "result.json").exists() else {} for n in names}
    print(f"\n| tokens/s of {', '.join(map(str, requests))} requests; ms of a step |" + " | ".join(map(str, requests)) + " | prompts | loaded | by |")
    print("|---|" + "--:|" * (len(requests) + 2) + "---|")
    for name, r in results.items():
        cells = [f"{r[f'rate{n}']:.0f}; {r[f'step{n}']:.2f}" if f"rate{n}" in r else "–" for n in requests]
        print(f"| {name} | {' | '.join(cells)} | {r.get('prompts', 0):.0f} | {r.get('load_s', '–')} s, {r.get('gb', '–')} GB | {', '.join(r.get('layers', []))} |")
    if "ct" in results and "lutq" in results:
        rates = [results["lutq"].get(f"rate{n}", 0) / results["ct"][f"rate{n}"] if f"rate{n}" in results["ct"] else 0 for n in requests]
        print(f"| lutq over ct | {' | '.join(f'{r:.2f}' for r in rates)} | | | |")
    return 3 if any("prompts" not in r for r in results.values()) else 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda of: lambda s: [of(v) for v in s.split(",")]  # noqa: E731
    p.add_argument("--only", type=listed(str), default=["bf16", "ct", "lutq"], help="of bf16, ct and lutq (default all)")
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--group", type=int, default=64, help="columns to a scale of lutq's (default 64)")
    p.add_argument("--requests", type=listed(int), default=[1, 16, 64, 256])
    p.add_argument("--tokens", type=int, default=128, help="written for each request (default 128)")
    p.add_argument("--attention", help="vLLM's attention backend (default its choice)")
    p.add_argument("--seconds", type=float, default=600, help="end what takes longer")
    p.add_argument("--work", type=Path, help="folder for logs (default a temporary one)")
    p.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.measure:
        measure(args.group)
        return 0
    if args.one:
        one(args.one, args)
        return 0
    work = Path(tempfile.mkdtemp(dir=args.work))
    end = time.time() + args.seconds
    processes = {}
    if "lutq" in args.only:
        begun = time.time()
        subprocess.run([sys.executable, __file__, "--measure", "--group", str(args.group)], check=False)
        print(f"measured in {time.time() - begun:.0f} s", flush=True)
    env = dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    try:
        for name in args.only:
            folder = work / name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config(name, args.layers, args.group)))
            with open(folder / "log", "w") as log:
                command = [sys.executable, __file__, "--one", str(folder), *sys.argv[1:]]
                processes[name] = subprocess.Popen(command, env=env | {"VLLM_CACHE_ROOT": str(folder / "cache")}, stdout=log, stderr=log)

        def wait(name: str, mark: str) -> bool:
            while not (work / name / mark).exists() and processes[name].poll() is None and time.time() < end:
                time.sleep(0.05)
            return (work / name / mark).exists()

        loaded = [name for name in args.only if wait(name, "ready")]  # all, before one is timed
        for name in loaded:
            (work / name / "go").touch()
            wait(name, "done")
            processes[name].kill()
        for name in args.only:
            if not (work / name / "done").exists():
                text = (work / name / "log").read_text()
                print(f"{name}: not timed: {(re.findall(r'^.*Error.*$', text, re.M) or text.splitlines() or ['no log'])[-1][:300]}")
        return table(args.only, work, args.requests)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        if not args.work:
            shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
