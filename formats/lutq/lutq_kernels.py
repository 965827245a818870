"""Has lutq's CUDA kernels multiply in programs that load layers themselves, as lutq_vllm.py does.

Layers of the kind lut are laid out as the kernels read them when they have been loaded, on the GPU that has them. The kernels
and how they are launched come from the program lutq, which compiles them for the shapes at hand when these are first met and keeps
them in the cache folder: $XDG_CACHE_HOME/lutq/torch, which may be deleted. It is the lutq that the environment's LUTQ names,
or that is on the PATH.

What multiplies more than 32 rows of activations is measured then, on the GPU, for each shape and some numbers of rows: kernels, or writing the weights as
numbers for PyTorch's product. What was found to be the fastest stays in the folder, and is the same in whatever program: one process of
a machine measures, and others take what it has found. LUTQ_MEASURE=0 has it be what is known of an H200. Results hang on what is chosen, by
rounding; GPUs that share a model need not choose alike, as each multiplies by weights of its own.
"""

import atexit
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

TILE, ATOM, UNIT = 16, 128, 256  # rows and columns that lie together; package repack of lutq has the layout
GROUPS = (32, 64, 128, 256)  # columns that a scale may have, if not all
AT_ONCE = 1 << 24  # weights that are laid out at a time
DEVICE = "cuda"  # that has kernels
TYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}
MEASURING = 240  # seconds, after which it has failed
LOG = logging.getLogger("vllm.lutq")  # where vLLM shows it


# ---- layout ----


