"""accelerate and transformers: `device_map`, from a module's name to a GPU's number or "cpu".

Idea: accelerate moves what a module of the map reads to that module's device, and nothing else. A map runs as written where
no code between its modules meets tensors of two devices. So four kinds of modules stay together:

- A module whose own code calls functions, such as a decoder layer with its residual additions, is one entry.
- Modules whose outputs meet in the code of a module around the layers share a device: embeddings of tokens and positions.
- If they meet an input there, such as a mask, they are on the main device, where accelerate has the inputs.
- Modules that share a tensor share a device.

Every parameter and buffer is covered. Complexity: O((ops + edges) * modules that are moved).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput
from .records import Request, Written, heaviest, is_call, stem

if TYPE_CHECKING:
    from torch import nn


def write(request: Request) -> Written:
    """Returns the map as JSON, such as `{"embed": 0, "layers.0": 0, "layers.1": 1}`.

    Raises:
        InvalidInput: no `model`, or one whose modules do not occur among the graph's ops.
    """
    model = request.model
    if not hasattr(model, "named_modules"):
        description = "missing" if model is None else f"a {type(model).__name__}"
        raise InvalidInput(f"model is {description}; a device_map needs the PyTorch model of the graph")
    units = _Units(request, dict(model.named_modules(remove_duplicate=False)))
    unsupported_features = [*units.keep_tied(), *units.keep_inputs_of_calls()]
    module_devices, unused = units.module_devices()
    if unused:
        unsupported_features.append(
            f"no op of the graph uses {', '.join(map(repr, unused))}; they go with the first op"
        )
    # A module whose parts share a device is one entry.
    within: dict[str, set[int]] = defaultdict(set)
    for name, device in module_devices.items():
        path = name.split(".") if name else []
        for k in range(len(path) + 1):
            within[".".join(path[:k])].add(device)
    entries: dict[str, int] = {}
    for name in sorted(within, key=lambda n: n.count(".") + 1 if n else 0):
        path = name.split(".") if name else []
        is_covered = any(".".join(path[:k]) in entries for k in range(len(path)))
        if len(within[name]) == 1 and not is_covered:
            entries[name] = next(iter(within[name]))
    order = {name: k for k, name in enumerate(units.modules)}
    entries = dict(sorted(entries.items(), key=lambda e: order.get(e[0], order.get(e[0].rpartition(".")[0], 0))))
    names = {d: request.accelerators().get(d, "cpu") for d in {*entries.values()}}
    value = {name: names[d] for name, d in entries.items()}
    unsupported_features = [*units.split_blocks(), *unsupported_features, *units.compare_with_inputs()]
    tensors = [name for name in value if name not in units.modules]
    if tensors:
        tensor_names = ", ".join(map(repr, tensors))
        unsupported_features.append(
            f"accelerate places modules; {tensor_names} are parameters or buffers of modules over several devices"
        )
    on_cpu = [name for name, device in value.items() if device == "cpu"]
    if 0 < len(on_cpu) < len(value):
        tensor_names = ", ".join(on_cpu[:3])
        unsupported_features.append(
            f"accelerate keeps the weights of 'cpu' modules ({tensor_names}, ...) there and runs them on a GPU"
        )
    cpus = sorted(d for d, name in names.items() if name == "cpu")
    if len(cpus) > 1:
        unsupported_features.append(f"{', '.join(map(request.device_name, cpus))} are all 'cpu'")
    graph = units.request.graph
    written_device = np.full(graph.n, -1, np.int32)
    for i in units.ops:
        unit = units.unit[i]
        if isinstance(unit, str) or unit in units.parent or not units.parents[i]:
            written_device[i] = units.device_of(unit)
    backward = np.flatnonzero(graph.forward_of >= 0)
    written_device[backward] = written_device[graph.forward_of[backward]]
    return Written(value, json.dumps(value, indent=2) + "\n", written_device, tuple(unsupported_features))


_LOSS = re.compile("loss|cross_entropy|kl_div")
"""Types of calls that compare outputs with targets."""


class _Units:
    """The units that have one device in the map: whole blocks, modules, and calls in the code around the blocks.

    A unit is named as its module, a call by its op. `parent` is a union-find forest of units that share a device, whose
    roots are the first units in code order; their device counts.
    """

    def __init__(self, request: Request, modules: dict[str, nn.Module]):
        self.request, self.modules = request, modules
        graph = request.graph
        self.ops = [int(i) for i in request.forward]
        self.parents: dict[int, list[int]] = defaultdict(list)
        for source, target in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True):
            self.parents[target].append(source)
        self.owner: dict[int, str] = {}
        self.calls: dict[str, list[int]] = defaultdict(list)  # the ops of a module's own code
        own_ops = {name for i in self.ops if (name := self._module_of(i)) is not None}
        for i in self.ops:
            name = self._module_of(i)
            self.owner[i] = stem(graph.names[i]).partition("/")[0] if name is None else name
            if self.owner[i] not in modules:
                self.owner[i] = ""
            if name is None and self.owner[i] not in own_ops:
                self.calls[self.owner[i]].append(i)
        if not own_ops and not (self.ops and all(is_call(graph, i) for i in self.ops)):
            raise InvalidInput("model has no module that is an op of the graph; give the model that was profiled")
        # The outermost modules whose own code calls functions and that do not hold the layers (numbered modules with parts).
        blocks: set[str] = set()
        below: dict[str, set[bool]] = defaultdict(set)  # module -> for numbered modules below it: has it parts?
        for name, module in self.modules.items():
            path = name.split(".")
            if path[-1].isdecimal():
                for k in range(len(path)):
                    below[".".join(path[:k])].add(any(True for _ in module.children()))
        for name in self.modules:
            if name not in self.calls or not name or _enclosing(name, blocks) is not None:
                continue
            is_numbered = name.rpartition(".")[2].isdecimal()
            if is_numbered or True not in below[name]:
                blocks.add(name)
        self.blocks = blocks
        self.unit: dict[int, str | int] = {i: self._unit(i) for i in self.ops}
        self.parent: dict[str | int, str | int] = {}
        self.order: dict[str | int, int] = {}
        self.device: dict[str | int, int] = {}
        members: dict[str | int, list[int]] = defaultdict(list)
        for i in self.ops:
            members[self.unit[i]].append(i)
        for unit, ops in members.items():
            self.order[unit] = len(self.order)
            self.device[unit] = heaviest(request, ops)
        self.members = members

    # -- units -----------------------------------------------------------------------------------------

    def _module_of(self, op: int) -> str | None:
        """Returns the module that an op runs; None for a call of a function."""
        name = stem(self.request.graph.names[op])
        if name in self.modules:
            return name
        return "" if name == type(self.request.model).__name__.lower() else None

    def _unit(self, op: int) -> str | int:
        block = _enclosing(self.owner[op], self.blocks)
        if block is not None:
            return block
        return op if op in self.calls[self.owner[op]] else self.owner[op]

    def root(self, unit: str | int) -> str | int:
        """Returns the unit whose device a unit shares."""
        while unit in self.parent:
            unit = self.parent[unit]
        return unit

    def device_of(self, unit: str | int) -> int:
        return self.device[self.root(unit)]

    def runs_on(self, unit: str | int) -> int:
        """Returns the device on which a unit's modules compute: accelerate runs CPU modules on its main device."""
        device = self.device_of(unit)
        return device if device in self.request.accelerators() else self.main()

    def main(self) -> int:
        """Returns accelerate's main device, the lowest GPU of the map: it has the inputs and the model's own parameters."""
        devices = {self.device_of(u) for u in self.device if isinstance(u, str)} or {
            self.device_of(next(iter(self.order)))
        }
        gpus = self.request.accelerators()
        return min(devices, key=lambda d: (d not in gpus, d))

    def join(self, units: list[str | int]) -> int:
        """Gives units the device of the first of them in code order, and returns it."""
        first, *other_roots = sorted({self.root(u) for u in units}, key=self.order.__getitem__)
        self.parent.update(dict.fromkeys(other_roots, first))
        return self.device[first]

    # -- what must share a device ------------------------------------------------------------------------

    def keep_tied(self) -> list[str]:
        """Joins modules that share a tensor; returns a sentence for each tensor whose modules were on several devices."""
        sentences = []
        for names in self._tensors().values():
            users = [u for name in names if (u := self._user(name)) is not None]
            is_separated = len({self.device_of(u) for u in users}) > 1
            device = self.join(users) if len(users) > 1 else None
            if is_separated and device is not None:
                device_name = self.request.device_name(device)
                sentences.append(f"{' and '.join(map(repr, names))} are one tensor, kept whole on {device_name}")
        return sentences

    def keep_inputs_of_calls(self) -> list[str]:
        """Joins modules whose outputs meet in code around the blocks; returns a sentence if that moves one."""
        graph = self.request.graph
        around = [i for i in self.ops if self.unit[i] == i]
        on_main = self._calls_on_main(around)
        unit_path: list[int] = []
        has_changed = True
        while has_changed:
            has_changed = False
            for i in around:
                parents = [self.unit[p] for p in self.parents[i] if p in self.unit]
                sources = [u for u in parents if u in self.modules or self.root(u) != u]
                devices = {self.runs_on(u) for u in sources}
                if len(devices | ({self.main()} if i in on_main and sources else set())) > 1:
                    main = self.main()
                    self.join(sources)
                    if i in on_main:
                        self.device[self.root(sources[0])] = main
                    unit_path.append(i)
                    has_changed = True
                if sources and self.root(i) != self.root(sources[0]):
                    self.parent[self.root(i)] = self.root(sources[0])
                    has_changed = True
        if not unit_path:
            return []
        names = [graph.names[i] for i in unit_path]
        more_text = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [
            f"accelerate moves what modules read, not what code between them reads ({', '.join(names[:3])}{more_text}); modules "
            "whose outputs meet there are kept on one device"
        ]

    def _calls_on_main(self, around: list[int]) -> set[int]:
        """Returns the calls that read something on the main device.

        On it are the model's own parameters, its inputs, and what calls compute from these alone. Losses are left out; see
        `compare_with_inputs`.
        """
        graph = self.request.graph
        batch_readers = set(graph.batch_readers)
        on_main: set[int] = set()
        only_main: set[int] = set()
        for i in around:
            has_model_parameters = graph.persistent_bytes[i] > 0 and self.owner[i] == ""
            parents = self.parents[i]
            if has_model_parameters or graph.names[i] in batch_readers or not only_main.isdisjoint(parents):
                if not _LOSS.search(graph.op_types[i]):
                    on_main.add(i)
                if only_main.issuperset(parents):
                    only_main.add(i)
        return on_main

    def compare_with_inputs(self) -> list[str]:
        """Returns a sentence if a loss in the model's code runs off the main device, where its targets are."""
        graph, main = self.request.graph, self.main()
        losses = [
            i for i in self.ops if self.unit[i] == i and _LOSS.search(graph.op_types[i]) and self.runs_on(i) != main
        ]
        if not losses:
            return []
        device_name = self.request.device_name(self.device_of(losses[0]))
        return [
            f"accelerate has the inputs on {self.request.device_name(main)} and {graph.names[losses[0]]!r} reads outputs on "
            f"{device_name}: give labels there, unless the model moves them, as most of transformers do"
        ]

    def split_blocks(self) -> list[str]:
        """Returns a sentence if blocks were planned on several devices."""
        device = self.request.device
        split = [
            b
            for b in sorted(self.blocks, key=list(self.modules).index)
            if len({int(device[i]) for i in self.members[b]}) > 1
        ]
        if not split:
            return []
        more_text = f" and {len(split) - 3} more" if len(split) > 3 else ""
        return [
            f"{', '.join(map(repr, split[:3]))}{more_text} call functions between their modules and are kept whole, each on the "
            "device that has most of it"
        ]

    # -- parameters and ops --------------------------------------------------------------------------------

    def _tensors(self) -> dict[int, list[str]]:
        """Returns id of a parameter or buffer -> all its names."""
        names: dict[int, list[str]] = defaultdict(list)
        for name, module in self.modules.items():
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                names[id(tensor)].append(f"{name}.{key}" if name else key)
        return names

    def _user(self, tensor: str) -> str | int | None:
        """Returns the unit of a parameter: its module, or the block around it."""
        return _enclosing(tensor.rpartition(".")[0], self.device)

    def _nearest(self, tensor: str) -> str | int | None:
        """Returns the unit of a parameter outside units: a call around it that reads parameters, else the first unit inside."""
        module = tensor.rpartition(".")[0]
        path = module.split(".") if module else []
        for k in range(len(path), -1, -1):
            calls = self.calls.get(name := ".".join(path[:k]), [])
            reading = [i for i in calls if self.request.graph.persistent_bytes[i] > 0]
            if reading:
                return self.unit[reading[0]]
            if k == len(path) or k == 0:
                inside = [u for u in self.device if isinstance(u, str) and u.startswith(f"{name}.".removeprefix("."))]
                if inside and (name or not module):
                    return inside[0]
        return None

    def module_devices(self) -> tuple[dict[str, int], list[str]]:
        """Returns module, parameter or buffer -> device, and the parameters and buffers that no op uses."""
        devices = {unit: self.device_of(unit) for unit in self.device if isinstance(unit, str)}
        first, unused = self.device_of(next(iter(self.order))), []
        for names in self._tensors().values():
            users = [u for name in names if (u := self._user(name)) is not None]
            users = users or [u for name in names if (u := self._nearest(name)) is not None]
            devices.update(dict.fromkeys(names, self.device_of(users[0]) if users else first))
            unused += [] if users else names
        return devices or {"": first}, unused


def _enclosing(name: str, units: Container[str | int]) -> str | None:
    """Returns the name, or the nearest enclosing module, that is in `units`; the root model only for itself."""
    while name not in units:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return name
