"""llama.cpp: `--tensor-split` (layers per GPU) and `--override-tensor` (-ot) patterns for what it cannot say.

With all layers offloaded, GPU g takes the layers from the sum of the shares before it on; the output counts as one more
layer. A pattern is a regular expression searched in the names of tensors: `blk.N.` for layer N, `output` for the head.
"""

from __future__ import annotations

from .layers import Stack, find_stack, spread
from .records import Request, Written, heaviest


def write(request: Request) -> Written:
    """The options, for example `-ngl 999 -sm layer -ts 3,2 -ot "blk\\.(0|1)\\.=CPU"`."""
    stack = find_stack(request)
    gpus = request.accelerators()
    planned = [u.device for u in stack.layers]
    head = heaviest(request, [i for u in stack.after for i in u.ops]) if stack.after else planned[-1]
    wanted = [gpus.get(d) for d in (*planned, head)]
    base = _rising(wanted, len(gpus)) if gpus else []
    shares = [base.count(g) for g in range(len(gpus))]
    overrides = _overrides(wanted, base) if gpus else []
    value = {"tensor_split": shares, "override_tensor": overrides}
    split = f" -sm layer -ts {','.join(map(str, shares))}" if gpus else ""
    options = "".join(f' -ot "{pattern}"' for pattern in overrides)
    text = f"-ngl {999 if gpus else 0}{split}{options}\n"
    device = [_cpu(request, u.device) for u in stack.before] + planned + [head] * len(stack.after)
    return Written(value, text, spread(request, stack.units, device), (*stack.lost, *_lost(request, stack, overrides)))


def _rising(wanted: list[int | None], gpus: int) -> list[int]:
    """The GPU that --tensor-split gives each layer: never a lower one than the layer before, fewest not as wanted.

    Layers wanted on a CPU (None) go along with any.
    """
    costs = [0] * gpus
    choices = []
    for target in wanted:
        best = [min(range(g + 1), key=lambda h: (costs[h], -h)) for g in range(gpus)]
        choices.append(best)
        costs = [costs[best[g]] + (target not in (g, None)) for g in range(gpus)]
    base = [min(range(gpus), key=costs.__getitem__)]
    for best in reversed(choices[1:]):
        base.append(best[base[-1]])
    return base[::-1]


def _overrides(wanted: list[int | None], base: list[int]) -> list[str]:
    """One pattern per device for the layers whose planned device is not the one that the split gives."""
    patterns = []
    for target in dict.fromkeys(wanted[:-1]):
        layers = [i for i, gpu in enumerate(wanted[:-1]) if gpu == target and gpu != base[i]]
        if layers:
            patterns.append(rf"^blk\.({'|'.join(map(str, layers))})\.={_buffer(target)}")
    if wanted[-1] != base[-1]:
        patterns.append(f"^output={_buffer(wanted[-1])}")
    return patterns


def _buffer(gpu: int | None) -> str:
    return "CPU" if gpu is None else f"CUDA{gpu}"


def _cpu(request: Request, planned: int) -> int:
    """Where input embeddings run, which llama.cpp keeps on the CPU; -1 (not said) without a CPU in the cluster."""
    devices = () if request.cluster is None else request.cluster.devices
    cpus = [d for d, device in enumerate(devices) if device.family == "cpu"]
    return planned if planned in cpus else cpus[0] if cpus else -1


def _lost(request: Request, stack: Stack, overrides: list[str]) -> tuple[str, ...]:
    lost = []
    if stack.before:
        lost.append("llama.cpp keeps input embeddings on the CPU, wherever they were planned")
    if overrides:
        lost.append(
            "-ot moves weights only: the key-value cache of those layers stays where --tensor-split puts the layer"
        )
    cpus = sorted({u.device for u in (*stack.layers, *stack.after)} - request.accelerators().keys())
    if len(cpus) > 1:
        lost.append(f"{', '.join(map(request.device_name, cpus))} are all 'CPU'")
    numbers = [int(u.name.rpartition(".")[2]) for u in stack.layers]
    if numbers != list(range(len(numbers))):
        lost.append(f"layers are numbered {numbers}; llama.cpp counts from 0 without gaps")
    return tuple(lost)