def unpack(codes: Tensor, bits: int, k: int) -> Tensor:
    """Codes [n, k], a byte each, of rows that are little-endian bit streams."""
    if 8 % bits == 0:
        return torch.stack([codes >> bits * i & (1 << bits) - 1 for i in range(8 // bits)], dim=-1).flatten(1)[:, :k]
    words = F.pad(codes, (0, -codes.shape[1] % bits)).view(codes.shape[0], -1, bits).long()
    word = sum(words[..., i] << 8 * i for i in range(bits))
    return torch.stack([(word >> bits * i & (1 << bits) - 1).to(torch.uint8) for i in range(8)], dim=-1).flatten(1)[:, :k]


def lanes(c: Tensor, bits: int) -> Tensor:
    """The bytes [..., 8*bits] that a lane of a warp has of an atom, out of its 32 pairs of codes [..., 32, 2]."""
    low, high = c[..., 0], c[..., 1]
    if bits == 4:
        return low | high << 4
    if bits == 2:
        pair = low | high << 2
        return pair[..., 0::2] | pair[..., 1::2] << 4
    halves = (*c.shape[:-2], 2, 4, 4)  # halves of the atom, steps, registers
    if bits == 3:
        two, one = ((low & 3) | (high & 3) << 2).view(halves), (low >> 2 | high >> 2 << 1).view(halves)
        words = two[..., 0::2, :] | two[..., 1::2, :] << 4
        last = sum(one[..., s, :] << (4, 6, 2, 0)[s] for s in range(4))
        return torch.cat([words.flatten(-3), last.flatten(-2)], dim=-1)
    ten = (low.long() | high.long() << 5).view(*c.shape[:-2], 2, 16)
    words = []
    for j in range(5):
        word = ten[..., 3 * j] << 2 | ten[..., 3 * j + 1] << 12 | ten[..., 3 * j + 2] << 22 | ten[..., 15] >> 2 * j & 3
        words.append((word << 7 + 2 * j | word >> 25 - 2 * j) & 0xFFFFFFFF)  # turned around its end
    words = torch.stack(words, dim=-1).flatten(-2)
    return torch.stack([(words >> 8 * i & 255).to(torch.uint8) for i in range(4)], dim=-1).flatten(-2)


def tiles_of(codes: Tensor, bits: int, k: int) -> Tensor:
    """Codes [n, bytes] of rows of k columns as kernels read them: repack.CUDATiles.Codes."""
    parts, atoms = [], -(-k // UNIT) * UNIT // ATOM
    step = max(TILE, AT_ONCE // k // TILE * TILE)
    for first in range(0, codes.shape[0], step):
        c = unpack(codes[first : first + step], bits, k)
        c = F.pad(c, (0, atoms * ATOM - k, 0, -c.shape[0] % TILE))
        # Row g + 8·r and column 128·a + 32·s + 8·t + 4·z + 2·q + e are the code e of pair (s, z, q, r) of lane (g, t).
        c = c.view(-1, 2, 8, atoms, 4, 4, 2, 2, 2).permute(0, 3, 2, 5, 4, 6, 7, 1, 8).reshape(-1, atoms, 32, 32, 2)
        data = lanes(c, bits)  # of which a warp reads 16 bytes a lane at a time, and at the end 8
        parts.append(torch.cat([p.flatten(2) for p in data.split(16, dim=-1)], dim=-1).flatten())
    return torch.cat(parts)


def tile_scales_of(scales: Tensor, k: int, group: int) -> Tensor:
    """Scales [n, groups] as kernels read them: repack.CUDATiles.Scales."""
    if group in (-1, k):
        slots, per = 1, 1
    elif group == UNIT:
        slots, per = -(-k // UNIT), 1
    else:
        per = ATOM // group
        slots = -(-k // UNIT) * UNIT // ATOM * per
    s = scales.view(torch.uint8).view(*scales.shape, -1)
    s = F.pad(s, (0, 0, 0, slots - s.shape[1], 0, -s.shape[0] % TILE))
    return s.view(-1, 2, 8, slots // per, per, s.shape[-1]).permute(0, 3, 2, 4, 1, 5).flatten()


# ---- kernels ----


def cache(name: str) -> Path:
    """A folder for files of a name that nobody else may write to, made if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "lutq", "torch")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid == os.getuid() and not about.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder / name
    except OSError:
        pass
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / name


def libraries() -> list[str]:
    """Folders of PyTorch's NVRTC, with which lutq compiles, and of its cuBLAS, which it times."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return [str(f) for p in places for f in (p / "cu13" / "lib", p / "cuda_nvrtc" / "lib", p / "cublas" / "lib") if f.is_dir()]


def compiled(lutq: str, matrices: list[str], dtype: str, device: torch.device) -> Path:
    """The folder of kernels for matrices, which lutq writes where it is not there."""
    env = dict(os.environ)
    env["LUTQ_CUDA_PATH"] = os.pathsep.join(filter(None, [env.get("LUTQ_CUDA_PATH"), *libraries()]))
    measure = env.get("LUTQ_MEASURE") != "0"
    with open(lutq, "rb") as f:
        digest = hashlib.file_digest(f, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(f.read())
    gpu = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    for text in (gpu, dtype, env["LUTQ_CUDA_PATH"], str(measure), *matrices):
        digest.update(text.encode() + b"\n")
    folder = cache(digest.hexdigest()[:32])
    command = [lutq, "torch-kernels", str(folder), *matrices, "--type", dtype]
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process for each GPU wants the same
        if (folder / "lutq_torch.json").exists():
            return folder
        run = functools.partial(subprocess.run, env=env, capture_output=True, text=True)
        if measure:
            torch.cuda.empty_cache()  # lutq needs some of the GPU's memory
            index = torch.cuda.current_device() if device.index is None else device.index
            try:
                done = run([*command, "--measure", str(index)], timeout=MEASURING)
                why = done.stderr.strip() or done.returncode
            except subprocess.TimeoutExpired as e:
                done, why = None, e
            if done and not done.returncode:
                return folder
            LOG.warning("lutq: what multiplies is guessed, as it cannot be measured: %s", why)
        done = run(command)
        if done.returncode:
            raise RuntimeError(f"{lutq}: {done.stderr.strip() or done.returncode}")
    return folder


def module(folder: Path):
    """The module lutq_torch, of the first folder: it defines an operation, which can be done once."""
    if "lutq_torch" not in sys.modules:
        spec = importlib.util.spec_from_file_location("lutq_torch", folder / "lutq_torch.py")
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        sys.modules["lutq_torch"] = found
    return sys.modules["lutq_torch"]


class Kernels:
    """Kernels for the matrices that are wanted."""

    def __init__(self):
        self.wanted: dict[str, dict[str, None]] = {}  # by type of activations, in order
        self.ops: dict[tuple[str, str], object] = {}  # by type and matrix; None where there is no kernel
        self.said: set[str] = set()

    def say(self, text: str):
        if text not in self.said:
            self.said.add(text)
            LOG.warning("lutq: %s", text)

    def want(self, matrix: str, dtype: str):
        self.wanted.setdefault(dtype, {})[matrix] = None

    def find(self, matrix: str, dtype: str, device: torch.device):
        """What multiplies by a matrix, or None. Of all that are wanted kernels are asked for at once."""
        if (dtype, matrix) not in self.ops:
            self.want(matrix, dtype)
            matrices = sorted(m for m in self.wanted[dtype] if (dtype, m) not in self.ops)
            self.ops |= dict.fromkeys((dtype, m) for m in matrices)
            lutq = os.environ.get("LUTQ") or shutil.which("lutq")
            if not lutq:
                self.say("layers are unpacked whenever they are multiplied by, which is slow: for kernels put the program lutq on the PATH or its path into LUTQ (`go install ./cmd/lutq` builds it)")
                return None
            try:
                folder = compiled(lutq, matrices, dtype, device)
                op = module(folder).Op(folder)
            except (OSError, RuntimeError, ValueError) as e:
                self.say(f"layers are unpacked whenever they are multiplied by, which is slow, for want of kernels: {e}")
                return None
            for m in matrices:
                if why := op.plan["layers"][m].get("why"):
                    self.say(f"matrices {m} are unpacked whenever they are multiplied by, which is slow: {why}")
                else:
                    self.ops[dtype, m] = op
        return self.ops[dtype, matrix]


KERNELS = Kernels()


# ---- layers ----


class Matrix(Protocol):
    """A matrix of the kind lut with its numbers, or a part of a fused one."""

    rows: int
    k: int
    bits: int
    group: int  # columns to a scale, or -1
    scale_type: str
    codes: Tensor
    scales: Tensor
    codebook: Tensor


def form(m: Matrix) -> tuple:
    """What joined matrices have in common, beside their tables."""
    return m.k, m.bits, m.group if 0 < m.group < m.k else -1, m.scale_type


def named(rows: int, k: int, bits: int, group: int, scale_type: str) -> str:
    """A matrix as `lutq torch-kernels` reads it."""
    return f"{rows}x{k}:{bits}:{group if group > 0 else 'row'}:{scale_type}"


def joined(parts: list[Matrix], alike: Callable[[Matrix, Matrix], bool]) -> list[list[Matrix]]:
    """Neighbours that may be one matrix."""
    all: list[list[Matrix]] = []
    for m in parts:
        if all and form(all[-1][-1]) == form(m) and all[-1][-1].rows % TILE == 0 and alike(all[-1][-1], m):
            all[-1].append(m)
        else:
            all.append([m])
    return all


def want(parts: list[Matrix], dtype: torch.dtype):
    """Tells of a layer's matrices before they are loaded. Neighbours become one if their tables turn out to be equal."""
    if dtype in TYPES and torch.cuda.is_available():
        for some in joined(parts, lambda a, b: True) + [[m] for m in parts]:
            KERNELS.want(named(sum(m.rows for m in some), *form(some[0])), TYPES[dtype])


# What multiplies by tiles, by their address: a number of a layer in a graph would make every layer's graph another, to be compiled anew.
HELD: dict[int, list[tuple]] = {}


def pack(parts: list[Matrix], dtype: torch.dtype) -> tuple[Tensor, Tensor, list[int]] | None:
    """A layer's matrices as kernels read them, one after the other: tiles, their scales, and the rows of what is multiplied by. None
    where there are no kernels for all of them. The tiles must not be moved."""
    device = parts[0].codes.device
    if dtype not in TYPES or device.type != DEVICE or any(form(m)[2] not in (-1, *GROUPS) for m in parts):
        return None
    ops, tiles, scales, held = [], [], [], []
    together = joined(parts, lambda a, b: torch.equal(a.codebook, b.codebook))
    for some in together:
        name = named(sum(m.rows for m in some), *form(some[0]))
        if (op := KERNELS.find(name, TYPES[dtype], device)) is None:
            return None
        ops.append((op, name))
    for some, (op, name) in zip(together, ops):
        k, bits, group, _ = form(some[0])
        codes = torch.cat([tiles_of(m.codes, bits, k) for m in some])
        numbers = op.held(name, torch.cat([tile_scales_of(m.scales, k, group) for m in some]))
        held.append((sys.modules["lutq_torch"].Layer(op, name, some[0].codebook.float()), codes.numel(), numbers.numel()))
        tiles.append(codes)
        scales.append(numbers)
    all_tiles, all_scales = torch.cat(tiles), torch.cat(scales)
    HELD[all_tiles.data_ptr()] = held
    for (layer, *_), numbers in zip(held, scales):
        product = layer.on(dtype, device, numbers)  # before there are graphs
        product.op.flags(device, torch.cuda.current_stream(device).cuda_stream)
    return all_tiles, all_scales, [sum(m.rows for m in some) for some in together]


def multiply(x: Tensor, tiles: Tensor, scales: Tensor, bias: Tensor | None, rows: list[int]) -> list[Tensor]:
    """x times each matrix of a layer, which has so many rows."""
    held = HELD.get(tiles.data_ptr())
    if held is None:
        raise RuntimeError("lutq: a layer's tiles were moved after it was loaded: kernels find them by their address")
    x, prepared = x.contiguous(), {}
    if x.data_ptr() % 16:
        x = x.clone()
    biases = [None] * len(rows) if bias is None else bias.split(rows)
    ys, codes_at, scales_at = [], 0, 0
    for (layer, codes, numbers), b in zip(held, biases):
        ys.append(layer(x, tiles[codes_at : codes_at + codes], scales[scales_at : scales_at + numbers], b, prepared))
        codes_at, scales_at = codes_at + codes, scales_at + numbers
    return ys


def nowhere(x: Tensor, tiles: Tensor, scales: Tensor, bias: Tensor | None, rows: list[int]) -> list[Tensor]:
    return [x.new_empty(*x.shape[:-1], n) for n in rows]


if not hasattr(torch.ops.lutq, "multiply_tiles"):  # without what torch.library.custom_op does at each call
    LIBRARY = torch.library.Library("lutq", "FRAGMENT")
    LIBRARY.define("multiply_tiles(Tensor x, Tensor tiles, Tensor scales, Tensor? bias, int[] rows) -> Tensor[]")
    LIBRARY.impl("multiply_tiles", multiply, "CUDA")
    torch.library.register_fake("lutq::multiply_tiles", nowhere, lib=LIBRARY)
