#!/usr/bin/env python3
"""Times a Llama's shape with random weights in llama.cpp on an NVIDIA GPU, and in `lutq bench --decode`, in one run.

    npm pack @node-llama-cpp/linux-x64-cuda@3.22.1 && tar xzf node-llama-cpp-linux-x64-cuda-3.22.1.tgz
    pip install gguf==0.19.0
    scripts/compare_llamacpp_cuda.py config.json WORK --libs package/bins/linux-x64-cuda --lutq ./lutq [--check MODEL.gguf]...

The libraries need libcudart.so.13 and libcublas.so.13 on the loader's path (LD_LIBRARY_PATH) and, for the GPUs that they hold PTX
of, H100 and H200 among them, a driver of CUDA 13.1; with an older one, give --libs a copy of the folder with the
libggml-cuda.so that llamacpp_cubins.py makes.

WORK takes the GGUF files, of the types that llama-quantize gives each tensor for Q4_0 and Q4_K_M: the head has Q6_K, which is
6.6 bits. The tests are llama-bench's, and llama-batched-bench's where texts are written side by side: pp512 and pp2048 read a
prompt, tg128 writes 128 tokens one by one, @d4096 behind a text of 4096. All layers are on the GPU, with flash attention, float16 keys and
values, CUDA graphs as it uses them, parts of 512 tokens of a prompt (its default) or 2048, the faster of which counts.
llama.cpp hands the logits of each step to the host and chooses nothing; lutq chooses the token on the GPU.
The median of three repetitions after one that does not count.

Before that, the GPU's logits are held against those of llama.cpp's own CPU code, of each file here and of every --check, after
prompts and single steps; the exit code is 3 where they are further apart, by their norms, than 1e-2 in files of
16 bits and 0.2 in others: of inputs of 8 bits, which quantized weights are multiplied by, the two make different errors.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType

PROMPTS, STEPS = (1, 3, 8, 17, 40), 8  # tokens of a check
POOL = 256 * 16381  # weights that are quantized; a tensor is a stretch of them, over and over, no two rows the same
FLASH, F16 = 1, 1


class ModelParams(Structure):
    """llama_model_params of llama.h, llama.cpp v0.5.0."""

    _fields_ = [
        ("devices", POINTER(c_void_p)), ("tensor_buft_overrides", c_void_p), ("n_gpu_layers", c_int32), ("split_mode", c_int32),
        ("load_mode", c_int32), ("lazy_mode", c_int32), ("main_gpu", c_int32), ("tensor_split", c_void_p),
        ("progress_callback", c_void_p), ("progress_callback_user_data", c_void_p), ("kv_overrides", c_void_p),
        ("vocab_only", c_bool), ("check_tensors", c_bool), ("use_extra_bufts", c_bool), ("no_host", c_bool), ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]  # fmt: skip


class ContextParams(Structure):
    """llama_context_params of the same."""

    _fields_ = [
        ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32), ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32), ("n_outputs_max_per_seq", c_uint32), ("n_threads", c_int32), ("n_threads_batch", c_int32),
        ("ctx_type", c_int32), ("rope_scaling_type", c_int32), ("pooling_type", c_int32), ("attention_type", c_int32),
        ("flash_attn_type", c_int32), ("rope_freq_base", c_float), ("rope_freq_scale", c_float), ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float), ("yarn_beta_fast", c_float), ("yarn_beta_slow", c_float), ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float), ("cb_eval", c_void_p), ("cb_eval_user_data", c_void_p), ("type_k", c_int32), ("type_v", c_int32),
        ("abort_callback", c_void_p), ("abort_callback_data", c_void_p), ("embeddings", c_bool), ("offload_kqv", c_bool),
        ("no_perf", c_bool), ("op_offload", c_bool), ("swa_full", c_bool), ("kv_unified", c_bool), ("samplers", c_void_p),
        ("n_samplers", c_size_t), ("ctx_other", c_void_p),
    ]  # fmt: skip


class Batch(Structure):
    """llama_batch of the same."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p), ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]  # fmt: skip


