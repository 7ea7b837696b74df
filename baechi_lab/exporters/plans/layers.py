"""The layers of a model, by the names of its ops, and the pipeline stages into which a placement cuts them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .records import Request, heaviest, is_call, stem


@dataclass(frozen=True)
class Unit:
    """A layer, or a module before or after the layers, and the device that it is written on."""

    name: str
    ops: tuple[int, ...]
    device: int


@dataclass(frozen=True)
class Stack:
    """A model as `before`, `layers` (in the order of their numbers) and `after`; `unsupported` names other stacks of layers."""

    prefix: str
    before: tuple[Unit, ...]
    layers: tuple[Unit, ...]
    after: tuple[Unit, ...]
    unsupported: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units, from input to output."""
        return (*self.before, *self.layers, *self.after)


@dataclass(frozen=True)
class Stage:
    """Units `start` to `stop` (excluded), one after the other on one device."""

    device: int
    start: int
    stop: int


def find_stack(request: Request) -> Stack:
    """Returns the stack of numbered layers (`model.layers.0`, `.1`, ...) that holds most ops, and the modules around it.

    A layer on several devices is written on the one with most of its persistent bytes. Modules between two layers count as
    `before` if they run before the last layer begins.

    Raises:
        InvalidInput: no op's name has a numbered part, or none under `request.layers`.
    """
    # The forward ops by prefix and number, for every numbered part of every op's name.
    layer_ops: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in request.forward:
        path = re.split(r"[./]", stem(request.graph.names[i]))
        for k, name in enumerate(path):
            if name.isascii() and name.isdecimal():
                layer_ops[".".join(path[:k])][int(name)].append(int(i))
    if request.layers is not None and request.layers not in layer_ops:
        prefixes = ", ".join(map(repr, sorted(layer_ops))) or "no name"
        raise InvalidInput(f"layers is {request.layers!r}; the graph has numbered layers under {prefixes}")
    if not layer_ops:
        raise InvalidInput(
            "this format cuts between numbered layers, and no op of the graph is named like 'layers.0.attention'; "
            "give a graph of bl.torch.profile"
        )
    largest = min(layer_ops, key=lambda prefix: (-sum(map(len, layer_ops[prefix].values())), len(prefix), prefix))
    prefix = largest if request.layers is None else request.layers
    ops_of_layer = layer_ops[prefix]
    last_start = max(request.graph.position[ops[0]] for ops in ops_of_layer.values())
    ops_in_layers = {i for ops in ops_of_layer.values() for i in ops}
    other_ops: dict[str, list[int]] = defaultdict(list)
    for i in request.forward:
        if i not in ops_in_layers and not is_call(request.graph, i):
            other_ops[stem(request.graph.names[i])].append(int(i))
    other_units = [
        (_unit(request, name, ops), request.graph.position[ops[0]] < last_start) for name, ops in other_ops.items()
    ]
    layer_prefix = f"{prefix}." if prefix else ""
    other_prefixes = [
        repr(p) for p in layer_ops if p != prefix and not p.startswith(layer_prefix) and len(layer_ops[p]) > 1
    ]
    other_stacks = f"one stack of layers is written, {prefix!r}; not {', '.join(other_prefixes)}"
    return Stack(
        prefix=prefix,
        before=tuple(u for u, is_before in other_units if is_before),
        layers=tuple(_unit(request, f"{layer_prefix}{number}", ops) for number, ops in sorted(ops_of_layer.items())),
        after=tuple(u for u, is_before in other_units if not is_before),
        unsupported=(other_stacks,) if other_prefixes else (),
    )


