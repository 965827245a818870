#!/usr/bin/env python3
"""Other programs' quantizers and lutq's on one model: fitted to the same tokens, measured by one program, by the bits that they store.

    scripts/equal_bytes.py SIDE... MODEL WORK --lutq ./lutq --calib TEXT --calib TEXT [--node DIR]
    scripts/equal_bytes.py measure MODEL WORK --lutq ./lutq --text TEXT --text TEXT --csv quantize/rivals.csv

A SIDE makes folders in WORK, those that are not there yet, and `measure` runs `lutq eval-ppl --against MODEL` on all of them in
float32 and puts their rows into the CSV file. MODEL is a Llama. Every side leaves the embedding, the norms and the head as they
are, so that bits are those of the linear layers, with all that is stored for them.

    llamacpp    llama.cpp's own llama_model_quantize, of the library that node-llama-cpp carries (--node DIR has node_modules), with
                an importance matrix of the calibration windows: the mean square of what each layer reads. Rows that are no
                multiple of 256 fall back to larger types there. So each file type is made twice: as it comes, and "joined", from a
                file in which as many rows lie end to end as make whole blocks. No llama.cpp runs the latter on such a model: it
                says what the types do where rows are long enough.
    gptqmodel   gptqmodel's GPTQ, on the CPU or a GPU (--device)
    autoround   auto-round's sign descent as published, --rounds 200, on the CPU or a GPU
    bnb         bitsandbytes' NF4 and FP4, with scales of 32 bits and with scales that are quantized again; no text
    flute       FLUTE's learned scales, which `quantize --learn-mode flute` learns as its code does
    lutq        lutq's tables and trellis codes, fitted; --preset best where the binary has it

Python packages: the interop set for llamacpp and bnb, requirements-rivals.txt for gptqmodel and autoround, numpy and tokenizers for
the rest. exllamav3 needs a GPU: scripts/exl3_check.py makes its folders.
"""

import argparse
import contextlib
import csv
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from compare_gptq import windows

# Modules of a Llama as a GGUF calls them and as transformers does.
MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
# llama_ftype: what llama-quantize calls a mix of types, and its number.
FILE_TYPES = {
    "IQ2_XS": 20, "IQ2_M": 29, "Q2_K": 10, "IQ3_XXS": 23, "IQ3_S": 26, "Q3_K_S": 11, "Q3_K_M": 12, "IQ4_XS": 30, "Q4_K_S": 14, "Q4_K_M": 15,
}  # fmt: skip
COLUMNS = ["model", "text", "series", "recipe", "version", "bits", "kl", "kl_low", "kl_high", "ln_ratio", "ln_low", "ln_high", "top1", "seconds"]


