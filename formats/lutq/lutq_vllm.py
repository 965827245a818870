"""Opens models that lutq has quantized in vLLM: `pip install ./formats/lutq`, then `vllm serve FOLDER`.

vLLM finds the plugin by its entry point. Linear layers and output layers of every kind stay packed, fused as vLLM fuses them
whatever their parts are, and divided among GPUs by rows or columns. lutq_kernels.py has an NVIDIA GPU multiply by
those of the kind lut as they are. Any other matrix is unpacked by lutq_hf.py's code when it is multiplied by. What vLLM has
no place for that would hold packed weights, such as embeddings, is unpacked while it is loaded, into as much memory as the
model takes that is not quantized: a warning says what and how much. So are experts, which vLLM's kernels then multiply by, where there
is room for them. Otherwise, and with LUTQ_EXPERTS=packed in the environment, they stay packed, those that the checkpoint
has in matrices of their own: in CUDA graphs every step then unpacks all, with --enforce-eager those that its tokens choose.
"""

import functools
import math
import os
import zlib
from collections.abc import Iterator

import lutq_kernels
import torch
import torch.nn.functional as F
from lutq_hf import BLOCK, OPTIONAL, PARTS, LutqConfig, Packed, signs
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform

logger = init_logger("vllm.lutq")

# What vLLM fuses where a model's class does not say so, by the last name.
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
# What cannot stay packed, by the last name: vLLM reorders the rows of some as it loads them, and of others wants the weights.
LOOSE = {"query_key_value", "wqkv", "kv_b_proj"}
LOOSE_IN = {"llama4": {"q_proj", "k_proj"}, "llama4_text": {"q_proj", "k_proj"}}
EXPERTS = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))  # names of gate, up and down
MOE = {"FusedMoE", "RoutedExperts"}  # what asks for experts in vLLM 0.22 and in 0.32
TRANSPOSED = {"gpt_oss"}  # the models that want stacks of experts as [experts, columns, rows] however they are stored


