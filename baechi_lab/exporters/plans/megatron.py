"""Megatron-LM: `--pipeline-model-parallel-layout`, where E is the embedding, t a layer, L the loss and | ends a stage.

Source: Megatron Core, user guide, "Custom pipeline model parallel layout".
"""

from __future__ import annotations

from .layers import Stage, Unit, find_stack, rounds, split_into_stages, spread, stage_devices
from .records import Request, Written


def write(request: Request) -> Written:
    """Returns the two options; modules before the layers are E, in the first stage, those after them L, in the last.

    Stages that go through the devices several times in one order are virtual ones: stage k is rank k % size's.
    """
    stack = find_stack(request)
    layers = split_into_stages(request, stack.layers, with_loops=True)
    once = rounds(layers) == 1
    first = _end(stack.before[:1], layers[0].device)
    last = _end(stack.after[-1:], layers[-1].device)
    stages_text = [(s.device, f"t*{s.stop - s.start}" if s.stop - s.start > 1 else "t") for s in layers]
    # A stage of its own would break the rounds: the end goes with the layers beside it, which `unsupported` says.
    own_first = once and first not in {s.device for s in layers}
    own_last = once and last not in {first, *(s.device for s in layers)}
    if own_first:
        stages_text.insert(0, (first, ""))
    if own_last:
        stages_text.append((last, ""))
    stages_text[0] = (stages_text[0][0], "E" + stages_text[0][1])
    stages_text[-1] = (stages_text[-1][0], stages_text[-1][1] + "L")
    layout = "|".join(text for _, text in stages_text)
    device = (
        [stages_text[0][0]] * len(stack.before)
        + [u.device for u in stack.layers]
        + [stages_text[-1][0]] * len(stack.after)
    )
    size = len(stages_text) // rounds(layers)
    text = f'--pipeline-model-parallel-size {size} --pipeline-model-parallel-layout "{layout}"\n'
    stages = [Stage(d, i, i + 1) for i, (d, _) in enumerate(stages_text)]
    return Written(
        layout, text, spread(request, stack.units, device), (*stack.unsupported, *stage_devices(request, stages))
    )


def _end(units: tuple[Unit, ...], otherwise: int) -> int:
    return units[0].device if units else otherwise