class Sides:
    """Makes the folders of all sides."""

    def __init__(self, a: argparse.Namespace):
        self.a, self.model, self.work = a, a.model, a.work
        self.config = json.loads((a.model / "config.json").read_text())

    def calib(self) -> list[list[int]]:
        return windows(self.model, self.a.calib, self.a.calib_windows, self.a.calib_ctx)

    def missing(self, name: str) -> bool:
        return not (self.work / name / "rival.json").exists() and (not self.a.only or any(o in name for o in self.a.only))

    def finish(self, name: str, series: str, recipe: str, version: str, bits: float, seconds: float) -> None:
        note = {"series": series, "recipe": recipe, "version": version, "bits": round(bits, 3), "seconds": round(seconds, 1)}
        (self.work / name / "rival.json").write_text(json.dumps(note) + "\n")
        print(name, note, file=sys.stderr, flush=True)

    def dense(self, name: str, weights: dict[str, np.ndarray]) -> None:
        """Writes MODEL with other weights, in float32."""
        import torch
        from safetensors.torch import save_file

        out = self.work / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for f in self.model.iterdir():
            if f.is_file() and f.suffix not in (".safetensors", ".md") and not f.name.endswith(".index.json"):
                shutil.copyfile(f, out / f.name)
        tensors = originals(self.model)
        for k, w in weights.items():
            if tensors[k].shape != w.shape:
                sys.exit(f"equal_bytes: {k} is {w.shape}, and {tuple(tensors[k].shape)} in the model")
            tensors[k] = torch.from_numpy(np.ascontiguousarray(w, np.float32))
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    # llama.cpp

    def llamacpp(self) -> None:
        import gguf

        libs = self.a.node / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
        version = json.loads((self.a.node / "node_modules/node-llama-cpp/package.json").read_text())["version"]
        release = json.loads((self.a.node / "node_modules/node-llama-cpp/llama/binariesGithubRelease.json").read_text())["release"]
        library, quantize = llama_library(libs)
        source = self.work / "llamacpp-source"
        if not source.exists():
            self.lutq("export", self.model, source, "--to", "gguf", "--kept", "f32")
        joined = self.work / "llamacpp-joined.gguf"
        if not joined.exists():
            join_rows(source / "model.gguf", joined)
        matrix_file = self.work / "importance.npz"
        if not matrix_file.exists():
            np.savez(matrix_file, **importance(self.model, self.calib(), self.a.importance))
        matrix = dict(np.load(matrix_file))
        del library
        for ftype, number in FILE_TYPES.items():
            for form, file in (("", source / "model.gguf"), (" joined", joined)):
                name = f"llamacpp-{ftype}{form.replace(' ', '-')}"
                if not self.missing(name):
                    continue
                out = self.work / f"{name}.gguf"
                begin = time.time()
                quantize(file, out, number, matrix)
                took = time.time() - begin
                weights, stored, types = {}, 0, {}
                for t in gguf.GGUFReader(out).tensors:
                    if not t.name.startswith("blk.") or t.name.split(".")[2] not in MODULES:
                        continue
                    _, block, module, _ = t.name.split(".")
                    k = f"model.layers.{block}.{MODULES[module]}.weight"
                    weights[k] = self.unpermute(module, gguf.quants.dequantize(t.data, t.tensor_type))
                    stored += int(t.n_bytes)
                    types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + int(t.n_elements)
                count = sum(types.values())
                mix = " ".join(f"{n} {100 * v / count:.0f}%" for n, v in sorted(types.items(), key=lambda i: -i[1]))
                self.dense(name, weights)
                out.unlink()
                self.finish(name, f"llama.cpp{form}", f"{ftype} imatrix ({mix})", f"node-llama-cpp {version}, llama.cpp {release}", 8 * stored / count, took)

    def unpermute(self, module: str, w: np.ndarray) -> np.ndarray:
        """The rows of a GGUF's tensor, which may lie end to end, as the two halves of rotary pairs."""
        n = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(module)
        columns = self.config["intermediate_size"] if module == "ffn_down" else self.config["hidden_size"]
        if module == "attn_output":
            columns = self.config["num_attention_heads"] * head_dim(self.config)
        w = w.reshape(-1, columns)
        if n is None:
            return w
        return w.reshape(self.config[n], -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)

    # gptqmodel and auto-round

    def gptqmodel(self) -> None:
        import importlib.metadata

        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "" if self.a.device == "cpu" else "0")
        processors = os.cpu_count()
        os.cpu_count = lambda: max(processors, 4)  # with fewer its thread pools do not fit each other
        model, text = str(self.model.resolve()), self.calib()
        for bits, group in ((4, 64), (3, 64), (2, 64), (4, 128), (3, 128), (2, 32)):
            name = f"gptqmodel-{bits}b-g{group}"
            if not self.missing(name):
                continue
            out = (self.work / name).resolve()
            shutil.rmtree(out, ignore_errors=True)
            # It draws its progress on stdout, and leaves a folder of logs where it runs.
            with contextlib.redirect_stdout(sys.stderr), contextlib.chdir(self.work):
                import torch
                from gptqmodel import GPTQModel, QuantizeConfig

                config = QuantizeConfig(bits=bits, group_size=group, sym=True, desc_act=True, device=self.a.device, offload_to_disk=False)
                m = GPTQModel.load(model, config, dtype=torch.float32)
                begin = time.time()
                m.quantize([{"input_ids": w, "attention_mask": [1] * len(w)} for w in text], batch_size=1)
                took = time.time() - begin
                m.save(str(out))
                del m
            self.finish(name, "gptqmodel", f"{bits} bits, group {group}, desc_act", f"gptqmodel {importlib.metadata.version('gptqmodel')}", stored_bits(out), took)

    def autoround(self) -> None:
        import importlib.metadata

        import torch
        from auto_round import AutoRound
        from transformers import AutoModelForCausalLM, AutoTokenizer

        text = [torch.tensor([w]) for w in self.calib()]
        for bits, group in ((4, 128), (3, 128), (2, 64), (2, 32), (3, 64), (4, 64)):
            name = f"autoround-{bits}b-g{group}"
            if not self.missing(name):
                continue
            out = self.work / name
            shutil.rmtree(out, ignore_errors=True)
            model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
            begin = time.time()
            with contextlib.redirect_stdout(sys.stderr):
                rounder = AutoRound(
                    model, AutoTokenizer.from_pretrained(self.model), bits=bits, group_size=group, sym=True, iters=self.a.rounds,
                    nsamples=len(text), seqlen=self.a.calib_ctx, batch_size=8, dataset=text, device_map=self.a.device,
                    enable_torch_compile=False, enable_alg_ext=bits == 2, seed=42,
                )  # fmt: skip
                rounder.quantize()
                took = time.time() - begin
                rounder.save_quantized(str(out), format="auto_gptq", inplace=True)
            version = f"auto-round {importlib.metadata.version('auto-round')}"
            self.finish(name, "auto-round", f"{bits} bits, group {group}, {self.a.rounds} iterations of 8 windows", version, stored_bits(out), took)

    # bitsandbytes

    def bnb(self) -> None:
        import bitsandbytes
        import bitsandbytes.functional as bnb

        for kind in ("nf4", "fp4"):
            for nested in (False, True):
                name = f"bnb-{kind}{'-nested' if nested else ''}"
                if not self.missing(name):
                    continue
                weights, stored, count, begin = {}, 0, 0, time.time()
                for k, w in linears(self.model).items():
                    q, state = bnb.quantize_4bit(w.float(), blocksize=64, compress_statistics=nested, quant_type=kind)
                    weights[k] = bnb.dequantize_4bit(q, state).float().reshape(w.shape).numpy()
                    parts = [q, state.absmax, *([state.state2.absmax, state.offset] if nested else [])]
                    stored += sum(p.numel() * p.element_size() for p in parts)
                    count += w.numel()
                self.dense(name, weights)
                recipe = f"{kind.upper()} in blocks of 64" + (", scales quantized again" if nested else "")
                self.finish(name, "bitsandbytes", recipe, f"bitsandbytes {bitsandbytes.__version__}", 8 * stored / count, time.time() - begin)

    # lutq

    def lutq(self, *args) -> str:
        return subprocess.run([self.a.lutq, *map(str, args), "--quiet"], check=True, stdout=subprocess.PIPE, text=True).stdout

    def quantize(self, name: str, series: str, *flags: str) -> None:
        """Runs `lutq quantize` on the calibration texts."""
        if not self.missing(name):
            return
        fit = ["--calib-windows", self.a.calib_windows, "--calib-ctx", self.a.calib_ctx, "--device", self.a.device]
        for t in self.a.calib:
            fit += ["--calib", t]
        begin = time.time()
        report = json.loads(self.lutq("quantize", self.model, self.work / name, "--force", "--json", *flags, *fit))
        took = time.time() - begin
        self.finish(name, series, " ".join(flags), f"lutq {self.a.commit}".strip(), report["linear_bits_per_weight"], took)

    def flute(self) -> None:
        for bits in ("4", "3", "2"):
            self.quantize(f"flute-{bits}b", "FLUTE", "--bits", bits, "--group", "64", "--method", "nfl", "--learn-mode", "flute")

    def lutq_own(self) -> None:
        for bits in ("2", "2.5", "3", "3.5", "4", "4.5", "5"):
            self.quantize(f"lutq-trellis-{bits}", "lutq trellis", "--bits", bits, "--codebook", "trellis", "--method", "gptq")
        for bits in ("3", "4"):
            self.quantize(f"lutq-js-{bits}", "lutq tables", "--bits", bits, "--codebook", "js", "--method", "gptq")
        for bits in self.a.best:
            self.quantize(f"lutq-best-{bits}", "lutq best", "--bits", bits, "--preset", "best")


