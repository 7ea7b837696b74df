"""Megatron-LM: `--pipeline-model-parallel-layout`, where E is the embedding, t a layer, L the loss and | ends a stage.

Source: Megatron Core, user guide, "Custom pipeline model parallel layout".
"""

from __future__ import annotations

from .layers import Stage, Unit, find_stack, split, spread, stage_devices
from .records import Request, Written


def write(request: Request) -> Written:
    """The two options; modules before the layers are E, in the first stage, those after them L, in the last."""
    stack = find_stack(request)
    layers = split(request, stack.layers)
    first = _end(stack.before[:1], layers[0].device)
    last = _end(stack.after[-1:], layers[-1].device)
    runs = [(s.device, f"t*{s.stop - s.start}" if s.stop - s.start > 1 else "t") for s in layers]
    own_first, own_last = first not in {s.device for s in layers}, last not in {first, *(s.device for s in layers)}
    runs = [(first, "E"), *runs] if own_first else [(runs[0][0], "E" + runs[0][1]), *runs[1:]]
    runs = [*runs, (last, "L")] if own_last else [*runs[:-1], (runs[-1][0], runs[-1][1] + "L")]
    layout = "|".join(text for _, text in runs)
    device = [runs[0][0]] * len(stack.before) + [u.device for u in stack.layers] + [runs[-1][0]] * len(stack.after)
    text = f'--pipeline-model-parallel-size {len(runs)} --pipeline-model-parallel-layout "{layout}"\n'
    stages = [Stage(d, i, i + 1) for i, (d, _) in enumerate(runs)]
    return Written(layout, text, spread(request, stack.units, device), (*stack.lost, *stage_devices(request, stages)))


def _end(units: tuple[Unit, ...], otherwise: int) -> int:
    return units[0].device if units else otherwise
