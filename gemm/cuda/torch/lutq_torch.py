"""Multiplies by a model's quantized layers with lutq's CUDA kernels, in PyTorch.

`lutq repack MODEL FOLDER --target torch` writes this file into FOLDER, beside the layers as the kernels read them, the
kernels, and lutq_torch.json, which says how they are launched. Of MODEL opened in transformers,

    import sys; sys.path.insert(0, "FOLDER"); import lutq_torch
    lutq_torch.use(model)

replaces the layers, and so does opening it with LUTQ_TORCH=FOLDER in the environment. Needs PyTorch and
safetensors, and of NVIDIA's software the driver.

The operation torch.ops.lutq.linear launches one kernel for up to 16 or 32 rows of activations. For more it does what
lutq_torch.json says: launches several, or one that prepares the activations and another, or writes the weights as numbers to
memory of PyTorch's, by which PyTorch multiplies. It waits for nothing and takes memory from PyTorch alone, so CUDA
graphs can hold it; the first call loads the kernels, which a capture must not do.
"""

import ctypes
import json
import math
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

VERSION = 3  # of lutq_torch.json
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
CODES, SCALES, X, Y, BIAS, ROWS = 0, 1, 6, 7, 8, 9  # addresses in a kernel's argument, of 8 bytes each, and rows
SUMS, FLAGS, POWERS = 0, 1, 16  # addresses in the second one, and the byte of two numbers
FROM, TO, HOW_MANY = 0, 1, 2  # addresses and rows in that of a kernel that prepares activations
HELD = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}  # types of scales
FLAG_WORDS, STREAMS = 132 * 16, 16  # by which the blocks of a launch tell each other of sums, for so many streams
MAX_SHARED, PROGRAMMATIC, CLUSTER = 8, 6, 4  # of CUfunction_attribute and CUlaunchAttributeID


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
    """A kernel's launch, but for the addresses: they are put into `argument`, and into `second` where there is one."""

    def __init__(self, plan: dict, function: ctypes.c_void_p, table: bytes = b"", second: bytes = b""):
        self.function, self.name = function, plan["kernel"]
        self.argument = self.words(bytes.fromhex(plan["arguments"]) + table)
        self.second = self.words(second)
        self.arguments = (ctypes.c_void_p * 2)(ctypes.addressof(self.argument), ctypes.addressof(self.second))
        wanted = [Attribute(PROGRAMMATIC, 0, (1,))] if plan.get("programmatic") else []
        if blocks := plan.get("cluster"):  # [x, y, z], of 32 bits each
            wanted.append(Attribute(CLUSTER, 0, (1 << 32 | blocks, 1)))
        self.attributes = (Attribute * max(1, len(wanted)))(*wanted)
        self.config = Config((plan["grid"], 1, 1), (plan["block"], 1, 1), plan["shared"], None, self.attributes, len(wanted))
        self.pointers = ctypes.addressof(self.config), ctypes.addressof(self.arguments)

    @staticmethod
    def words(data: bytes) -> ctypes.Array:
        data += bytes(-len(data) % 8)
        return (ctypes.c_ulonglong * (len(data) // 8)).from_buffer_copy(data)

    def rows(self, at: int, m: int):
        """Puts a number of rows into the lower half of a word."""
        self.argument[at] = self.argument[at] >> 32 << 32 | m

    def __call__(self, driver: Driver, stream: int):
        self.config.stream = stream
        result = driver.launch(self.pointers[0], self.function, self.pointers[1], None)
        if result:
            driver.check(result, self.name)


class Product:
    """A layer's launches for a type of activations on a device, made when they are first needed."""

    def __init__(self, layer: "Layer", plan: dict, dtype: torch.dtype, device: torch.device, scales: Tensor):
        self.op, self.plan, self.n, self.k = layer.op, plan, plan["n"], plan["k"]
        self.table, self.powers = layer.table(dtype), b""
        many = [m["launch"] for m in plan["many"] if "launch" in m]
        if many:
            self.powers = struct.pack("<ff", *powers(plan, scales, layer.codebook))
        find = self.op.functions(device)
        names = {p["kernel"] for p in [*plan["launches"], *many, *(m["prepare"] for m in plan["many"] if "prepare" in m), plan["unpack"]]}
        self.functions = {name: find(name) for name in sorted(names)}
        self.few: list[Launch | None] = [None] * len(plan["launches"])
        self.many: list[tuple[Launch, Launch] | None] = [None] * len(plan["many"])
        self.unpack = Launch(plan["unpack"], self.functions[plan["unpack"]["kernel"]], self.table)

    def __call__(self, x: Tensor, y: Tensor, codes: int, scales: int, bias: Tensor | None, prepared: dict):
        """Writes x [m, k] times the matrix to y [m, n]. Activations that are prepared for one product stay in prepared for others."""
        m, few = len(x), len(self.few)
        stream = torch.cuda.current_stream(x.device).cuda_stream
        by = 0 if bias is None else bias.data_ptr()
        if m <= few:
            self.turn(m, stream, codes, scales, x.data_ptr(), y.data_ptr(), by)
            return
        at = (m - few - 1) // 8
        how = self.plan["many"][at] if at < len(self.many) else {}
        if rows := how.get("turns"):
            for first in range(0, m, rows):
                self.turn(min(rows, m - first), stream, codes, scales, x.data_ptr() + 2 * first * self.k, y.data_ptr() + 2 * first * self.n, by)
        elif "launch" in how:
            self.wide(how, at, m, x, y, stream, codes, scales, by, prepared)
        else:
            w = x.new_empty(self.n, self.k)
            a = self.unpack.argument
            a[CODES], a[SCALES], a[Y] = codes, scales, w.data_ptr()
            self.unpack(self.op.driver, stream)
            if bias is None:
                torch.mm(x.detach(), w.T, out=y)  # with an output there are no gradients
            else:
                torch.addmm(bias.detach(), x.detach(), w.T, out=y)

    def turn(self, m: int, stream: int, codes: int, scales: int, x: int, y: int, bias: int):
        launch = self.few[m - 1]
        if launch is None:
            plan = self.plan["launches"][m - 1]
            launch = self.few[m - 1] = Launch(plan, self.functions[plan["kernel"]], self.table)
        a = launch.argument
        a[CODES], a[SCALES], a[X], a[Y], a[BIAS] = codes, scales, x, y, bias
        launch(self.op.driver, stream)

    def wide(self, how: dict, at: int, m: int, x: Tensor, y: Tensor, stream: int, codes: int, scales: int, bias: int, prepared: dict):
        if self.many[at] is None:
            work = bytes.fromhex(how["work"])
            work = work[:POWERS] + self.powers + work[POWERS + len(self.powers) :]
            first, second = how["prepare"], how["launch"]
            self.many[at] = Launch(first, self.functions[first["kernel"]]), Launch(second, self.functions[second["kernel"]], self.table, work)
        prepare, launch = self.many[at]
        held = prepared.get(prepare.name)
        if held is None:
            held = prepared[prepare.name] = x.new_empty(how["prepared"] // 2)
            a = prepare.argument
            a[FROM], a[TO] = x.data_ptr(), held.data_ptr()
            prepare.rows(HOW_MANY, m)
            prepare(self.op.driver, stream)
        sums = torch.empty(how["sums"], dtype=torch.uint8, device=x.device)
        a, b = launch.argument, launch.second
        a[CODES], a[SCALES], a[X], a[Y], a[BIAS] = codes, scales, held.data_ptr(), y.data_ptr(), bias
        launch.rows(ROWS, m)
        b[SUMS], b[FLAGS] = sums.data_ptr(), self.op.flags(x.device, stream)
        launch(self.op.driver, stream)


def powers(plan: dict, scales: Tensor, codebook: Tensor) -> tuple[float, float]:
    """The power of two by which kernels for many rows multiply scales, for float16 to hold products with the table whole, and its inverse."""
    if plan["type"] != "f16" or scales.numel() * scales.element_size() == plan["n"] * plan["scale_bytes"]:
        return 1, 1
    if values := plan.get("values"):
        every = torch.tensor(values, device=scales.device)[scales.flatten().unique().int()]
    else:
        every = scales.flatten().view(HELD[plan["scale_type"]]).float()
    largest = float(every.abs().max()) * max(1.0, float(codebook.abs().max()))
    if not largest or not math.isfinite(largest):
        return 1, 1
    exponent = 13 - math.frexp(largest)[1]
    low, high = (-14, 15) if plan["scale_type"] == "f16" else (-126, 126)  # as it is multiplied in that type
    exponent = min(max(exponent, low), high)
    return 2.0**exponent, 2.0**-exponent


class Layer:
    """How a matrix is multiplied by: its products by type of activations and device, made when they are first needed."""

    def __init__(self, op: "Op", name: str, codebook: Tensor):
        self.op, self.name, self.codebook = op, name, codebook.cpu()
        self.plans = {TYPES[p["type"]]: p for p in (op.plan["products"][i] for i in op.plan["layers"][name]["products"])}
        self.n, self.k = (next(iter(self.plans.values()))[i] for i in "nk")
        self.products: dict[tuple, Product] = {}

    def table(self, dtype: torch.dtype) -> bytes:
        """The table in the kernel's argument: numbers of a type, in 32 bits each."""
        values = self.codebook.to(dtype)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{self.name}: the table does not fit in {dtype}")
        return b"".join((v & 0xFFFF).to_bytes(4, "little") for v in values.view(torch.int16).tolist())

    def on(self, dtype: torch.dtype, device: torch.device, scales: Tensor) -> Product:
        key = dtype, device
        found = self.products.get(key)
        if found is None:
            plan = self.plans.get(dtype)
            if plan is None:
                raise TypeError(f"{self.name}: activations of {dtype}: the kernels are for {' and '.join(map(str, self.plans))}")
            found = self.products[key] = Product(self, plan, dtype, device, scales)
        return found

    def __call__(self, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, prepared: dict | None = None) -> Tensor:
        """x times the matrix whose codes and scales lie in two tensors. Others that x is multiplied by share what is prepared."""
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.n)
        if y.numel() == 0:
            return y
        if x.data_ptr() % 16:
            x = x.clone()
        product = self.on(x.dtype, x.device, scales)
        product(x.view(-1, self.k), y.view(-1, self.n), codes.data_ptr(), scales.data_ptr(), bias, {} if prepared is None else prepared)
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
        self._flags: dict[torch.device, Tensor] = {}
        self._streams: dict[tuple, int] = {}

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

    def flags(self, device: torch.device, stream: int) -> int:
        """Where words lie that are 0 before and after a launch, of a stream: launches of one follow each other."""
        key = device, stream
        if key not in self._streams:
            slot = sum(d == device for d, _ in self._streams)
            if slot % STREAMS == 0:  # at the first call, and so in no capture
                self._flags[device] = torch.zeros(STREAMS, FLAG_WORDS, dtype=torch.int32, device=device)
            self._streams[key] = self._flags[device][slot % STREAMS].data_ptr()
        return self._streams[key]

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