def head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def originals(model: Path) -> dict:
    from safetensors import safe_open

    out = {}
    for shard in sorted(model.glob("*.safetensors")):
        with safe_open(shard, "pt") as f:
            out |= {name: f.get_tensor(name) for name in f.keys()}
    return out


def linears(model: Path) -> dict:
    return {k: w for k, w in originals(model).items() if k.endswith("_proj.weight")}


def stored_bits(folder: Path) -> float:
    """Bits a weight of a GPTQ folder: codes, zero points and scales. The order of columns, which takes a byte or so for each
    column of a matrix, is left out to the rival's favour."""
    from safetensors import safe_open

    stored = weights = 0
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, "pt") as f:
            for name in f.keys():
                kind = name.rsplit(".", 1)[-1]
                if kind in ("qweight", "qzeros", "scales"):
                    t = f.get_tensor(name)
                    stored += t.numel() * t.element_size()
                    if kind == "scales":
                        columns = len(f.get_tensor(name.removesuffix("scales") + "g_idx"))
                        weights += columns * t.shape[1]
    return 8 * stored / weights


def importance(model: Path, text: list[list[int]], dtype: str) -> dict[str, np.ndarray]:
    """The mean square of each layer's inputs, by the names of a GGUF's tensors, as llama-imatrix has it."""
    import torch
    from transformers import AutoModelForCausalLM

    names = {theirs: ours for ours, theirs in MODULES.items()}
    m = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    sums = {}
    for name, module in m.named_modules():
        if isinstance(module, torch.nn.Linear) and name.startswith("model.layers."):
            _, _, block, rest = name.split(".", 3)

            def add(_module, inputs, name=f"blk.{block}.{names[rest]}.weight"):
                x = inputs[0].reshape(-1, inputs[0].shape[-1]).float()
                sums[name] = sums.get(name, 0) + (x * x).sum(0).double()

            module.register_forward_pre_hook(add)
    with torch.no_grad():
        for w in text:
            m.model(torch.tensor([w]))
    return {name: (s / sum(map(len, text))).float().numpy() for name, s in sums.items()}


