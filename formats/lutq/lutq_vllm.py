"""Opens models that lutq has quantized in vLLM: `pip install ./formats/lutq`, then `vllm serve FOLDER`.

vLLM finds the plugin by its entry point. Layers of the kinds lut and trellis are loaded as they are stored, fused as vLLM fuses
them, each part with its own table, and divided among GPUs by rows or columns. A layer is unpacked by lutq_hf.py's code
when it is multiplied by, one part after the other. Experts, layers of other kinds and EXL3's codebooks are refused.
"""

import torch
import torch.nn.functional as F
from lutq_hf import BLOCK, ENTRIES, LutqConfig, dequantize, signs, table, unwind
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.parameter import ModelWeightParameter

# What vLLM fuses, by the last name.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
BAND = 8  # rows of a ring
SCALES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def parts_of(config: LutqConfig, prefix: str) -> list[dict]:
    """The configurations of what a layer of vLLM is made of, none where it is not quantized."""
    parent, _, leaf = prefix.rpartition(".")
    names = [prefix] if prefix in config.tensors else [f"{parent}.{name}" for name in FUSED.get(leaf, ())]
    found = [config.of(name) for name in names if name in config.tensors]
    if not found:
        return []
    if len(found) < len(names):
        raise ValueError(f"{prefix}: some of {', '.join(names)} are quantized and some are not: quantize without --split-fused")
    kinds = {c.get("kind") or "lut" for c in found}
    if not kinds <= {"lut", "trellis"} or any(c.get("experts") for c in found):
        raise ValueError(f"{prefix}: lutq_vllm.py opens layers of the kinds lut and trellis alone, and no stacks of experts")
    if "trellis" in kinds and {c["codebook"] for c in found} != {"trellis"}:
        raise ValueError(f"{prefix}: lutq_vllm.py opens rings of codebook trellis alone: lutq export --to exl3 writes others for exllamav3")
    if len(kinds) > 1 or len({(c["bits"], c.get("half", False), c["group"], c["scale_type"]) for c in found}) > 1:
        raise ValueError(f"{prefix}: {', '.join(names)} differ in kind, bits, group or scale type: quantize without --split-fused")
    return found


