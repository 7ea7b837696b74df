"""Quantized weights of a Hugging Face configuration: which parameters are quantized, and their bytes with scales.

A `quantization_config` says how the weights of a checkpoint are stored. The estimated model has its weights in the type of its
activations, in which products run. Every quantized parameter gets `stored_bytes`: the packed numbers with scales, zero points
and code books. Kernels read that many bytes. Such parameters are not trained. The choice of modules and their packing follow
`transformers` and the packages that it calls (`transformers/quantizers`; bitsandbytes, GPTQModel, AutoAWQ, compressed-tensors).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import nn

from ...errors import InvalidInput, in_short
from ...torch_runtime.storage import tensor_bytes

Settings = Mapping[str, Any]
"""Fields of a `quantization_config`, or of one of its parts."""


Size = Callable[[int, int], int]
"""Function from rows (outputs) and columns (inputs) of a weight to bytes."""

_FIELDS = ("quantization_config", "compression_config", "quantization")
"""Fields of a configuration that quantize weights: of transformers, of older compressed-tensors, and of MLX."""

_FLOAT16, _FLOAT32 = 2, 4  # bytes
_BITSANDBYTES_BLOCK, _NESTED_BLOCK = 64, 256
"""Elements per scale, and scales per scale of scales."""
_CODE_BYTES, _NESTED_CODE_BYTES = 16 * _FLOAT32, 256 * _FLOAT32


@dataclass(frozen=True)
class Scheme:
    """How one kind of module is stored: `size` of a weight, whether it covers fused experts, and which modules it applies to."""

    size: Size
    experts: bool = True
    linear: bool = True
    applies: Callable[[str], bool] = lambda name: True


def stored_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor in memory; for a quantized parameter its stored bytes."""
    size: int | None = getattr(tensor, "stored_bytes", None)
    return tensor_bytes(tensor) if size is None else size


def quantize(model: nn.Module, fields: Mapping[str, object], source: str) -> None:
    """Sets the stored bytes of all parameters that a configuration quantizes.

    Raises:
        InvalidInput: the bytes of the method, or of its settings, are unknown.
    """
    sections = [fields, *(section for section in fields.values() if isinstance(section, Mapping))]
    field = next((field for field in _FIELDS if any(section.get(field) for section in sections)), None)
    if field is None:
        return
    config = next(section[field] for section in sections if section.get(field))
    if not isinstance(config, Mapping):
        raise InvalidInput(f"{field} of {source} is {in_short(config)}; it must be an object")
    loads_in_bits = config.get("load_in_4bit") or config.get("load_in_8bit")
    default = "compressed-tensors" if field == "compression_config" else None
    method = "bitsandbytes" if loads_in_bits else str(config.get("quant_method", default))
    if method not in _SCHEMES:
        named_method = "no method" if method == "None" else f"the method {in_short(method)}, whose bytes are not known"
        raise InvalidInput(
            f"{field} of {source} names {named_method}; known are {', '.join(_SCHEMES)} (without the field, weights count in "
            "the configuration's dtype)"
        )
    if config.get("dequantize"):
        return
    try:
        schemes = list(_SCHEMES[method](config, model.dtype))
        modules_to_keep = _modules_to_keep(model, config, method)
        count = sum(_store(name, module, schemes, modules_to_keep) for name, module in model.named_modules())
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, re.error) as error:
        raise InvalidInput(
            f"{field} of {source} is no configuration of {method}: {type(error).__name__} at {str(error)!r:.80}"
        ) from error
    if not count:
        raise InvalidInput(f"{field} of {source} ({method}) quantizes no weight of {type(model).__name__}")


def _store(name: str, module: nn.Module, schemes: list[Scheme], modules_to_keep: set[str]) -> int:
    """Sets the stored bytes of a module's weights by the first scheme that applies; returns the number of weights."""
    scheme = next((s for s in schemes if s.applies(name)), None)
    if scheme is None or any(_matches(name, key) for key in modules_to_keep):
        return 0
    weights = list(_weights(name, module, scheme))
    for parameter, rows, columns in weights:
        parameter.stored_bytes = parameter.numel() // (rows * columns) * scheme.size(rows, columns)  # type: ignore[attr-defined]
        parameter.requires_grad_(False)
    return len(weights)


