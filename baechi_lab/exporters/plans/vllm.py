"""vLLM: hidden layers per pipeline stage, in the environment variable `VLLM_PP_LAYER_PARTITION`.

Its numbers add up to the model's hidden layers; embeddings go with the first stage, norm and head with the last.
"""

from __future__ import annotations

from .layers import find_stack, split_into_stages, spread, stage_devices
from .records import Request, Written


def write(request: Request) -> Written:
    """Returns the environment variable, such as `VLLM_PP_LAYER_PARTITION=4,8`, with the number of stages."""
    stack = find_stack(request)
    stages = split_into_stages(request, stack.layers)
    value = ",".join(str(s.stop - s.start) for s in stages)
    first, last = stages[0].device, stages[-1].device
    device = [first] * len(stack.before) + [u.device for u in stack.layers] + [last] * len(stack.after)
    text = f"VLLM_PP_LAYER_PARTITION={value}  # with --pipeline-parallel-size {len(stages)}\n"
    unsupported_features = (*stack.unsupported, *stage_devices(request, stages))
    return Written(value, text, spread(request, stack.units, device), unsupported_features)