def join_rows(source: Path, out: Path) -> None:
    """Writes a GGUF whose linear layers have rows of whole blocks of 256: as many of the model's, end to end, as it takes."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for f in reader.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture":
            continue
        kind = f.types[0]
        writer.add_key_value(f.name, f.contents(), kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        w = np.array(t.data)
        if t.name.startswith("blk.") and t.name.split(".")[2] in MODULES:
            times = 256 // np.gcd(256, w.shape[1])
            w = w.reshape(w.shape[0] // times, -1)
        writer.add_tensor(t.name, w, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class ImportanceOf(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class QuantizeParams(ctypes.Structure):
    """llama_model_quantize_params of llama.cpp 0.5."""

    _fields_ = [
        ("nthread", ctypes.c_int32), ("ftype", ctypes.c_int), ("output_tensor_type", ctypes.c_int), ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool), ("quantize_output_tensor", ctypes.c_bool), ("only_copy", ctypes.c_bool), ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool), ("dry_run", ctypes.c_bool), ("imatrix", ctypes.POINTER(ImportanceOf)), ("kv_overrides", ctypes.c_void_p),
        ("tt_overrides", ctypes.c_void_p), ("prune_layers", ctypes.c_void_p),
    ]  # fmt: skip


def llama_library(libs: Path):
    """Returns llama.cpp's library and its llama-quantize as a function."""
    for name in ("libggml-base.so", *(p.name for p in libs.glob("libggml.v*.so"))):
        ctypes.CDLL(str(libs / name), mode=ctypes.RTLD_GLOBAL)
    backends = ctypes.CDLL(str(next(libs.glob("libggml.v*.so"))))
    backends.ggml_backend_load_all_from_path(str(libs).encode())
    lib = ctypes.CDLL(str(next(libs.glob("libllama.v*.so"))))
    lib.llama_backend_init()
    lib.llama_model_quantize_default_params.restype = QuantizeParams
    lib.llama_model_quantize.restype = ctypes.c_uint32
    lib.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(QuantizeParams)]
    f16 = 1

    def quantize(source: Path, out: Path, ftype: int, matrix: dict[str, np.ndarray]) -> None:
        import gguf

        p = lib.llama_model_quantize_default_params()
        if (p.nthread, p.quantize_output_tensor, p.only_copy, p.pure, bool(p.imatrix)) != (0, True, False, False, False):
            sys.exit("equal_bytes: llama_model_quantize_params lie otherwise in this llama.cpp")
        p.ftype, p.output_tensor_type, p.token_embedding_type, p.nthread = ftype, f16, f16, 2
        # Where rows lie end to end so does what their columns matter.
        long = {t.name: int(t.shape[0]) for t in gguf.GGUFReader(source).tensors}
        whole = {k: np.ascontiguousarray(np.tile(v, long[k] // len(v)), np.float32) for k, v in matrix.items()}
        entries = [ImportanceOf(k.encode(), v.ctypes.data, len(v)) for k, v in whole.items()]
        array = (ImportanceOf * (len(entries) + 1))(*entries, ImportanceOf(None, None, 0))
        p.imatrix = array
        if code := lib.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(p)):
            sys.exit(f"equal_bytes: llama_model_quantize ended with {code}")

    return lib, quantize


def measure(a: argparse.Namespace) -> None:
    """Runs eval-ppl on what WORK has and was not measured yet, and puts it into the CSV file in place of rows of the same recipes."""
    folders = [p.parent for p in a.work.glob("*/rival.json")]
    notes = {p.name: json.loads((p / "rival.json").read_text()) for p in folders}
    rows = {}

    def put(r: dict) -> None:
        rows[r["model"], r["text"], r["series"], r["recipe"]] = r

    if a.csv.exists():
        with a.csv.open() as f:
            for r in csv.DictReader(f):
                put(r)
    for text in a.text:
        file = a.work / f"measured-{text.stem}-{a.windows}x{a.ctx}.json"
        done = json.loads(file.read_text()) if file.exists() else {}
        if new := sorted(p for p in folders if p.name not in done):
            args = ["--against", a.model, "--text", text, "--windows", a.windows, "--ctx", a.ctx, "--device", a.device, "--json", "--quiet"]
            args += ["--dtype", "f32"] if a.device != "cpu" else []
            out = json.loads(subprocess.run([a.lutq, "eval-ppl", *new, *map(str, args)], check=True, stdout=subprocess.PIPE).stdout)
            done |= {Path(r["model"]).name: r for r in out.get("results", [out])}
            file.write_text(json.dumps(done, indent=1))
        for name, n in notes.items():
            r = done[name]
            values = [r["kl_mean"], *r["kl_mean_ci"], r["ln_ratio"], *r["ln_ratio_ci"], r["top1"]]
            put(dict(zip(COLUMNS, [a.model.name, text.stem, n["series"], n["recipe"], n["version"], n["bits"], *(f"{v:.5f}" for v in values), n["seconds"]])))
    with a.csv.open("w", newline="") as f:
        w = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        w.writeheader()
        w.writerows(sorted(rows.values(), key=lambda r: (r["model"], r["text"], r["series"], float(r["bits"]), r["recipe"])))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("side", choices=["llamacpp", "gptqmodel", "autoround", "bnb", "flute", "lutq", "measure"], nargs="+")
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", required=True)
    p.add_argument("--commit", default="", help="of lutq, for the table")
    p.add_argument("--node", type=Path, help="folder with node_modules/node-llama-cpp")
    p.add_argument("--calib", type=Path, action="append", default=[])
    p.add_argument("--calib-windows", type=int, default=256, help="of the calibration texts together (256)")
    p.add_argument("--calib-ctx", type=int, default=512)
    p.add_argument("--importance", default="float32", help="what the importance matrix is computed in; bfloat16 is faster on processors that multiply it")
    p.add_argument("--rounds", type=int, default=200, help="iterations of auto-round for each block (200)")
    p.add_argument("--best", action="append", default=[], metavar="BITS", help="lutq: --preset best at BITS; repeatable")
    p.add_argument("--only", action="append", default=[], metavar="PART", help="of the folders, those whose name has PART; repeatable")
    p.add_argument("--text", type=Path, action="append", default=[])
    p.add_argument("--windows", type=int, default=24, help="of each text (24)")
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--device", default="cpu")
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    sides = Sides(a)
    for side in a.side:
        if side == "measure":
            measure(a)
        else:
            getattr(sides, {"lutq": "lutq_own"}.get(side, side))()


if __name__ == "__main__":
    main()
