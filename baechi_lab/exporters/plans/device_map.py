"""accelerate and transformers: `device_map`, from a module's name to a GPU's number or "cpu".

Every parameter and buffer is covered, one parameter under several names has one device, and a module that is whole on a
device is one entry.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .records import Request, Written, is_call, stem


def write(request: Request) -> Written:
    """`{"embed": 0, "layers.0": 0, "layers.1": 1}`.

    Raises:
        InvalidInput: no `model`, or one whose modules are none of the graph's ops.
    """
    model = request.model
    if not hasattr(model, "named_modules"):
        raise InvalidInput(f"model is a {type(model).__name__}; a device_map needs the PyTorch model of the graph")
    modules = dict(model.named_modules(remove_duplicate=False))
    home, lost = _homes(request, modules)
    entries = _entries(modules, home)
    names = {d: _torch_name(request, d) for d in {*entries.values()}}
    value = {name: names[d] for name, d in entries.items()}
    written = _written(request, entries)
    lost = [*lost, *_direct(modules, value), *_offloaded(value), *_same(request, names), *_between(request, written)]
    return Written(value, json.dumps(value, indent=2) + "\n", written, tuple(lost))


def _homes(request: Request, modules: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Module, parameter or buffer -> device: of its own op, else of the nearest module's that has one."""
    ran: dict[str, int] = {}
    around: dict[str, int] = {}
    for i in request.forward:
        name, device = stem(request.graph.names[i]), int(request.device[i])
        if is_call(request.graph, i):
            around.setdefault(name.rpartition("/")[0], device)
        elif name in modules or name == type(request.model).__name__.lower():
            ran.setdefault(name if name in modules else "", device)
    own = set(ran)
    ran = {**around, **ran}  # modules without an op of their own are where the first call inside them is
    calls_only = all(is_call(request.graph, i) for i in request.forward)
    if not ran or not (own or calls_only):
        raise InvalidInput("model has no module that is an op of the graph; give the model that was profiled")
    groups: dict[int, list[str]] = defaultdict(list)
    for name, module in modules.items():
        for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            groups[id(tensor)].append(f"{name}.{key}" if name else key)
    lost = _tie(request, groups, ran)
    home = {name: device for name, device in ran.items() if name in own}
    unused = []
    for names in groups.values():
        ops = [op for name in names if (op := _nearest(name.rpartition(".")[0], ran)) is not None]
        home.update(dict.fromkeys(names, ran[ops[0]] if ops else next(iter(ran.values()))))
        unused += names if not ops else []
    if unused:
        lost.append(f"no op of the graph uses {', '.join(map(repr, unused))}; they go with the first op")
    return home or {"": next(iter(ran.values()))}, lost


def _tie(request: Request, groups: dict[int, list[str]], ran: dict[str, int]) -> list[str]:
    """Give the ops that share a tensor the device of the first of them, in `ran`; a sentence for each that moved.

    A device only ever goes from a module to a later one, so that this ends where tensors are shared in chains.
    """
    shared = [names for names in groups.values() if len(names) > 1]
    lost: dict[str, None] = {}
    again = True
    while again:
        again = False
        for names in shared:
            ops = [op for name in names if (op := _nearest(name.rpartition(".")[0], ran)) is not None]
            if len({ran[op] for op in ops}) > 1:
                again = True
                device = ran[ops[0]]
                ran.update(dict.fromkeys(ops, device))
                lost[
                    f"{' and '.join(map(repr, names))} are one tensor, kept whole on {request.device_name(device)}"
                ] = None
    return list(lost)


def _nearest(module: str, ran: dict[str, int]) -> str | None:
    """The op of a module, of the module around it that ran as one op, or the first op inside it."""
    parts = module.split(".")
    for k in range(len(parts), 0, -1):
        if (name := ".".join(parts[:k])) in ran:
            return name
    inside = f"{module}." if module else ""
    return next((name for name in ran if name.startswith(inside)), None)


def _entries(modules: dict[str, Any], home: dict[str, int]) -> dict[str, int]:
    """The fewest entries: a module whose parts are all on one device stands for them."""
    within: dict[str, set[int]] = defaultdict(set)
    for name, device in home.items():
        parts = name.split(".") if name else []
        for k in range(len(parts) + 1):
            within[".".join(parts[:k])].add(device)
    entries: dict[str, int] = {}
    for name in sorted(within, key=lambda n: n.count(".") + 1 if n else 0):
        parts = name.split(".") if name else []
        covered = any(".".join(parts[:k]) in entries for k in range(len(parts)))
        if len(within[name]) == 1 and not covered:
            entries[name] = next(iter(within[name]))
    order = {name: k for k, name in enumerate(modules)}
    return dict(sorted(entries.items(), key=lambda e: order.get(e[0], order.get(e[0].rpartition(".")[0], 0))))


def _torch_name(request: Request, device: int) -> int | str:
    return request.accelerators().get(device, "cpu")


def _written(request: Request, entries: dict[str, int]) -> NDArray[Any]:
    """Where each op runs: with its entry; a call with that of the module around it, where that is whole."""
    written = np.full(request.graph.n, -1, np.int32)
    for i in request.forward:
        name = stem(request.graph.names[i])
        parts = (name.rpartition("/")[0] if is_call(request.graph, i) else name).split(".")
        around = ["", *(".".join(parts[: k + 1]) for k in range(len(parts)))]
        written[i] = next((entries[name] for name in around if name in entries), -1)
    backward = np.flatnonzero(request.graph.forward_of >= 0)
    written[backward] = written[request.graph.forward_of[backward]]
    return written


def _direct(modules: dict[str, Any], value: dict[str, Any]) -> list[str]:
    direct = [name for name in value if name not in modules]
    if not direct:
        return []
    return [
        f"accelerate places modules; {', '.join(map(repr, direct))} are parameters or buffers of modules over several devices"
    ]


def _offloaded(value: dict[str, Any]) -> list[str]:
    cpu = [name for name, device in value.items() if device == "cpu"]
    if not cpu or len(cpu) == len(value):
        return []
    return [f"accelerate keeps the weights of 'cpu' modules ({', '.join(cpu[:3])}, ...) there and runs them on a GPU"]


def _same(request: Request, names: dict[int, int | str]) -> list[str]:
    cpus = [d for d, name in names.items() if name == "cpu"]
    if len(cpus) < 2:
        return []
    return [f"{', '.join(request.device_name(d) for d in sorted(cpus))} are all 'cpu'"]


def _between(request: Request, written: NDArray[Any]) -> list[str]:
    """Calls in modules that are not whole: nothing moves what they read to one device."""
    graph = request.graph
    meets: dict[int, set[int]] = defaultdict(set)
    for source, target in zip(graph.edge_source, graph.consumers, strict=True):
        if written[target] < 0 and graph.forward_of[target] < 0:
            meets[int(target)].add(int(request.device[source]))
    names = [graph.names[i] for i in sorted(meets) if len(meets[i]) > 1]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [
        f"calls outside of whole modules read tensors of several devices ({', '.join(names[:3])}{more}); accelerate moves "
        "what modules read and nothing else: keep each block whole (atomic=), or make the call a module"
    ]