def quantization_facts(model: nn.Module) -> str | None:
    """Describes the quantized modules; None if there are none."""
    quantized_parameters = [p for p in model.parameters() if hasattr(p, "stored_bytes")]
    if not quantized_parameters:
        return None
    bits = 8 * sum(map(stored_bytes, quantized_parameters)) / sum(p.numel() for p in quantized_parameters)
    return (
        f"{len(quantized_parameters)} weights of {bits:.3g} bits per number, scales among them; their products are estimated in "
        "the type of the activations"
    )


def _weights(name: str, module: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Parameter, int, int]]:
    """Yields the weights of a layer or of fused experts, each with its rows and columns."""
    kind = type(module).__name__
    if scheme.linear and (type(module) is nn.Linear or kind == "Conv1D" or "GroupedLinear" in kind):
        weight: nn.Parameter = module.weight  # type: ignore[assignment]
        rows, columns = reversed(weight.shape) if kind == "Conv1D" else weight.shape
        yield weight, rows, columns
    elif scheme.experts and name.rpartition(".")[2] == "experts":
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 3:
                is_transposed = getattr(module, "is_transposed", False)
                rows, columns = reversed(parameter.shape[1:]) if is_transposed else parameter.shape[1:]
                yield parameter, rows, columns


def _modules_to_keep(model: nn.Module, config: Settings, method: str) -> set[str]:
    """Returns names, or patterns of names, of modules that are not quantized."""
    keys = ("modules_to_not_convert", "llm_int8_skip_modules")
    module_names = next((config[key] for key in keys if config.get(key) is not None), None)
    modules_to_keep = set(_model_names(model, module_names or ()))
    modules_to_keep |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if method == "compressed-tensors":  # it names all that it leaves out
        return modules_to_keep
    if module_names is None or method == "awq":  # the head and what comes last
        head = model.get_output_embeddings()
        modules_to_keep |= {name for name, module in model.named_modules() if module is head}
        modules_to_keep.add([name for name, _ in model.named_parameters()][-1].removesuffix(".weight"))
    return modules_to_keep


