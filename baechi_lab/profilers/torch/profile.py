"""`bl.torch.profile`: turns a PyTorch model into a graph with costs, measured layer by layer or estimated."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from torch import nn

from ...checks import check_text
from ...errors import InvalidInput
from ...graph import OpGraph
from ...graph.hardware import HardwareChoice, by_kind
from ...graph.layout import Layout
from ...internal_warnings import outer_stacklevel
from ...torch_steps.step import TorchStep, check_optimizer_states
from ...torch_steps.tracing import check_model
from ..precision import Precision
from .fake_tensors import DTYPES, named_dtype
from .layer_estimate import EstimateOptions, estimate_layers, optimizer_of
from .layer_estimate import optimizer_states as state_count
from .layers import profile_layers
from .operators import profile_operators
from .quantization import quantization_facts


class ConfiguredDtype(UserWarning):
    """The weights of a model have another type than its configuration; the message names both."""


def warn_about_configured_dtype(model: nn.Module) -> None:
    """Warns if no parameter has the `dtype` of the model's configuration, as after `LlamaForCausalLM(config)`.

    Warns:
        ConfiguredDtype: the estimate is for the type of the weights.
    """
    configured_name = str(getattr(getattr(model, "config", None), "dtype", None)).removeprefix("torch.")
    stored_dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if configured_name not in DTYPES or not stored_dtypes or named_dtype(configured_name) in stored_dtypes:
        return
    weights = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in stored_dtypes))
    warnings.warn(
        f"the weights of {type(model).__name__} are {weights}, and its configuration says {configured_name}; they are estimated "
        "as they are: build the model by bl.torch.hugging_face, or give precision=",
        ConfiguredDtype,
        stacklevel=outer_stacklevel(),
    )


GRANULARITIES = ("layer", "operator")


def profile(
    model: nn.Module | TorchStep,
    sample_inputs: object = None,
    *,
    mode: str | None = None,
    hardware: HardwareChoice | None = None,
    granularity: str = "layer",
    precision: str | Precision | None = None,
    gradients: str | None = None,
    dtype: object = None,
    autocast: object = None,
    optimizer: str | None = None,
    warmup: int = 2,
    runs: int = 5,
    atomic: Collection[str | type] = (),
    optimizer_states: int = 0,
    device: str | None = None,
    split_backward: bool = False,
    accumulate: bool = False,
    layout: Layout | None = None,
    plan: Mapping[str, str] | None = None,
) -> OpGraph:
    """Profiles a model into an OpGraph: one op per layer call and per function between layers, with backward ops.

    Without `hardware`, the model is measured on its device. With `hardware`, a model of kernels estimates it on fake tensors:
    nothing is computed and no weights are held, so a model made under `torch.device("meta")` may have any size. Estimates are
    worst for processors: the mean error on the measured core is 50 %, or 24 % when calibrated (docs/estimate-errors.md).

    Args:
        model: a module, or a `TorchStep` (then its inputs, atomic classes and optimizer are taken).
        sample_inputs: a tensor, a tuple of positional arguments, a dict (or `BatchEncoding`) of keywords, or both as
            `(tuple, dict)`.
        mode: "training" (forward and backward) or "inference"; by default what `model.training` says.
        hardware: estimate for this device, by name ("a100") or as `Hardware`; several give durations under their names as
            device kinds, a mapping says which kind is which, as in `bl.profile`.
        granularity: of an estimate: "layer", or "operator" for one op per call of an ATen operator.
        precision: of an estimate: "fp32", "tf32", "bf16", "fp16", "mixed-bf16" or "mixed-fp16" for all floating-point weights
            and activations; by default the types of the model, with float32 products in full float32
            (`baechi_lab.profilers.precision`). Mixed precision keeps float32 master weights and states.
        gradients: with mixed precision: the type in which gradients of parameters are kept, "fp32" or that of the weights.
        dtype: of an estimate: "bf16", "fp16" or "fp32", as `precision`, or a torch type.
        autocast: of an estimate: "bf16" or "fp16" for what `torch.autocast` runs in it, the weights staying as they are.
        optimizer: its name ("sgd", "momentum", "adam", "adamw", ...); an estimate has an update op for every call with
            trained parameters, and the states are persistent bytes.
        warmup, runs: of a measurement: forward-backward runs that are dropped, and averaged.
        atomic: module classes (or their names) that are kept whole.
        optimizer_states: tensors of a parameter's size that the optimizer keeps, where it is not named (SGD 0, Adam 2).
        device: of a measurement: the torch device to profile on; by default the model stays where it is.
        split_backward: of a measurement: a backward op each for the gradients of inputs and of parameters (`/backward`,
            `/backward_weights`), which schedules such as `zb-h1` run apart; the two together may take longer than one.
        accumulate: of a measurement: backward passes add to gradients that are there, as those of all micro-batches but
            the first do.
        layout: of an estimate: the graph is that of one rank of this layout, operator by operator, with collectives as ops
            (`baechi_lab.profilers.torch.divided`); operators are divided over `tp`, experts over
            `ep`, gradients over `dp`.
        plan: with `layout`: names of modules (`*` is a number) and how they are divided, in the words of Hugging Face's
            `tp_plan`: "colwise", "rowwise", "colwise_gather_output", "embedding_rowwise"; by default that of the model, or
            by the names of its layers.

    Ops `0 .. k-1` are the calls in code order; backward ops follow in reverse. `forward_of` pairs them, and each pair
    is a colocation group, together with calls that share parameters. The model is left as it was.

    Warns:
        ConfiguredDtype: a model of transformers whose weights have another type than its configuration.

    Raises:
        InvalidInput: an unknown mode, counts below 1, a model that fails on the sample inputs (naming the layer), an
            estimate of a model that looks at the values of its tensors.
        UnknownNameError: hardware, a precision or an optimizer of no known name.

    >>> import torch
    >>> graph = profile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), runs=1)
    >>> graph.names
    ('0', '1', '1/backward', '0/backward')
    >>> with torch.device("meta"):
    ...     large = nn.Linear(100_000, 100_000)    # 40 GB
    >>> graph = profile(large, torch.empty(64, 100_000, device="meta"), hardware="A100", optimizer="adam")
    >>> graph.names, int(graph.persistent_bytes.sum()) // (16 * 10**9)    # weight, gradient and two states of 4 bytes
    (('linear', 'linear/backward', 'linear/update'), 10)
    """
    check_optimizer_states("optimizer_states", optimizer_states)
    step, states = None, optimizer_states or None
    if isinstance(model, TorchStep):
        step, model = model, model.model()
        sample_inputs, atomic, states = step.inputs, step.atomic, states or step.optimizer_states
    check_model(model)
    check_text("granularity", granularity, GRANULARITIES)
    make_optimizer = None
    if optimizer is not None:
        states = state_count(optimizer)
    elif step is not None and hardware is not None:
        optimizer, make_optimizer = optimizer_of(step), step.optimizer
        states = step.kept_states if states is None else states
    if layout is not None or plan is not None:
        from .divided import profile_divided

        if hardware is None:
            raise InvalidInput("layout is for estimates; name the hardware that they are for")
        if layout is None:
            raise InvalidInput("plan is given without layout; the plan says how a layout divides layers")
        options = EstimateOptions(mode, dtype, autocast, Precision.of(precision, gradients), optimizer, states or 0)
        graph = profile_divided(model, sample_inputs, by_kind(hardware), layout, options, plan, step)
        return _with_quantization(graph, model)
    if hardware is not None:
        states, kinds = states or 0, by_kind(hardware)
        on_cpu = all(device_hardware.kind == "cpu" for device_hardware in kinds.values())
        options = EstimateOptions(mode, dtype, autocast, Precision.of(precision, gradients), optimizer, states)
        if not options.precision.name and dtype is None and autocast is None:
            warn_about_configured_dtype(model)
        if granularity == "layer":
            estimate = estimate_layers(
                model,
                sample_inputs,
                mode=mode,
                atomic=atomic,
                dtype=dtype,
                autocast=autocast,
                step=step,
                precision=options.precision,
                on_cpu=on_cpu,
            )
            graph = estimate.graph(kinds, optimizer=optimizer, states=states, make_optimizer=make_optimizer)
        else:
            graph = profile_operators(model, sample_inputs, kinds, options, atomic=atomic, step=step, on_cpu=on_cpu)
        return _with_quantization(graph, model)
    types = {"precision": precision, "gradients": gradients, "dtype": dtype, "autocast": autocast}
    for field, value in (types | {"granularity": None if granularity == "layer" else granularity}).items():
        if value is not None:
            raise InvalidInput(f"{field} is for estimates; name the hardware that they are for")
    layers = profile_layers(
        model,
        sample_inputs,
        mode=mode,
        warmup=warmup,
        runs=runs,
        atomic=atomic,
        device=device,
        split_backward=split_backward,
        accumulate=accumulate,
        step=step,
    )
    return layers.graph(optimizer_states=states)


def _with_quantization(graph: OpGraph, model: nn.Module) -> OpGraph:
    """Returns the graph whose estimate says which weights are quantized, and in which type their products are counted."""
    quantization = quantization_facts(model)
    if quantization is None:
        return graph
    return graph.replace(info={**graph.info, "estimate": {**graph.info["estimate"], "quantization": quantization}})
