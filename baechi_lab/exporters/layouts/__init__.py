"""Writes layouts for programs that train: arguments, configurations, or a script of our own; one format per module."""

from __future__ import annotations

import os
from importlib import import_module

from ...checks import check_flag, check_text, check_tokens, check_whole
from ...errors import InvalidInput, UnknownNameError
from ...graph.layout import Layout
from ...parallel.configuration import configuration_fields, read_transformer
from ...parallel.layouts import REDUCED_BYTES
from ...parallel.transformer import Transformer
from ..folder import write_folder
from ..plans.records import WrittenPlan
from .request import PRECISIONS, LayoutRequest

__all__ = ["LAYOUT_FORMATS", "write_layout"]

LAYOUT_FORMATS = ("accelerate", "deepspeed", "megatron", "torchrun", "torchtitan")
"""Names of the formats; each has a module of that name."""


def check_format(format: object, precision: object) -> None:
    """Raises `UnknownNameError` for an unknown format and `InvalidInput` for a precision in which no layout is written."""
    if not isinstance(format, str) or format not in LAYOUT_FORMATS:
        raise UnknownNameError.of("format", format, LAYOUT_FORMATS)
    check_text("precision", precision, PRECISIONS)


def write_layout(
    layout: Layout,
    format: str = "torchrun",
    *,
    model: object,
    global_batch: int,
    sequence_length: int,
    per_machine: int = 8,
    precision: str = "mixed-bf16",
    reduce_precision: str = "float32",
    overlap_products: bool = False,
    folder: str | os.PathLike[str] | None = None,
) -> WrittenPlan:
    """Writes a layout as the arguments of a training program, and lists the parts that the program cannot express.

    Args:
        layout: how the model is divided.
        format: "megatron" (arguments of Megatron-LM), "torchtitan" (the TOML file of torchtitan 0.2), "deepspeed" (its JSON
            file), "accelerate" (the YAML file of `accelerate launch`, with FSDP 2) or "torchrun" (a script that trains, with
            the files that it reads).
        model: its Hugging Face configuration: the fields, a config.json or its folder, or a model that has one.
        global_batch: sequences of one step, over all copies.
        sequence_length: tokens of a sequence.
        per_machine: devices of one machine.
        precision: "mixed-bf16" (bfloat16 with float32 weights and optimizer states) or "float32".
        reduce_precision: number format in which data parallelism reduces gradients: "float32", or "half" (bfloat16; only with
            `precision` "mixed-bf16").
        overlap_products: whether products run in pieces beside the collectives of sequence parallelism (megatron and
            torchtitan).
        folder: where to write the files; None writes nothing.

    Returns:
        the plan as text, its files (name -> content), and a sentence for each thing that the program cannot be told.

    Raises:
        InvalidInput: a batch that does not divide into micro-batches, or a layout that the model cannot be divided by.
        UnknownNameError: an unknown format.
        FormatError: a configuration that is not there or is damaged.

    >>> config = dict(model_type="gpt2", n_embd=64, n_layer=4, n_head=8, vocab_size=512)
    >>> plan = write_layout(Layout(tp=2, dp=4), "deepspeed", model=config, global_batch=16, sequence_length=128)
    >>> plan.value["gradient_accumulation_steps"]
    4
    """
    if not isinstance(layout, Layout):
        raise InvalidInput(f"layout is {type(layout).__name__}; it must be a bl.Layout")
    check_format(format, precision)
    check_text("reduce_precision", reduce_precision, REDUCED_BYTES)
    if precision == "float32" and reduce_precision == "half":
        raise InvalidInput("reduce_precision is 'half' and precision is 'float32'; it must be 'float32', too")
    global_batch, sequence_length = check_tokens("global_batch", global_batch, sequence_length)
    per_machine = check_whole("per_machine", per_machine)
    transformer = read_transformer(model)
    fields = {} if isinstance(model, Transformer) else configuration_fields(model)[0]
    request = LayoutRequest(
        layout,
        transformer,
        fields,
        global_batch,
        sequence_length,
        int(per_machine),
        precision,
        reduce_precision,
        check_flag("overlap_products", overlap_products),
    )
    request.check()
    plan: WrittenPlan = import_module(f"{__name__}.{format}").write(request)
    if folder is not None:
        write_folder(folder, plan.files)
    return plan