def _model_names(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Returns the model's names for names of modules in a checkpoint, if `transformers` has rearranged it since."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:
        return list(names)
    renamings, new_names = get_model_conversion_mapping(model), []
    for name in names:
        key = f"{name}."
        for renaming in renamings:
            key = renaming.rename_source_key(key)[0]
        new_names.append(key.removesuffix("."))
    return [*names, *new_names]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the start of a name up to the end of a part, or is its end; as `transformers` matches lists."""
    try:
        matches_start = re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", name) is not None
    except re.error:
        matches_start = False
    return matches_start or name.endswith(pattern)


def _blocks(rows: int, columns: int, block: tuple[int, int] | None) -> int:
    """Returns the number of scales of a weight, one per block; one if there are no blocks."""
    return 1 if block is None else ceil(rows / block[0]) * ceil(columns / block[1])


def _mxfp4(config: Mapping[str, object], dtype: torch.dtype) -> Iterator[Scheme]:
    """The experts of GPT-OSS: two numbers per byte, and a byte per 32 of one row."""
    yield Scheme(lambda rows, columns: rows * ceil(columns / 2) + rows * ceil(columns / 32), linear=False)


def _fp8(config: Settings, dtype: torch.dtype) -> Iterator[Scheme]:
    """A byte per number, and a scale per block: a float32, or a byte for a power of two.

    Blocks are 128 * 128 (DeepSeek) unless the configuration says otherwise.
    """
    default = [1, 32] if config["quant_method"] == "mxfp8" else [128, 128]
    block = config.get("weight_block_size", default)
    has_byte_scales = config.get("scale_fmt", "ue8m0" if config["quant_method"] == "mxfp8" else "float") == "ue8m0"
    scale, static = 1 if has_byte_scales else _FLOAT32, _FLOAT32 * (config.get("activation_scheme") == "static")
    blocks = None if block is None else (int(block[0]), int(block[1]))
    if config.get("expert_dtype", "fp8") == "fp4":
        yield Scheme(
            lambda rows, columns: rows * ceil(columns / 2) + scale * rows * ceil(columns / 32),
            linear=False,
            applies=lambda name: name.endswith(".experts"),
        )
    yield Scheme(lambda rows, columns: rows * columns + scale * _blocks(rows, columns, blocks) + static)


def _fbgemm_fp8(config: Mapping[str, object], dtype: torch.dtype) -> Iterator[Scheme]:
    """A byte per number, a float32 per row and one for the largest activation."""
    yield Scheme(lambda rows, columns: rows * columns + _FLOAT32 * (rows + 1))


def _nvfp4(config: Mapping[str, object], dtype: torch.dtype) -> Iterator[Scheme]:
    """Two numbers per byte, a byte per 16 of them, a float32 for the weight and one for its inputs."""
    yield Scheme(lambda rows, columns: rows * (ceil(columns / 2) + ceil(columns / 16)) + 2 * _FLOAT32)


def _bitsandbytes(config: Mapping[str, object], dtype: torch.dtype) -> Iterator[Scheme]:
    """In 8 bits: a float32 scale per row. In 4 bits: a scale per 64 numbers, and code books; scales may be a byte each."""
    if config.get("load_in_8bit"):
        if not config.get("llm_int8_has_fp16_weight"):
            yield Scheme(lambda rows, columns: rows * columns + _FLOAT32 * rows, experts=False)
        return
    nests_scales = bool(config.get("bnb_4bit_use_double_quant"))

    def size(rows: int, columns: int) -> int:
        scales = ceil(rows * columns / _BITSANDBYTES_BLOCK)
        nested_bytes = scales + _FLOAT32 * (ceil(scales / _NESTED_BLOCK) + 1) + _NESTED_CODE_BYTES
        return ceil(rows * columns / 2) + _CODE_BYTES + (nested_bytes if nests_scales else _FLOAT32 * scales)

    yield Scheme(size, experts=False)


def _packed_weight_size(bits: int, group: int, has_zero_points: bool, has_column_groups: bool) -> Size:
    """Columns packed into int32, and a float16 per row and group; packed zero points, and a group number (int32) per column."""
    if not 1 <= bits <= 16:
        raise ValueError(f"{bits} bits")

    def size(rows: int, columns: int) -> int:
        groups = 1 if group <= 0 else ceil(columns / group)
        words = ceil(columns * bits / 32) * rows + has_zero_points * groups * ceil(rows * bits / 32)
        return 4 * (words + has_column_groups * columns) + _FLOAT16 * groups * rows

    return size


def _gptq(config: Settings, dtype: torch.dtype) -> Iterator[Scheme]:
    """Packed numbers and zero points, float16 scales, and the group of every column; `dynamic` has other rules for modules."""
    bits, group = int(config["bits"]), int(config.get("group_size", 128))
    for rule, changes in (config.get("dynamic") or {}).items():
        converts, pattern = rule[:2] != "-:", re.compile(rule[2:] if rule[:2] in ("-:", "+:") else rule)
        size = _packed_weight_size(int(changes.get("bits", bits)), int(changes.get("group_size", group)), True, True)
        yield Scheme(size, converts, converts, partial(_pattern_matches, pattern))
    blocks, block_modules = config.get("block_name_to_quantize"), config.get("modules_in_block_to_quantize")
    applies = partial(_is_in_blocks, _flatten(blocks), _flatten(block_modules))
    yield Scheme(_packed_weight_size(bits, group, True, True), applies=applies)


def _pattern_matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None


def _is_in_blocks(blocks: list[str], modules: list[str], name: str) -> bool:
    """Whether a module is in a quantized block and is one of its quantized parts; empty lists match everything."""
    within = not blocks or any(f"{block}." in name for block in blocks)
    return within and (not modules or name.endswith((*modules, "experts")))


def _flatten(names: Any) -> list[str]:
    """Flattens a text or nested lists of texts."""
    return [names] if isinstance(names, str) else [n for name in names or () for n in _flatten(name)]


def _awq(config: Settings, dtype: torch.dtype) -> Iterator[Scheme]:
    """Packed numbers and zero points, and float16 scales."""
    bits = int(config.get("bits", config.get("w_bit", 4)))
    group = int(config.get("group_size", config.get("q_group_size", 128)))
    yield Scheme(_packed_weight_size(bits, group, bool(config.get("zero_point", True)), False))


def _compressed_tensors(config: Settings, dtype: torch.dtype) -> Iterator[Scheme]:
    """A scheme per group of modules: numbers as they are packed, and scales in the model's type."""
    for key, value in ((k, config.get(k)) for k in ("sparsity_config", "format")):
        format_name = value.get("format") if isinstance(value, Mapping) else value
        if format_name and ("sparse" in format_name or "24" in format_name):
            raise ValueError(f"{key} {format_name}")
    ignored_modules = list(config.get("ignore") or ())
    yield Scheme(lambda rows, columns: 0, experts=False, linear=False, applies=partial(_is_targeted, ignored_modules))
    for group in config["config_groups"].values():
        weights, targets = group.get("weights"), list(group["targets"])
        if weights is not None:
            packing = str(group.get("format") or config.get("format"))
            static = (group.get("input_activations") or {"dynamic": True}).get("dynamic") is False
            yield Scheme(
                _compressed_weight_size(weights, packing, dtype.itemsize, static),
                applies=partial(_is_targeted, targets),
            )


def _is_targeted(targets: list[str], name: str) -> bool:
    """Whether `targets` include a module by class, name, or `re:` and a pattern; checkpoints may omit `model.`."""
    names = (name, name.removeprefix("model."))
    return "Linear" in targets or any(
        any(re.match(target[3:], n) for n in names) if target.startswith("re:") else target in names
        for target in targets
    )


def _compressed_weight_size(weights: Settings, packing: str, scale_bytes: int, static: bool) -> Size:
    bits, strategy, group = int(weights["num_bits"]), weights.get("strategy") or "tensor", weights.get("group_size")
    if packing == "nvfp4-pack-quantized":
        return lambda rows, columns: rows * (ceil(columns / 2) + ceil(columns / 16)) + 2 * _FLOAT32
    if packing == "mxfp4-pack-quantized":
        return lambda rows, columns: rows * (ceil(columns / 2) + ceil(columns / 32))
    if packing not in ("pack-quantized", "naive-quantized", "int-quantized", "float-quantized"):
        raise ValueError(f"format {packing}")
    is_packed, zeros = packing == "pack-quantized", not weights.get("symmetric", True)
    order = is_packed and weights.get("actorder") in ("group", True)

    if strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        raise ValueError(f"strategy {strategy}")

    def size(rows: int, columns: int) -> int:
        group_shape = (1, group or columns)
        blocks = {"channel": (1, columns), "block": weights.get("block_structure"), "tensor": None}
        scales = _blocks(rows, columns, blocks.get(strategy, group_shape))
        if not is_packed:
            return rows * columns + scales * (scale_bytes + zeros) + scale_bytes * static
        numbers = 4 * ceil(columns * bits / 32) * rows + 4 * order * columns
        shape = 2 * 8  # of the weight before it was packed, two int64
        return numbers + shape + scales * scale_bytes + zeros * 4 * ceil(rows * bits / 32) * ceil(scales / rows)

    return size


_SCHEMES: dict[str, Callable[[Mapping[str, object], torch.dtype], Iterator[Scheme]]] = {
    "mxfp4": _mxfp4,
    "fp8": _fp8,
    "mxfp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "nvfp4": _nvfp4,
    "bitsandbytes": _bitsandbytes,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
}
