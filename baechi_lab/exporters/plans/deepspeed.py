"""DeepSpeed: the parts of a `PipelineModule`, whose stage k builds the layers from `parts[k]` to `parts[k + 1]`.

`partition_method` itself knows "uniform", "parameters" and "type:regex" and no parts given by hand; where one of the first
two cannot be what was planned, a subclass sets the bounds.
"""

from __future__ import annotations

from .layers import find_stack, split_into_stages, spread, stage_devices
from .records import Request, Written, check_modules

SUBCLASS = """\
from deepspeed.pipe import PipelineModule

PARTS = {parts}
LAYERS = [  # the list that PipelineModule is given, one entry each
{layers}
]


class PlannedPipeline(PipelineModule):
    def _partition_layers(self, method="planned"):
        self.parts = PARTS
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])
"""


def write(request: Request) -> Written:
    """Returns the division of the layers, and a subclass of `PipelineModule` that follows it.

    The division is such as `{"parts": [0, 5, 9], "num_stages": 2, "layers": [...]}`.
    """
    stack = find_stack(request)
    stages = split_into_stages(request, stack.units)
    names = [u.name for u in stack.units]
    check_modules(request, names)
    bounds = [0, *(s.stop for s in stages)]
    value = {"num_stages": len(stages), "parts": bounds, "layers": names}
    text = SUBCLASS.format(parts=bounds, layers="\n".join(f"    {name!r}," for name in names))
    unsupported_features = (
        *stack.unsupported,
        "partition_method takes no parts given by hand; the text is a subclass of PipelineModule that sets them",
        *stage_devices(request, stages),
    )
    return Written(value, text, spread(request, stack.units), unsupported_features)