LOG = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class Library:
    """libllama and its backends."""

    def __init__(self, folder: Path) -> None:
        def load(pattern: str) -> ctypes.CDLL:
            found = sorted(folder.glob(pattern))
            if len(found) != 1:
                sys.exit(f"{folder}: want one {pattern}, there are {len(found)}")
            return ctypes.CDLL(str(found[0]), ctypes.RTLD_GLOBAL)

        self.base, ggml, self.llama = load("libggml-base.so"), load("libggml.*.so"), load("libllama.*.so")
        self.said: list[str] = []
        self.log = LOG(lambda level, text, data: self.said.append(text.decode(errors="replace")))
        self.llama.llama_log_set(self.log, None)
        # Opened here first, so that what it lacks is told.
        try:
            ctypes.CDLL(str(folder / "libggml-cuda.so"))
        except OSError as e:
            print(f"no GPU: {e}", file=sys.stderr)
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
        for name, result, *arguments in (
            ("llama_model_default_params", ModelParams),
            ("llama_context_default_params", ContextParams),
            ("llama_model_load_from_file", c_void_p, c_char_p, ModelParams),
            ("llama_model_free", None, c_void_p),
            ("llama_init_from_model", c_void_p, c_void_p, ContextParams),
            ("llama_free", None, c_void_p),
            ("llama_model_get_vocab", c_void_p, c_void_p),
            ("llama_vocab_n_tokens", c_int32, c_void_p),
            ("llama_model_size", ctypes.c_uint64, c_void_p),
            ("llama_get_memory", c_void_p, c_void_p),
            ("llama_memory_seq_rm", c_bool, c_void_p, c_int32, c_int32, c_int32),
            ("llama_batch_init", Batch, c_int32, c_int32, c_int32),
            ("llama_batch_free", None, Batch),
            ("llama_decode", c_int32, c_void_p, Batch),
            ("llama_synchronize", None, c_void_p),
            ("llama_get_logits_ith", POINTER(c_float), c_void_p, c_int32),
            ("llama_supports_gpu_offload", c_bool),
        ):
            f = getattr(self.llama, name)
            f.restype, f.argtypes = result, arguments
        self.base.ggml_quantize_chunk.restype = c_size_t
        self.base.ggml_quantize_chunk.argtypes = [c_int32, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]
        m, c = self.llama.llama_model_default_params(), self.llama.llama_context_default_params()
        if (c.n_ubatch, c.type_k, c.type_v, c.offload_kqv, c.samplers, m.use_extra_bufts, m.kv_overrides) != (
            512,
            F16,
            F16,
            True,
            None,
            True,
            None,
        ):
            sys.exit(f"{folder}: the structures of this libllama are not those of v0.5.0")

    def fail(self, what: str) -> None:
        sys.exit(what + "\n" + "".join(self.said[-20:]))


class Model:
    def __init__(self, lib: Library, file: Path, gpu: bool) -> None:
        self.lib, self.gpu = lib, gpu
        p = lib.llama.llama_model_default_params()
        p.n_gpu_layers = 99 if gpu else 0
        none = (c_void_p * 1)(None)
        if not gpu:
            p.devices, p.use_extra_bufts = none, False
        self.handle = lib.llama.llama_model_load_from_file(str(file).encode(), p)
        if not self.handle:
            lib.fail(f"{file}: llama.cpp does not load it")
        self.vocab = lib.llama.llama_vocab_n_tokens(lib.llama.llama_model_get_vocab(self.handle))
        self.size = lib.llama.llama_model_size(self.handle)

    def close(self) -> None:
        self.lib.llama.llama_model_free(self.handle)


