"""Multiplies by a model's quantized layers with lutq's CUDA kernels, in PyTorch.

`lutq repack MODEL FOLDER --target torch` writes this file into FOLDER, beside the layers as the kernels read them, the
kernels, and lutq_torch.json, which says how they are launched. Of MODEL opened in transformers,

    import sys; sys.path.insert(0, "FOLDER"); import lutq_torch
    lutq_torch.use(model)

replaces the layers, and so does opening it with LUTQ_TORCH=FOLDER in the environment. Needs PyTorch and
safetensors, and of NVIDIA's software the driver.

The operation torch.ops.lutq.linear launches one kernel for up to 16 rows of activations. For more than MANY it
writes the weights as numbers to memory of PyTorch's, and PyTorch multiplies. It waits for nothing and
takes memory from PyTorch alone, so CUDA graphs can hold it; the first call loads the kernels, which a capture must
not do.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

VERSION = 1  # of lutq_torch.json
ROWS = 16  # of a launch
MANY = 128  # rows beyond which unpacking is faster than ROWS at a time
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
CODES, SCALES, X, Y, BIAS = 0, 1, 6, 7, 8  # addresses in a kernel's argument, of 8 bytes each
MAX_SHARED, PROGRAMMATIC = 8, 6  # of CUfunction_attribute and CUlaunchAttributeID


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_ulonglong * 8)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


class Driver:
    """The functions of libcuda."""

    def __init__(self, library=None):
        self.library = library or ctypes.CDLL("libcuda.so.1")
        self.launch = self.library.cuLaunchKernelEx
        self.launch.argtypes = [ctypes.c_void_p] * 4

    def check(self, result: int, what: str):
        if result:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(result, ctypes.byref(text))
            raise RuntimeError(f"{what}: {(text.value or b'unknown error').decode()} ({result})")

    def function(self, path: Path, name: str, shared: int) -> ctypes.c_void_p:
        """Loads a kernel into the current context, and lets it have so much shared memory."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        image = path.read_bytes() + b"\0"  # with which PTX ends
        self.check(self.library.cuModuleLoadData(ctypes.byref(module), image), f"{path}: loading it")
        self.check(self.library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"{path}: {name}")
        self.check(self.library.cuFuncSetAttribute(function, MAX_SHARED, ctypes.c_int(shared)), f"{path}: {shared} bytes of shared memory")
        return function


class Launch:
    """A kernel's launch by one layer, but for the addresses."""

    def __init__(self, plan: dict, function: ctypes.c_void_p, table: bytes):
        data = bytes.fromhex(plan["arguments"]) + table
        data += bytes(-len(data) % 8)
        self.function, self.name = function, plan["kernel"]
        self.argument = (ctypes.c_ulonglong * (len(data) // 8)).from_buffer_copy(data)
        self.arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.argument))
        self.attribute = Attribute(PROGRAMMATIC, 0, (1,))
        self.config = Config(
            (plan["grid"], 1, 1), (plan["block"], 1, 1), plan["shared"], None, ctypes.pointer(self.attribute), int(plan.get("programmatic", False))
        )
        self.pointers = ctypes.addressof(self.config), ctypes.addressof(self.arguments)

    def __call__(self, driver: Driver, stream: int, codes: int, scales: int, x: int, y: int, bias: int):
        a = self.argument
        a[CODES], a[SCALES], a[X], a[Y], a[BIAS] = codes, scales, x, y, bias
        self.config.stream = stream
        result = driver.launch(self.pointers[0], self.function, self.pointers[1], None)
        if result:
            driver.check(result, self.name)


class Layer:
    """How a layer is multiplied by: its launches by type of activations and device, made when they are first needed."""

    def __init__(self, op: "Op", name: str, codebook: Tensor):
        self.op, self.name, self.codebook = op, name, codebook.cpu()
        self.products = {TYPES[p["type"]]: p for p in (op.plan["products"][i] for i in op.plan["layers"][name]["products"])}
        self.n, self.k = (next(iter(self.products.values()))[i] for i in "nk")
        self.launches: dict[tuple, tuple[list[Launch], Launch]] = {}

    def table(self, dtype: torch.dtype) -> bytes:
        """The table in the kernel's argument: numbers of a type, in 32 bits each."""
        values = self.codebook.to(dtype)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{self.name}: the table does not fit in {dtype}")
        return b"".join((v & 0xFFFF).to_bytes(4, "little") for v in values.view(torch.int16).tolist())

    def on(self, dtype: torch.dtype, device: torch.device) -> tuple[list[Launch], Launch]:
        key = dtype, device
        found = self.launches.get(key)
        if found is None:
            product = self.products.get(dtype)
            if product is None:
                raise TypeError(f"{self.name}: activations of {dtype}: the kernels are for float16 and bfloat16")
            table = self.table(dtype)
            functions = self.op.functions(device)
            made = [Launch(p, functions(p["kernel"]), table) for p in [*product["launches"], product["unpack"]]]
            found = self.launches[key] = made[:-1], made[-1]
        return found

    def __call__(self, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.n)
        m = y.numel() // self.n
        if m == 0:
            return y
        if x.data_ptr() % 16:
            x = x.clone()
        launches, unpack = self.on(x.dtype, x.device)
        driver, stream = self.op.driver, torch.cuda.current_stream(x.device).cuda_stream
        at = codes.data_ptr(), scales.data_ptr()
        if m > MANY:
            w = x.new_empty(self.n, self.k)
            unpack(driver, stream, *at, 0, w.data_ptr(), 0)
            return F.linear(x, w, bias)
        from_, to, by = x.data_ptr(), y.data_ptr(), 0 if bias is None else bias.data_ptr()
        for first in range(0, m, ROWS):
            rows = min(ROWS, m - first)
            launches[rows - 1](driver, stream, *at, from_ + 2 * first * self.k, to + 2 * first * self.n, by)
        return y