def split(c: dict, k: int, whole: int) -> tuple[int, int, int]:
    """Bytes of codes, scales and columns to a scale of k of a row's columns, or why they cannot be parted from the rest."""
    group = c["group"] if c["group"] > 0 else k
    if k < whole and (k * c["bits"] % 8 or c["group"] <= 0 or k % group):
        raise ValueError(f"{k} of {whole} columns of {c['bits']} bits in groups of {c['group']}: use fewer GPUs")
    return -(-k * c["bits"] // 8), -(-k // group), c["group"]


def load_table(param: torch.nn.Parameter, loaded: torch.Tensor, shard: str | int | tuple[int, ...] | None = None) -> None:
    """Loads the table of a part, of some of them, or of all: a matrix that is one in the checkpoint, such as Phi-3's
    qkv_proj, has one for all. Every GPU has all tables, and of the factors of columns those of its own."""
    if (first := getattr(param, "first", None)) is not None:
        loaded = loaded[first : first + param.shape[1]]
    parts = range(len(param)) if shard is None else shard if isinstance(shard, tuple) else (("q", "k", "v").index(shard) if isinstance(shard, str) else shard,)
    for part in parts:
        param.data[part].copy_(loaded)


def multiply(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, tables: torch.Tensor, rows: list[int], group: int, kind: str) -> torch.Tensor:
    """x times the parts of a fused matrix, which have so many rows each."""
    parts, at = [], 0
    for n, table in zip(rows, tables):
        w = dequantize(codes[at : at + n], scales[at : at + n], table, None, x.shape[-1], group, "lut", kind, x.dtype)
        parts.append(F.linear(x, w))
        at += n
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def fake(x, codes, scales, tables, rows, group, kind):
    return x.new_empty(*x.shape[:-1], sum(rows))


if not hasattr(torch.ops.lutq, "multiply_parts"):
    torch.library.custom_op(
        "lutq::multiply_parts", multiply, mutates_args=(),
        schema="(Tensor x, Tensor codes, Tensor scales, Tensor tables, int[] rows, int group, str kind) -> Tensor",
    ).register_fake(fake)  # fmt: skip


def multiply_rings(x: torch.Tensor, rings: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, pairs: torch.Tensor, rows: list[int], rate: int) -> torch.Tensor:
    """The same of rings."""
    parts, at = [], 0
    for n, factor, pair in zip(rows, factors, pairs):
        w = unwind(rings[at // BAND : (at + n) // BAND], scales[at : at + n].view(-1, BAND), factor, pair, x.shape[-1], "trellis", rate, x.dtype)
        parts.append(F.linear(x, w))
        at += n
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


if not hasattr(torch.ops.lutq, "multiply_rings"):
    torch.library.custom_op(
        "lutq::multiply_rings", multiply_rings, mutates_args=(),
        schema="(Tensor x, Tensor rings, Tensor scales, Tensor factors, Tensor pairs, int[] rows, int rate) -> Tensor",
    ).register_fake(lambda x, rings, scales, factors, pairs, rows, rate: x.new_empty(*x.shape[:-1], sum(rows)))  # fmt: skip


# These are of the module, not of register, so that vLLM can send them to processes that it spawns by their names.


class Method(LinearMethodBase):
    """Holds and multiplies by a layer of vLLM, which has one part or several."""

    def __init__(self, parts: list[dict]):
        self.parts = parts

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype, **extra):
        c, rows = self.parts[0], output_partition_sizes
        size, groups, self.group = split(c, input_size_per_partition, input_size)
        self.rows, self.kind = list(rows), c["scale_type"]
        for name, width, dtype in ("codes", size, torch.uint8), ("scales", groups, SCALES.get(self.kind, torch.uint8)):
            data = torch.empty(sum(rows), width, dtype=dtype)
            # One scale a row is every GPU's where columns are divided; split refuses that.
            layer.register_parameter(name, ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=extra["weight_loader"]))
        # No table has NaN: one that still has it has not been loaded.
        table = torch.nn.Parameter(torch.full((len(rows), 1 << c["bits"]), torch.nan, dtype=torch.float32), requires_grad=False)
        table.weight_loader = load_table
        layer.register_parameter("codebook", table)

    def process_weights_after_loading(self, layer):
        if missing := [i for i, table in enumerate(layer.codebook) if table.isnan().any()]:
            raise ValueError(f"{getattr(layer, 'prefix', type(layer).__name__)}: no codebook was loaded for part {missing[0]} of {len(self.rows)}")

    def apply(self, layer, x, bias=None):
        y = torch.ops.lutq.multiply_parts(x, layer.codes, layer.scales, layer.codebook, self.rows, self.group, self.kind)
        return y if bias is None else y + bias


class Rings(LinearMethodBase):
    """The same of layers of kind trellis."""

    def __init__(self, parts: list[dict]):
        self.parts = parts

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype, **extra):
        c, k, rows = self.parts[0], input_size_per_partition, output_partition_sizes
        if k < input_size and k % BLOCK:
            raise ValueError(f"{k} of {input_size} columns, of which {BLOCK} are mixed: use fewer GPUs")
        if uneven := [n for n in rows if n % BAND]:
            raise ValueError(f"{uneven[0]} rows in rings of {BAND}: use fewer GPUs")
        self.rows, self.rate = list(rows), 2 * c["bits"] + c.get("half", False)
        first = k * getattr(layer, "tp_rank", 0) if k < input_size else 0

        def add(name: str, data: torch.Tensor, **attributes):
            param = torch.nn.Parameter(data, requires_grad=False)
            for key, value in attributes.items():
                setattr(param, key, value)
            layer.register_parameter(name, param)

        rings = torch.empty(sum(rows) // BAND, 1, -(-k // 16), BAND * self.rate, dtype=torch.uint8)
        add("rings", rings, input_dim=2, output_dim=0, packed_dim=0, packed_factor=BAND, weight_loader=extra["weight_loader"])
        add("scales", torch.empty(sum(rows), dtype=SCALES[c["scale_type"]]), output_dim=0, weight_loader=extra["weight_loader"])
        # What is not stored is there already. No table has NaN.
        factors = signs(k, torch.device("cpu"), first).half().to(rings.device)
        add("factors", factors.repeat(len(rows), 1), first=first, weight_loader=load_table)
        known = [table(c["table"]).view(torch.float16).view(-1, 2) if c.get("table") else torch.full((ENTRIES, 2), torch.nan).half() for c in self.parts]
        known *= len(rows) // len(known)  # a matrix that is one in the checkpoint has the same for all
        add("pairs", torch.stack(known).to(rings.device), weight_loader=load_table)

    def process_weights_after_loading(self, layer):
        if layer.pairs.isnan().any():
            raise ValueError(f"{getattr(layer, 'prefix', type(layer).__name__)}: no table was loaded")

    def apply(self, layer, x, bias=None):
        y = torch.ops.lutq.multiply_rings(x, layer.rings, layer.scales, layer.factors, layer.pairs, self.rows, self.rate)
        return y if bias is None else y + bias


@register_quantization_config("lutq")
class Config(QuantizationConfig):
    """A folder's quantization_config."""

    def __init__(self, config: LutqConfig):
        super().__init__()
        self.config = config

    def get_name(self) -> str:
        return "lutq"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 70

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict) -> "Config":
        return cls(LutqConfig(**config))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        parts = parts_of(self.config, prefix)
        if isinstance(layer, LinearBase):
            if not parts:
                return UnquantizedLinearMethod()
            return (Rings if parts[0].get("kind") == "trellis" else Method)(parts)
        moe = "MoE" in type(layer).__name__ and any(name.startswith(prefix + ".") for name in self.config.tensors)
        if parts or moe:
            raise ValueError(f"{prefix}: lutq_vllm.py opens linear layers alone, and this is a {type(layer).__name__}")
        return None


def register() -> None:
    """The entry point, which vLLM may call more than once: what it is for is done when the module is imported."""