class Texts:
    """Texts side by side, each with its keys and values."""

    def __init__(self, model: Model, texts: int, length: int, part: int = 512) -> None:
        self.lib, self.model, self.texts = model.lib.llama, model, texts
        p = self.lib.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = texts * (-(-length // 256) * 256), 2048, part, texts
        p.flash_attn_type = FLASH
        if not model.gpu:
            p.offload_kqv = p.op_offload = False
            p.n_threads = p.n_threads_batch = os.cpu_count()
        self.handle = self.lib.llama_init_from_model(model.handle, p)
        if not self.handle:
            model.lib.fail(f"no context of {texts} texts of {length} tokens")
        self.memory = self.lib.llama_get_memory(self.handle)
        self.rng = np.random.default_rng(1)
        # What a step needs is set here once; only tokens and positions change.
        self.batch = self.lib.llama_batch_init(texts, 0, 1)
        self.batch.n_tokens = texts
        for text in range(texts):
            self.batch.n_seq_id[text], self.batch.seq_id[text][0], self.batch.logits[text] = 1, text, 1
        self.tokens, self.positions = (np.ctypeslib.as_array(p, (texts,)) for p in (self.batch.token, self.batch.pos))

    def close(self) -> None:
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.handle)

    def forget(self, depth: int) -> None:
        for text in range(self.texts):
            self.lib.llama_memory_seq_rm(self.memory, text, depth, -1)

    def decode(self, batch: Batch) -> None:
        if code := self.lib.llama_decode(self.handle, batch):
            self.model.lib.fail(f"llama_decode: {code}")

    def prompt(self, tokens: np.ndarray) -> None:
        """Goes on with the first text; the last token has logits."""
        for at in range(0, len(tokens), 2048):
            part = np.ascontiguousarray(tokens[at : at + 2048], np.int32)
            self.decode(Batch(n_tokens=len(part), token=part.ctypes.data_as(POINTER(c_int32))))

    def step(self, tokens: np.ndarray, position: int) -> None:
        """A token of every text."""
        self.tokens[:], self.positions[:] = tokens, position
        self.decode(self.batch)

    def some(self, count: int) -> np.ndarray:
        return self.rng.integers(self.model.vocab, size=count, dtype=np.int32)

    def wait(self) -> None:
        self.lib.llama_synchronize(self.handle)

    def logits(self) -> np.ndarray:
        """Of the last token."""
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.handle, -1), (self.model.vocab,)).astype(np.float64)


@dataclass(frozen=True)
class Test:
    """A row of llama-bench."""

    prompt: bool
    tokens: int
    depth: int
    texts: int

    @property
    def name(self) -> str:
        return f"{'pp' if self.prompt else 'tg'}{self.tokens}" + (f"@d{self.depth}" if self.depth else "")


TESTS = [
    Test(False, 128, 0, 1),
    Test(False, 128, 0, 4),
    Test(False, 128, 0, 16),
    Test(False, 128, 4096, 1),
    Test(True, 512, 0, 1),
    Test(True, 2048, 0, 1),
]


def timed(model: Model, test: Test, part: int, repeat: int) -> float:
    """Tokens a second, of all texts."""
    t = Texts(model, test.texts, test.depth + test.tokens, part)
    if test.depth:  # of one text
        t.prompt(t.some(test.depth))
    took = []
    for _ in range(repeat + 1):
        t.forget(test.depth)
        t.wait()
        start = time.perf_counter()
        if test.prompt:
            t.prompt(t.some(test.tokens))
        else:
            for i in range(test.tokens):
                t.step(t.some(test.texts), test.depth + i)
                t.wait()
        t.wait()
        took.append(time.perf_counter() - start)
    t.close()
    return (1 if test.prompt else test.texts) * test.tokens / statistics.median(took[1:])


def all_logits(lib: Library, file: Path, gpu: bool) -> np.ndarray:
    model = Model(lib, file, gpu)
    t = Texts(model, 1, PROMPTS[-1] + STEPS)
    tokens = t.some(PROMPTS[-1] + STEPS)
    out = []
    for length in PROMPTS:  # of which the last token has logits
        t.forget(0)
        t.prompt(tokens[:length])
        out.append(t.logits())
    for i in range(PROMPTS[-1], len(tokens)):
        t.step(tokens[i : i + 1], i)
        out.append(t.logits())
    t.close()
    model.close()
    return np.stack(out)