class Share(Packed):
    """A matrix of the folder, or what one GPU has of it."""

    def __init__(self, name: str, config: dict, like: Tensor, rows: list[tuple[int, int]], columns: tuple[int, int]):
        """rows are the (first, count) that the GPU has of each part that vLLM knows in the matrix, columns the one (first, count)."""
        n, self.whole = config["shape"]
        self.stretches = []  # of rows, none of which begins where another ends
        for first, count in rows:
            if self.stretches and sum(self.stretches[-1]) == first:
                first, count = self.stretches[-1][0], self.stretches.pop()[1] + count
            self.stretches.append((first, count))
        self.first, count = columns
        super().__init__(name, config | {"shape": [sum(count for _, count in rows), count]}, like, set())
        self.bits, self.missing = config["bits"], set(PARTS[self.kind]) - set(OPTIONAL)
        band = self.band if self.kind == "trellis" else 1
        for at, size in self.stretches:
            if at % band or size % band and at + size != n:
                raise ValueError(f"{name}: {size} of {n} rows, of which {band} are stored together: use fewer GPUs")
        if self.k < self.whole:
            together = math.lcm(*(columns for _, columns, _ in self.along().values()), BLOCK if self.kind == "trellis" else 1)
            if self.k % together:
                raise ValueError(f"{name}: {self.k} of {self.whole} columns, of which {together} are stored together: use fewer GPUs")
            if self.kind == "trellis":  # what is there where nothing is stored
                self.factors = signs(self.k, torch.device("cpu"), self.first).half().to(like.device)

    def along(self) -> dict[str, tuple[int, int, int]]:
        """Of what is stored along columns: the dimension, and how many columns are how many entries."""
        if self.kind == "trellis":
            return {"rings": (2, 16, 1), "factors": (0, 1, 1)}
        groups = {} if self.group < 0 else {part: (1, self.group, 1) for part in ("scales", "alphas", "offsets")}
        codes = 16 if self.kind == "lut24" else 8
        return groups | {"codes": (1, codes, self.bits), "planes": (2, 8, 1), "pattern": (1, 8, 1)}

    def load(self, part: str, stored: Tensor) -> None:
        """Takes its share of a tensor of the folder."""
        if part not in PARTS[self.kind]:
            raise ValueError(f"{self.name} is of kind {self.kind} and has a tensor {part}: it belongs to another layer")
        if self.k < self.whole and part in self.along():
            dimension, columns, entries = self.along()[part]
            first, last = self.first * entries // columns, (self.first + self.k) * entries // columns
            stored = stored.narrow(dimension, first, last - first)
        if part not in ("codebook", "factors", "pairs"):
            band = self.band if self.kind == "trellis" and (part == "rings" or stored.dim() > 1) else 1
            stretches = [stored[at // band : -(-(at + count) // band)] for at, count in self.stretches]
            stored = stretches[0] if len(stretches) == 1 else torch.cat(stretches)
        if (own := getattr(self, part)) is None:
            self._buffers[part] = stored.to(self.scales.device if self.kind != "bcq" else self.alphas.device, copy=True)
        elif own.shape != stored.shape or own.dtype != stored.dtype:
            raise ValueError(f"{self.name}.{part} is {stored.dtype} {list(stored.shape)}: want {own.dtype} {list(own.shape)}")
        else:
            own.copy_(stored)
        self.missing.discard(part)

    def loaded(self) -> None:
        if self.kind == "trellis" and self.codebook == "trellis" and self.pairs is None and not self.table:
            self.missing.add("pairs")
        if self.missing:
            raise ValueError(f"{self.name}: vLLM loaded no {' and no '.join(sorted(self.missing))}")
        super().loaded()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dense(x.dtype))


class Plain(nn.Module):
    """The same of a part of a fused layer that is not quantized."""

    def __init__(self, name: str, like: Tensor, rows: list[tuple[int, int]], columns: tuple[int, int]):
        super().__init__()
        self.name, self.stretches, self.columns, self.filled = name, rows, columns, False
        self.rows = sum(count for _, count in rows)
        self.register_buffer("weight", torch.empty(self.rows, columns[1], dtype=like.dtype, device=like.device))

    def load(self, part: str, stored: Tensor) -> None:
        if part != "weight":
            raise ValueError(f"{self.name} is not quantized and has a tensor {part}: it belongs to another layer")
        stored = stored.narrow(1, *self.columns)
        self.weight.copy_(torch.cat([stored.narrow(0, *rows) for rows in self.stretches]))
        self.filled = True

    def loaded(self) -> None:
        if not self.filled:
            raise ValueError(f"{self.name}: vLLM loaded no weight")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def matrices(found: list[tuple[str, dict | None]], sizes: list[int]) -> list[list[int]]:
    """Which of vLLM's parts, of so many rows in all, each matrix of the folder has."""
    if len(found) == 1:
        every = [list(range(len(sizes)))]
    elif len(found) == len(sizes):
        every = [[i] for i in range(len(sizes))]
    else:  # some are several
        every, part = [], 0
        for name, c in found:
            if c is None:
                raise ValueError(f"{name} is not quantized, and what vLLM fuses with it is: quantize all of it or none")
            own = []
            while part < len(sizes) and sum(sizes[i] for i in own) < c["shape"][0]:
                own.append(part)
                part += 1
            every.append(own)
    for (name, c), own in zip(found, every):
        if c is not None and sum(sizes[i] for i in own) != c["shape"][0]:
            raise ValueError(f"{name} has {c['shape'][0]} rows, and vLLM's layer {sizes}")
    return every


class Method(LinearMethodBase):
    """Holds and multiplies by a layer of vLLM: its matrices in the folder, one after the other, layer.packed."""

    def __init__(self, config: "Config", found: list[tuple[str, dict | None]]):
        self.config, self.found = config, found

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype, **extra):
        like = torch.empty(0, dtype=params_dtype)
        rank, gpus, k = getattr(layer, "tp_rank", 0), getattr(layer, "tp_size", 1), input_size_per_partition
        if isinstance(layer, ParallelLMHead):
            own, sizes = layer.shard_indices, [layer.org_vocab_size]
            rows = [(own.org_vocab_start_index, own.org_vocab_end_index - own.org_vocab_start_index)]
        else:
            sizes = getattr(layer, "output_sizes", None) or [output_size]
            if hasattr(layer, "total_num_kv_heads"):  # of which vLLM gives GPUs copies where they are more than heads
                heads, kv, size = layer.total_num_heads, layer.total_num_kv_heads, layer.head_size
                sizes = [heads * size, kv * size, kv * getattr(layer, "v_head_size", size)]
            rows = [(rank * (n // count) // gpus * count, count) for n, count in zip(sizes, output_partition_sizes)]
        columns = (rank * k if k < input_size else 0, k)
        packed, self.first = [], {}
        for (name, c), own in zip(self.found, matrices(self.found, sizes)):
            stretches = [(sum(sizes[own[0] : i]) + rows[i][0], rows[i][1]) for i in own]
            self.first |= {i: len(packed) for i in own}
            packed.append(Plain(name, like, stretches, columns) if c is None else Share(name, c, like, stretches, columns))
        layer.packed = nn.ModuleList(packed)
        self.padding = sum(output_partition_sizes) - sum(m.rows for m in packed)
        self.dtype, self.held = params_dtype, []  # the rows of what kernels multiply by
        self.vllm = get_current_vllm_config()
        if self.tabled(layer):
            lutq_kernels.want(packed, params_dtype)
        # A model finds the names of tensors among parameters. These have no data: what is loaded goes to the matrices.
        for part in {part for _, c in self.found for part in (("weight",) if c is None else PARTS[c.get("kind") or "lut"])}:
            param = nn.Parameter(torch.empty(0), requires_grad=False)
            param.weight_loader = functools.partial(self.load, layer, part)
            layer.register_parameter(part, param)

    def load(self, layer, part, param, stored, shard=None) -> None:
        """Takes a tensor of the folder. shard says which of vLLM's parts it is of: a name, a number, the numbers of some, or all."""
        if shard is None and len(layer.packed) > 1:
            raise ValueError(f"vLLM loads a tensor {part} into all of {', '.join(m.name for m in layer.packed)} at once")
        part_of = shard[0] if isinstance(shard, tuple) else "qkv".index(shard) if isinstance(shard, str) else shard or 0
        layer.packed[self.first[part_of]].load(part, stored)

    def process_weights_after_loading(self, layer):
        self.config.done()
        for matrix in layer.packed:
            matrix.loaded()
        if self.tabled(layer) and (packed := lutq_kernels.pack(list(layer.packed), self.dtype)):
            tiles, scales, self.held = packed
            layer.tiles, layer.tile_scales = nn.Parameter(tiles, requires_grad=False), nn.Parameter(scales, requires_grad=False)
            layer.packed = nn.ModuleList()
        # By this vLLM finds what it has compiled and kept, and that must have multiplied in the same way.
        if isinstance(more := self.vllm.additional_config, dict):
            more["lutq"] = zlib.crc32(str(self.held).encode(), more.get("lutq", 0))

    @staticmethod
    def tabled(layer) -> bool:
        return all(isinstance(matrix, Share) and matrix.kind == "lut" for matrix in layer.packed)

    def apply(self, layer, x, bias=None):
        if self.held:
            inside = bias if not self.padding else None
            ys = torch.ops.lutq.multiply_tiles(x, layer.tiles, layer.tile_scales, inside, self.held)
            bias = None if inside is not None else bias
        else:
            ys = [matrix(x) for matrix in layer.packed]
        y = ys[0] if len(ys) == 1 else torch.cat(ys, dim=-1)
        if self.padding:
            y = F.pad(y, (0, self.padding))
        return y if bias is None else y + bias


class Experts(FusedMoEMethodBase):
    """Holds experts packed, layer.packed has three matrices of each: gate, up and down. In a CUDA graph all are unpacked at
    every step, outside of one those that tokens have chosen."""

    def __init__(self, config: "Config", moe, found: list[list[str]]):
        super().__init__(moe)
        self.config, self.found = config, found

    # vLLM's code for CPUs leaves the choice of experts to the method.
    is_monolithic = property(lambda self: current_platform.is_cpu())

    def maybe_make_prepare_finalize(self, routing_tables=None):
        return None

    def get_fused_moe_quant_config(self, layer):
        return FUSED_MOE_UNQUANTIZED_CONFIG

    def create_weights(self, layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, **extra):
        like, first = torch.empty(0, dtype=params_dtype), self.moe.moe_parallel_config.tp_rank * intermediate_size_per_partition
        own = first, intermediate_size_per_partition
        packed = []
        for names in self.found:
            for name, rows, columns in zip(names, (own, own, (0, hidden_size)), ((0, hidden_size), (0, hidden_size), own)):
                matrix = Share(name, self.config.config.of(name), like, [rows], columns)
                self.config.held[name] = matrix
                packed.append(matrix)
        layer.packed = nn.ModuleList(packed)

    def process_weights_after_loading(self, layer):
        for matrix in layer.packed:
            matrix.loaded()

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None):
        every = x.is_cuda and torch.cuda.is_current_stream_capturing()
        y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(len(self.found)) if every else topk_ids.unique().tolist():
            chosen = topk_ids == expert
            share = (topk_weights * chosen).sum(-1, keepdim=True)
            rows = torch.arange(len(x), device=x.device) if every else chosen.any(-1).nonzero()[:, 0]
            gate, up, down = layer.packed[3 * expert : 3 * expert + 3]
            y.index_add_(0, rows, down(F.silu(gate(x[rows])) * up(x[rows])).float() * share[rows])
        return y.to(x.dtype)

    def apply_monolithic(self, layer, x, router_logits, input_ids=None):
        from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts

        weights, ids = select_experts(
            x, router_logits, layer.top_k, layer.use_grouped_topk, layer.renormalize, layer.topk_group, layer.num_expert_group,
            layer.custom_routing_function, layer.scoring_func, layer.routed_scaling_factor, layer.e_score_correction_bias,
        )  # fmt: skip
        return self.apply(layer, x, weights, ids)


@register_quantization_config("lutq")
class Config(QuantizationConfig):
    """A folder's quantization_config."""

    def __init__(self, config: LutqConfig):
        super().__init__()
        self.config = config
        self.names = {name: name for name in config.tensors}  # in the folder, by vLLM's
        self.asked = set()  # those that stay packed
        self.held: dict[str, Share] = {}  # of these what vLLM does not load by itself: experts
        self.read = False
        for name in config.tensors:
            config.of(name)  # refuses what this version does not know

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

    def apply_vllm_mapper(self, hf_to_vllm_mapper) -> None:
        """Renames layers as vLLM renames their tensors. What it drops keeps its name, which nothing asks for."""
        renamed = {}
        for name, stored in self.names.items():
            suffix = "" if self.config.tensors[stored].get("experts") else ".weight"
            new = hf_to_vllm_mapper.apply_list([name + suffix])
            renamed[new[0].removesuffix(suffix) if new else name] = stored
        self.names = renamed

    def find(self, layer: nn.Module, prefix: str) -> list[tuple[str, dict | None]]:
        """The folder's matrices that a layer of vLLM is made of, and None for what is not quantized; or nothing."""
        parent, _, leaf = prefix.rpartition(".")
        names = [prefix]
        if prefix not in self.names:
            names = [f"{parent}.{name}" for name in (FUSED | self.packed_modules_mapping).get(leaf, ())]
        loose = LOOSE | LOOSE_IN.get(get_current_vllm_config().model_config.hf_text_config.model_type, set())
        if type(layer).__name__ == "ColumnParallelLinear":
            loose = loose | {"in_proj"}  # of Mamba-2, where GPUs share a group
        found = []
        for name in names:
            stored = self.names.get(name)
            if name.rpartition(".")[2] in loose or stored is None or self.config.tensors[stored].get("experts"):
                found.append((name, None))
            else:
                found.append((stored, self.config.of(stored)))
        return found if any(c for _, c in found) else []

    def get_quant_method(self, layer: nn.Module, prefix: str):
        if type(layer).__name__ in MOE:
            return self.experts(layer, prefix.removesuffix(".routed_experts"))
        if not isinstance(layer, LinearBase | ParallelLMHead):
            return None
        if not (found := self.find(layer, prefix)):
            return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
        self.asked |= {name for name, c in found if c is not None}
        return Method(self, found)

    def experts(self, layer: nn.Module, prefix: str) -> "Experts | None":
        """What holds experts packed, if they are told to be, or if they would not fit when they are unpacked; else nothing."""
        names = [name for name in self.names if ".experts." in name]
        vllm = get_current_vllm_config()
        need = sum(math.prod(self.config.tensors[self.names[name]]["shape"]) for name in names) * vllm.model_config.dtype.itemsize
        need /= vllm.parallel_config.world_size
        free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else math.inf
        if os.environ.get("LUTQ_EXPERTS") != "packed" and need < free:
            return None
        own = {name.removeprefix(prefix + "."): self.names[name] for name in names if name.startswith(prefix + ".")}
        for leaves in EXPERTS:
            found = [[own.get(f"{e}.{leaf}") for leaf in leaves] for e in range(layer.global_num_experts)]
            if all(all(some) for some in found):
                break
        else:
            found = []
        plain = layer.activation.value == "silu" and not layer.apply_router_weight_on_input and not layer.use_ep and not layer.moe_config.has_bias
        if found and plain:
            self.asked |= {name for some in found for name in some}
            return Experts(self, layer.moe_config, found)
        if need < free:
            return None
        raise ValueError(
            f"{prefix}: these experts are unpacked, into {need / 1e9:.3g} GB a GPU, of which {free / 1e9:.3g} are free: use more GPUs, "
            "or what lutq export --to ct makes"
        )

    def unpack(self, weights: Iterator[tuple[str, Tensor]], model: str, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """The folder's tensors, with the weights of layers in the place of what stores those that no layer of vLLM has asked for."""
        digests = (getattr(self.config, "digests", None) or {}).get("tensors")  # only containers with digests say what was left out
        layers: dict[str, tuple[Share, set[str]]] = {}
        names, size = [], 0

        def weight(layer: str) -> tuple[str, Tensor]:
            nonlocal size
            matrix, _ = layers.pop(layer)
            matrix.loaded()
            w, experts = matrix.dense(dtype), matrix.experts
            names.append(layer)
            size += w.numel() * w.element_size()
            if not experts:
                return layer + ".weight", w
            w = w.unflatten(0, (experts, -1))
            return layer, w.transpose(1, 2) if matrix.transposed or model in TRANSPOSED else w

        for name, stored in weights:
            layer, _, part = name.rpartition(".")
            if layer in self.held:
                self.held[layer].load(part, stored)
                continue
            if layer in self.asked or layer not in self.config.tensors or part not in PARTS[(c := self.config.of(layer)).get("kind") or "lut"]:
                yield name, stored
                continue
            if layer not in layers:
                parts = {p for p in PARTS[c.get("kind") or "lut"] if digests is None or f"{layer}.{p}" in digests}
                layers[layer] = Share(layer, c, torch.empty(0, dtype=dtype, device=device), [(0, c["shape"][0])], (0, c["shape"][1])), parts
            matrix, parts = layers[layer]
            matrix.load(part, stored)
            parts.discard(part)
            if not parts:
                yield weight(layer)
        for layer in list(layers):
            yield weight(layer)
        self.read = True
        if names:
            logger.warning(
                "%d of %d quantized layers are unpacked, into %.3g GB, for which vLLM has no layer that could hold them packed: %s%s",
                len(names), len(self.config.tensors), size / 1e9, ", ".join(names[:3]), " and others" if len(names) > 3 else "",
            )  # fmt: skip

    def done(self) -> None:
        """Refuses a model some of whose layers have not been seen."""
        if not self.read and (rest := self.config.tensors.keys() - self.asked):
            raise ValueError(f"{min(rest)} and others of {len(rest)} layers are to be unpacked while they are loaded: use --load-format auto")


def unpacking(get_all_weights):
    """vLLM's reading of a folder, by which layers that cannot stay packed are unpacked."""

    @functools.wraps(get_all_weights)
    def read(self, model_config, model):
        weights = get_all_weights(self, model_config, model)
        config = get_current_vllm_config().quant_config
        if not isinstance(config, Config):
            return weights
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        return config.unpack(weights, model_config.hf_text_config.model_type, model_config.dtype, device)

    return read


if not hasattr(DefaultModelLoader.get_all_weights, "__wrapped__"):
    DefaultModelLoader.get_all_weights = unpacking(DefaultModelLoader.get_all_weights)


def register() -> None:
    """The entry point, which vLLM may call more than once: what it is for is done when the module is imported."""