class Op:
    """A folder of layers and kernels."""

    def __init__(self, folder: str | Path, driver: Driver | None = None):
        self.folder = Path(folder)
        self.plan = json.loads((self.folder / "lutq_torch.json").read_text(encoding="utf-8"))
        if self.plan.get("version") != VERSION:
            raise ValueError(f"{folder}: lutq_torch.json has version {self.plan.get('version')!r}, and lutq_torch.py knows {VERSION}: repack again")
        self._driver = driver
        self._functions: dict[tuple, ctypes.c_void_p] = {}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        return self._driver

    def functions(self, device: torch.device):
        """Returns what finds a device's kernels by name, and loads them when they are first needed."""

        def function(name: str) -> ctypes.c_void_p:
            key = name, device
            if key not in self._functions:
                kernel = self.plan["kernels"][name]
                with torch.cuda.device(device):
                    torch.cuda.current_stream()  # which makes the context
                    path = self.folder / kernel["file"]
                    self._functions[key] = self.driver.function(path, kernel["function"], self.plan["gpu"]["shared_bytes"])
            return self._functions[key]

        return function

    def held(self, name: str, scales: Tensor) -> Tensor:
        """Scales as the kernels read them: of a byte some are held in two."""
        values = self.plan["products"][self.plan["layers"][name]["products"][0]].get("scales")
        if not values:
            return scales
        table = torch.tensor([v - (v >> 15 << 16) for v in values], dtype=torch.int16, device=scales.device)
        return table[scales.int()].view(torch.uint8)


# What torch.ops.lutq.linear's last argument counts. It stays, as graphs may hold it.
LAYERS: list[Layer] = []


def linear(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, layer: int) -> Tensor:
    if x.get_device() != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            return LAYERS[layer](x, codes, scales, bias)
    return LAYERS[layer](x, codes, scales, bias)


def elsewhere(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, layer: int) -> Tensor:
    raise RuntimeError(f"{LAYERS[layer].name}: the kernels are for an NVIDIA GPU: move the model there, or open it without lutq_torch.py")


LIBRARY = torch.library.Library("lutq", "FRAGMENT")
LIBRARY.define("linear(Tensor x, Tensor codes, Tensor scales, Tensor? bias, int layer) -> Tensor")
LIBRARY.impl("linear", linear, "CUDA")
LIBRARY.impl("linear", elsewhere, "CPU")
torch.library.register_fake("lutq::linear", lambda x, c, s, b, layer: x.new_empty(*x.shape[:-1], LAYERS[layer].n), lib=LIBRARY)


class Linear(nn.Module):
    """Stands for nn.Linear."""

    def __init__(self, layer: Layer, tiles: Tensor, scales: Tensor, bias: Tensor | None):
        super().__init__()
        self.in_features, self.out_features, self.layer = layer.k, layer.n, len(LAYERS)
        LAYERS.append(layer)
        self.register_buffer("tiles", tiles)
        self.register_buffer("tile_scales", scales)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.lutq.linear(x, self.tiles, self.tile_scales, self.bias, self.layer)

    def extra_repr(self) -> str:
        return f"{self.out_features}x{self.in_features}, tiles"


def use(model: nn.Module, folder: str | Path = Path(__file__).parent) -> list[str]:
    """Replaces a model's quantized layers, and returns the names of those that are unpacked as before."""
    op = Op(folder)
    digest = getattr(getattr(model.config, "quantization_config", None), "sha256", None)
    if digest != op.plan["sha256"]:
        raise ValueError(f"{folder}: made of another model: lutq repack MODEL FOLDER --target torch makes it of this one")
    where = {}
    for shard in sorted(op.folder.glob("*.safetensors")):
        with safe_open(shard, "pt") as f:
            where |= dict.fromkeys(f.keys(), shard)
    left, files = [], {}
    for path, module in list(model.named_modules()):
        if not hasattr(module, "scale_type"):
            continue
        name = module.name
        if type(module).__name__ != "LutqLinear" or not op.plan["layers"].get(name, {}).get("products"):
            left.append(name)
            continue

        def read(part: str) -> Tensor:
            shard = where[f"{name}.{part}"]
            if shard not in files:
                files[shard] = safe_open(shard, "pt")
            return files[shard].get_tensor(f"{name}.{part}")

        device = module.codes.device
        scales = op.held(name, read("tile_scales").to(device))
        new = Linear(Layer(op, name, read("codebook")), read("tiles").to(device), scales, module.bias)
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, new)
    if left:
        print(f"lutq_torch.py: {len(left)} layers are unpacked to be multiplied by, such as {left[0]}", file=sys.stderr)
    return left