def split_into_stages(request: Request, units: Sequence[Unit], with_loops: bool = False) -> tuple[Stage, ...]:
    """Cuts the units where their device changes: one stage per device, or with `with_loops` one per device and round (`rounds`).

    A looped schedule of a pipeline runs several stages per device: 0, 1, 0, 1 are four stages on two devices, in two rounds.

    Raises:
        InvalidInput: the units go back to a device that they left; the message names the first that does.
    """
    stages: list[Stage] = []
    for i, unit in enumerate(units):
        if stages and stages[-1].device == unit.device:
            stages[-1] = Stage(unit.device, stages[-1].start, i + 1)
        else:
            stages.append(Stage(unit.device, i, i + 1))
    round_count = rounds(stages)
    if stages and (round_count == 0 or (round_count > 1 and not with_loops)):
        # Name the first unit that returns to a device which an earlier unit had left.
        first_stage: dict[int, Stage] = {}
        for stage in stages:
            earlier = first_stage.setdefault(stage.device, stage)
            if earlier is not stage:
                break
        unit = units[stage.start]
        rounds_text = ", or rounds through all devices in one order" if with_loops else ""
        raise InvalidInput(
            f"layer {unit.name!r} turns back to device {request.device_name(unit.device)}, which "
            f"{units[earlier.stop - 1].name!r} had left; a split into stages needs each device's layers in one run{rounds_text} "
            f"({_remedy(request, units, stages)})"
        )
    return tuple(stages)


def rounds(stages: Sequence[Stage]) -> int:
    """Returns how often the stages go through all devices in one order: 1 if each device has one stage, 0 if they do not.

    >>> [rounds([Stage(d, k, k + 1) for k, d in enumerate(devices)]) for devices in ((2, 0), (0, 1, 0, 1), (0, 1, 0))]
    [1, 2, 0]
    """
    devices = [s.device for s in stages]
    size = len(set(devices))
    round_count, remainder = divmod(len(devices), max(size, 1))
    return round_count if not remainder and devices == devices[:size] * round_count else 0


def _remedy(request: Request, units: Sequence[Unit], stages: Sequence[Stage]) -> str:
    """Returns the remedy: untie weights that hold two units together, or place the layers in stages."""
    first_of_group: dict[int, tuple[int, Unit]] = {}  # colocation group -> the first stage and unit of it
    for k, stage in enumerate(stages):
        for unit in units[stage.start : stage.stop]:
            for group in {int(g) for g in request.graph.colocation[list(unit.ops)]} - {-1}:
                first_index, tied_unit = first_of_group.setdefault(group, (k, unit))
                if first_index != k:
                    return (
                        f"{unit.name!r} must share a device with {tied_unit.name!r}, as tied weights do: untie them, as "
                        "tie_word_embeddings=False does in a Hugging Face configuration, or write for 'megatron' or 'vllm', "
                        "which hold them twice"
                    )
    return (
        "the placer 'contiguous' makes such plans of layers that were profiled whole, with atomic=[their class], and "
        "objective='throughput'"
    )


def spread(request: Request, units: Sequence[Unit], device: Sequence[int] | None = None) -> NDArray[np.int32]:
    """Returns int32[n]: where every op runs when `units` run on `device` (by default their own).

    Calls of plain functions run where the op before them does, backward ops where their forward op does.
    """
    written_device = np.full(request.graph.n, -1, np.int32)
    for k, unit in enumerate(units):
        written_device[list(unit.ops)] = unit.device if device is None else device[k]
    device_before = -1
    for i in request.forward:
        device_before = written_device[i] = written_device[i] if written_device[i] >= 0 else device_before
    backward = np.flatnonzero(request.graph.forward_of >= 0)
    written_device[backward] = written_device[request.graph.forward_of[backward]]
    return written_device


def stage_devices(request: Request, stages: Sequence[Stage]) -> tuple[str, ...]:
    """Returns a sentence on the device of each stage, unless these are 0, 1, 2, ..."""
    devices = [s.device for s in stages[: len(stages) // max(rounds(stages), 1)]]
    if devices == list(range(len(devices))):
        return ()
    noun = "rank" if len(devices) < len(stages) else "stage"
    stage_names = ", ".join(f"{noun} {i} is device {request.device_name(d)}" for i, d in enumerate(devices))
    return (f"the format numbers {noun}s, not devices: {stage_names}",)


def _unit(request: Request, name: str, ops: list[int]) -> Unit:
    """Makes the unit of some ops, on the device with most of their bytes."""
    return Unit(name, tuple(ops), heaviest(request, ops))
