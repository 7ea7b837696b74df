"""torch.distributed.pipelining: the modules before which the model is split (`split_spec` of `pipeline`)."""

from __future__ import annotations

import re

from ...errors import InvalidInput
from .layers import Unit, rounds, split_into_stages, spread, stage_devices
from .records import Request, Written, check_modules, is_call, stem


def write(request: Request) -> Written:
    """Returns the split points, such as `{"layers.2": "BEGINNING"}`: the outermost modules that begin where the stage changes.

    Stages may go through the devices several times in one order (0, 1, 0, 1), which needs one of torch's looped schedules: those
    that run several stages per rank, as `ScheduleInterleaved1F1B` does.

    Raises:
        InvalidInput: no op is a module's, or the modules go back to a device that they left in another order.
    """
    ops = [int(i) for i in request.forward if not is_call(request.graph, i)]
    if not ops:
        raise InvalidInput(
            "format 'pipelining' cuts between modules, and all ops of the graph are calls of plain functions; profile a model "
            "whose layers are modules"
        )
    units = [Unit(stem(request.graph.names[i]), (i,), int(request.device[i])) for i in ops]
    stages = split_into_stages(request, units, with_loops=True)
    names = [_outermost(request, units, s.start) for s in stages[1:]]
    check_modules(request, names)
    entries = "".join(f"    {name!r}: SplitPoint.BEGINNING,\n" for name in names)
    ranks = len(stages) // rounds(stages)
    within = [name for name in names if re.search(r"\.\d+\.", name)]
    if ranks < len(stages) and within:
        raise InvalidInput(
            f"the placement goes through its {ranks} devices {rounds(stages)} times and changes device within layers (at "
            f"{within[0]!r}); a plan of {ranks} stages needs whole layers in one run per device: profile with atomic=[the "
            "layers' class] and place with 'contiguous'"
        )
    loop_comment = (
        f"# {len(stages)} stages on {ranks} ranks: stage k is rank k % {ranks}'s, as in ScheduleInterleaved1F1B.\n"
    )
    spec = f"{loop_comment if ranks < len(stages) else ''}split_spec = {{\n{entries}}}\n"
    text = f"from torch.distributed.pipelining import SplitPoint\n\n{spec}"
    return Written(dict.fromkeys(names, "BEGINNING"), text, spread(request, units), stage_devices(request, stages))


def _outermost(request: Request, units: list[Unit], start: int) -> str:
    """Returns the shortest prefix of the module's name that no module before it shares, and that is called.

    A container of numbered modules may be a `ModuleList`, which is never called: PyTorch would silently not split there.
    Where the model is given, it says which modules have a forward.
    """
    path = units[start].name.split(".")
    lengths = [k for k in range(1, len(path) + 1) if k == len(path) or not path[k].isdecimal()]
    prefixes = [".".join(path[:k]) for k in lengths]
    modules = dict(request.model.named_modules()) if hasattr(request.model, "named_modules") else {}
    prefixes = [
        p for p in prefixes if p not in modules or type(modules[p]).forward.__name__ != "_forward_unimplemented"
    ]
    earlier = [f"{u.name}." for u in units[:start]]
    free = [p for p in prefixes if not any(name.startswith(f"{p}.") for name in earlier)]
    if not free:
        raise InvalidInput(f"module {units[start].name!r} is called on both sides of a split; put it on one stage")
    return free[0]