def agrees(lib: Library, file: Path) -> bool:
    want, got = all_logits(lib, file, False), all_logits(lib, file, True)
    dense = {t.tensor_type for t in GGUFReader(file).tensors} <= {GGMLQuantizationType[n] for n in ("F32", "F16", "BF16")}
    tolerance = 1e-2 if dense else 0.2
    error = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    top = (got.argmax(1) == want.argmax(1)).mean()
    good = np.isfinite(got).all() and error.max() <= tolerance
    print(
        f"{file.name}: GPU's logits against the CPU's, relative: {error[: len(PROMPTS)].max():.1e} after prompts, {error[len(PROMPTS) :].max():.1e} after steps,"
        f" {top:.0%} the same token{'' if good else ': TOO FAR'}",
        flush=True,
    )
    return good


def kinds(recipe: str, layers: int, tied: bool) -> dict[str, GGMLQuantizationType]:
    """The type of each matrix, as llama-quantize chooses it without an importance matrix (llama-quant.cpp)."""
    q4, q6 = GGMLQuantizationType["Q4_0" if recipe == "Q4_0" else "Q4_K"], GGMLQuantizationType.Q6_K
    out = {"token_embd": q6 if tied else q4, "output": q6}
    for i in range(layers):
        more = recipe == "Q4_K_M" and (i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            out[f"blk.{i}.{name}"] = q6 if more and name in ("attn_v", "ffn_down") else q4
    return out


def write(lib: Library, config: dict, recipe: str, path: Path) -> None:
    """A GGUF file of random weights without a tokenizer."""
    hidden, inter, layers, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
    heads, tied = config["num_attention_heads"], config.get("tie_word_embeddings", False)
    kv, dim = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = config.get("rope_theta", rope.get("rope_theta", 10000.0))
    w = GGUFWriter(path, "llama")
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(inter)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_rope_freq_base(theta)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_vocab_size(vocab)
    w.add_file_type(LlamaFileType[f"MOSTLY_{recipe}"])
    w.add_tokenizer_model("none")

    shape = {
        "token_embd": (vocab, hidden), "output": (vocab, hidden), "attn_q": (heads * dim, hidden), "attn_k": (kv * dim, hidden),
        "attn_v": (kv * dim, hidden), "attn_output": (hidden, heads * dim), "ffn_gate": (inter, hidden), "ffn_up": (inter, hidden),
        "ffn_down": (hidden, inter),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(POOL, np.float32)
    # So that what blocks add to the embedding stays of its size, and rounding is not magnified from block to block.
    spreads = {"token_embd": 1, "attn_output": 0.02 / 8, "ffn_down": 0.02 / 8}
    pools: dict[tuple, np.ndarray] = {}
    matrices = {}
    for name, kind in kinds(recipe, layers, tied).items():
        if name == "output" and tied:
            continue
        last = name.split(".")[-1]
        rows, columns = shape[last]
        pool = kind, spreads.get(last, 0.02)
        elements, size = GGML_QUANT_SIZES[kind]
        if columns % elements:
            sys.exit(f"{name}: {columns} columns are no blocks of {elements}")
        if pool not in pools:
            pools[pool] = np.zeros((POOL // elements, size), np.uint8)
            source = normal * np.float32(pool[1])
            lib.base.ggml_quantize_chunk(int(kind), source.ctypes.data, pools[pool].ctypes.data, 0, 1, POOL, None)
        matrices[name] = pool, rows, columns // elements
        w.add_tensor_info(f"{name}.weight", (rows, columns // elements * size), np.dtype(np.uint8), rows * columns // elements * size, kind)
    vectors = {f"blk.{i}.{n}.weight": np.ones(hidden, np.float32) for i in range(layers) for n in ("attn_norm", "ffn_norm")}
    vectors["output_norm.weight"] = np.ones(hidden, np.float32)
    if rope.get("rope_type", rope.get("type")) == "llama3":  # what each frequency is divided by, as transformers' rope_utils have it
        wave = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        turns = rope["original_max_position_embeddings"] / wave
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        vectors["rope_freqs.weight"] = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    for name, v in vectors.items():
        w.add_tensor_info(name, v.shape, v.dtype, v.nbytes)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for pool, rows, blocks in matrices.values():
        p = pools[pool]
        w.write_tensor_data(np.resize(np.roll(p, int(rng.integers(len(p))), 0), (rows * blocks, p.shape[1])))
    for v in vectors.values():
        w.write_tensor_data(v)
    w.close()


def lutq_rates(lutq: Path, config: Path, bits: str, group: str, head: int) -> dict[Test, float]:
    """What lutq's own bench says of the same tests."""
    names, texts = (dict.fromkeys(map(str, of)) for of in ((t.name for t in TESTS), (t.texts for t in TESTS)))
    flags = ["--bits", bits, "--group", group, "--head-bits", str(head), "--tests", ",".join(names), "--batch", ",".join(texts)]
    run = subprocess.run(
        [lutq.resolve(), "bench", config, "--decode", "--device", "cuda", "--no-dense", "--json", *flags],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = {(r["test"].split("@")[0], r["depth"], r["batch"]): r["tokens_per_second"] for r in json.loads(run.stdout)["rows"]}
    return {t: rows[t.name.split("@")[0], t.depth, t.texts] for t in TESTS}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--libs", type=Path, required=True, help="folder of libllama and its backends")
    p.add_argument("--lutq", type=Path, help="the program; without it llama.cpp stands alone")
    p.add_argument("--recipes", default="Q4_0,Q4_K_M")
    p.add_argument("--bits", default="4", help="of lutq (4)")
    p.add_argument("--group", default="32", help="of lutq; Q4_0 has 32 (32)")
    p.add_argument("--heads", default="16,5", help="bits of lutq's head (16,5)")
    p.add_argument("--check", type=Path, action="append", default=[], help="a GGUF file of which the logits are compared too")
    p.add_argument("--repeat", type=int, default=3)
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    config = json.loads(a.config.read_text())
    if config["architectures"] not in (["LlamaForCausalLM"], ["MistralForCausalLM"]):
        sys.exit(f"{a.config}: want a Llama, this is {config['architectures']}")
    lib = Library(a.libs)
    if not lib.llama.llama_supports_gpu_offload():
        lib.fail("llama.cpp finds no GPU")

    good = True
    for file in a.check:
        good &= agrees(lib, file)
    rates: dict[str, dict[Test, float]] = {}
    for recipe in a.recipes.split(","):
        file = a.work / f"{recipe}.gguf"
        write(lib, config, recipe, file)
        good &= agrees(lib, file)
        model = Model(lib, file, True)
        rates[f"llama.cpp {recipe}, {model.size / 1e9:.2f} GB"] = r = {}
        for t in TESTS:
            for part in (512, 2048) if t.tokens > 512 else (512,):
                rate = timed(model, t, part, a.repeat)
                print(f"{recipe} {t.name} of {t.texts} texts, parts of {part}: {rate:.0f} tokens/s", file=sys.stderr, flush=True)
                r[t] = max(r.get(t, 0), rate)
        model.close()
        file.unlink()
    best = {t: max(r[t] for r in rates.values()) for t in TESTS}
    for head in a.heads.split(",") if a.lutq else []:
        r = lutq_rates(a.lutq, a.config, a.bits, a.group, int(head))
        name = f"lutq {a.bits} bits, group {a.group}, head {head}"
        rates[name] = r
        rates[f"{name}: over the best of llama.cpp"] = {t: r[t] / best[t] for t in r}
    print("| | " + " | ".join(f"{t.name}{f' x {t.texts}' if t.texts > 1 else ''}" for t in TESTS) + " |")
    print("|---|" + "--:|" * len(TESTS))
    for name, r in rates.items():
        cells = [f"{r[t]:.2f}" if "over" in name else f"{r[t]:.0f}" for t in TESTS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if not good:
        sys.exit(3)


if __name__ == "__main__":
    main()
