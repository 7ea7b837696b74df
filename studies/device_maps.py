"""Our device maps against accelerate's own, in simulation and, for small models, on this machine.

    python -m studies.device_maps -o studies/results/device_maps.json

Ten configurations: a model of the architectures below on the meta device, estimated for its devices, on clusters of equal
and of different memory and speed. accelerate's map is `infer_auto_device_map` within `get_balanced_memory`; ours is what
`bl.write_plan` makes of the fastest of a few placements. Both maps are read back in the same way (an op runs where the
map has its module) and simulated on the same graph, so that what a map cannot say is lost for both.

`covered` counts parameters that a map covers, `whole` says whether every tied weight has one device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from baechi_lab.errors import InfeasiblePlacement, InvalidInput
from baechi_lab.exporters.plans import write_plan
from baechi_lab.graph import Cluster, Device, Link, OpGraph, Placement
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from studies.results import result, store

PLACERS: dict[str, dict[str, Any]] = {
    "auto": {},
    "contiguous": {},
    "m-sct": {},
    "search": {"time_limit": None, "evaluations": 5000, "seed": 0},
}
QUICK: dict[str, dict[str, Any]] = {"contiguous": {}, "m-sct": {}}
"""Placers for small steps whose durations were measured: what they gain is within what durations vary."""
PCIE = Link(10.0, 1 / 25_000)


@dataclass(frozen=True)
class Configuration:
    """A model, how it is used, and a cluster: hardware by device, and what each holds in shares of the parameters' bytes."""

    model: str
    mode: str
    hardware: tuple[str, ...]
    shares: tuple[float, ...]


CONFIGURATIONS = (
    Configuration("bert", "inference", ("a100",) * 2, (1.0, 1.0)),
    Configuration("bert", "training", ("a100",) * 4, (1.5,) * 4),
    Configuration("gpt2", "inference", ("a100",) * 4, (0.8,) * 4),
    Configuration("gpt2", "inference", ("a100",) * 4, (1.0, 0.8, 0.5, 0.3)),
    Configuration("llama", "inference", ("a100",) * 4, (0.7,) * 4),
    Configuration("llama", "inference", ("a100", "a100", "l4", "l4"), (0.5, 0.5, 0.8, 0.8)),
    Configuration("llama", "training", ("h100", "a100", "a100", "a100"), (2.5, 1.0, 1.0, 1.0)),
    Configuration("opt", "inference", ("l4", "a100"), (0.8, 0.8)),
    Configuration("t5", "inference", ("a100",) * 3, (1.0, 0.7, 0.5)),
    Configuration("vit", "training", ("l4", "h100"), (6.0, 8.0)),
)


SMALL_STEPS: dict[str, dict[str, Any]] = {
    "bert": {"layers": 2, "width": 64, "heads": 4, "inner": 128, "length": 32, "vocabulary": 1000},
    "gnmt": {"layers": 2, "width": 32, "length": 5, "vocabulary": 500},
    "resnet50": {"image_size": 32, "width": 8, "blocks": (1, 1), "classes": 5},
    "transformer": {"width": 64, "heads": 4, "inner": 128, "length": 16, "vocabulary": 1000},
}
"""Training steps of `bl.torch.models` that run here in milliseconds: their sizes."""
MEASURED = (
    ("bert", (0.8, 0.8)),
    ("bert", (0.9, 0.5)),
    ("bert", (0.6, 0.6, 0.6)),
    ("gnmt", (0.8, 0.8)),
    ("gnmt", (0.9, 0.6)),
    ("resnet50", (0.8, 0.8)),
    ("resnet50", (0.7, 0.6, 0.5)),
    ("transformer", (0.8, 0.8)),
    ("transformer", (0.9, 0.5)),
    ("transformer", (0.7, 0.5, 0.5)),
)
"""What is run: a step, and what each device holds in shares of the step's peak on one device."""


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """A model of that architecture on the meta device, and inputs for it.

    Raises:
        InvalidInput: no such architecture.
    """
    import torch
    import transformers as hf

    tokens = {"input_ids": torch.zeros((4, 256), dtype=torch.long, device="meta")}
    small: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}
    builders: dict[str, Any] = {
        "bert": lambda: (hf.BertModel, hf.BertConfig(**small, intermediate_size=4096), tokens),
        "gpt2": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1024, n_layer=12, n_head=16), tokens),
        "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**small, intermediate_size=2816), tokens),
        "opt": lambda: (
            hf.OPTForCausalLM,
            hf.OPTConfig(**small, ffn_dim=4096, word_embed_proj_dim=1024),
            tokens,
        ),
        "t5": lambda: (
            hf.T5ForConditionalGeneration,
            hf.T5Config(d_model=768, d_ff=3072, num_layers=8, num_heads=12),
            {**tokens, "decoder_input_ids": torch.zeros((4, 64), dtype=torch.long, device="meta")},
        ),
        "vit": lambda: (
            hf.ViTModel,
            hf.ViTConfig(**small, intermediate_size=4096),
            {"pixel_values": torch.zeros((16, 3, 224, 224), device="meta")},
        ),
    }
    if name not in builders:
        raise InvalidInput(f"model is {name!r}; it must be one of {', '.join(builders)}")
    model, config, inputs = builders[name]()
    config.use_cache = False
    with torch.device("meta"):
        return model(config), inputs


def parameters(model: Any) -> dict[int, list[str]]:
    """Tensor (by id) -> its names; tied ones have several."""
    names_of_parameter: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names_of_parameter.setdefault(id(tensor), []).append(name)
    return names_of_parameter


def home(name: str, device_map: dict[str, Any]) -> Any:
    """The device of a parameter or module: of the longest entry that it lies in; None where none covers it.

    >>> home("layers.0.weight", {"layers": 0, "layers.0": 1}), home("head.bias", {"layers": 0})
    (1, None)
    """
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def read_back(graph: OpGraph, device_map: dict[str, Any]) -> Placement:
    """Every op on the device of its module; a call between modules stays with the op before it, groups stay together."""
    device, last_device = np.zeros(graph.n, dtype=np.int32), 0
    for i in graph.order[graph.forward_of[graph.order] < 0].tolist():
        stem = graph.names[i].partition("#")[0].partition("/")[0]
        inside = (d for entry, d in device_map.items() if entry.startswith(f"{stem}."))
        mapped_device = home(stem, device_map)
        last_device = device[i] = int(next(inside, last_device) if mapped_device is None else mapped_device)
    first: dict[int, int] = {}
    for i in graph.order.tolist():
        if graph.colocation[i] >= 0:
            device[i] = first.setdefault(int(graph.colocation[i]), int(device[i]))
    is_backward = graph.forward_of >= 0
    device[is_backward] = device[graph.forward_of[is_backward]]
    return Placement(device=device, graph_key=graph.key)


def cluster_of(configuration: Configuration, total: int) -> Cluster:
    """Devices of those kinds that hold those shares of `total` bytes."""
    pairs = zip(configuration.hardware, configuration.shares, strict=True)
    return Cluster(
        tuple(Device(f"{kind}:{k}", kind, int(share * total)) for k, (kind, share) in enumerate(pairs)), PCIE
    )


def judged(graph: OpGraph, cluster: Cluster, model: Any, device_map: dict[str, Any]) -> dict[str, Any]:
    """What a map covers, and the simulated step."""
    tensors = parameters(model)
    homes = [{home(name, device_map) for name in names} for names in tensors.values()]
    timeline = simulate(graph, cluster, read_back(graph, device_map))
    return {
        "step_us": timeline.makespan_us,
        "fits": timeline.feasible,
        "covered": sum(None not in where for where in homes),
        "whole": all(len(where) == 1 for where in homes),
        "entries": len(device_map),
    }


def our_map(
    graph: OpGraph, cluster: Cluster, model: Any, placers: Mapping[str, dict[str, Any]] = PLACERS
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The best of our maps, one that fits and of these the fastest, and what is to say of it."""
    candidates = []
    for placer, params in placers.items():
        try:
            placement = place(graph, cluster, placer, **params)
        except InfeasiblePlacement:
            continue
        plan = write_plan(graph, placement, "device_map", model=model, cluster=cluster)
        candidates.append((plan.value, {"placer": placer, **judged(graph, cluster, model, plan.value)}))
    return min(candidates, key=lambda pair: (not pair[1]["fits"], pair[1]["step_us"]), default=None)


def ours(graph: OpGraph, cluster: Cluster, model: Any) -> dict[str, Any] | None:
    """Our map, judged; None where nothing fits."""
    answer = our_map(graph, cluster, model)
    return None if answer is None else answer[1]


def theirs(graph: OpGraph, cluster: Cluster, model: Any) -> dict[str, Any] | None:
    """accelerate's map; None where it would offload."""
    from baechi_lab.torch.references import device_map

    try:
        whole_modules = tuple(getattr(model, "_no_split_modules", None) or ())
        return judged(graph, cluster, model, device_map(model, cluster, whole=whole_modules))
    except InfeasiblePlacement:
        return None


def compared(configuration: Configuration) -> dict[str, Any]:
    """One configuration: both maps simulated."""
    from baechi_lab.torch import profile

    model, inputs = build(configuration.model)
    total = sum(p.nbytes for p in model.parameters())
    kinds = list(dict.fromkeys(configuration.hardware))
    graph = profile(model, inputs, mode=configuration.mode, hardware={kind: kind for kind in kinds})
    cluster = cluster_of(configuration, total)
    about = {
        "model": configuration.model,
        "mode": configuration.mode,
        "hardware": configuration.hardware,
        "memory_shares": configuration.shares,
    }
    counts = {"parameter_bytes": total, "parameters": len(parameters(model)), "ops": graph.n}
    return {**about, **counts, "accelerate": theirs(graph, cluster, model), "ours": ours(graph, cluster, model)}


def measured(name: str, shares: tuple[float, ...] = (0.8, 0.8), steps: int = 15) -> dict[str, Any]:
    """A small training step on logical CPU devices of this machine, under both maps and on one device: milliseconds per step.

    Each device holds a share of what the step takes on one, so that neither map can stay there. Logical CPU devices share one
    process and its thread, so no map can run anything side by side: what is compared is what the maps cost, apart from
    waiting. The maps take turns, three times. `measured_ms` is the least median of wall-clock times, to which whatever
    else the machine does adds; `processor_ms` the least processor time of one step, which waits for nobody.
    """
    import torch

    from baechi_lab.torch import execute, profile
    from baechi_lab.torch.models import build as build_step
    from baechi_lab.torch.references import device_map

    torch.set_num_threads(1)
    step, devices = build_step(name, batch_size=8, **SMALL_STEPS[name]), len(shares)
    graph, model = profile(step, mode="training"), step.model()
    roomy = Cluster.uniform(devices, memory_bytes=1 << 34, link=Link(5.0, 1e-4))
    alone = simulate(graph, roomy, Placement(device=np.zeros(graph.n, dtype=np.int32))).peak_bytes[0]
    cluster = roomy.with_memory([int(share * alone) for share in shares])
    record: dict[str, Any] = {
        "model": name,
        "size": SMALL_STEPS[name],
        "memory_shares": shares,
        "memory_bytes": cluster.memory_bytes.tolist(),
    }
    our_plan = our_map(graph, cluster, model, QUICK)
    if our_plan is None:
        raise InvalidInput(f"no placement of {name!r} fits {devices} devices of {cluster.memory_bytes.tolist()} bytes")
    maps = {"accelerate": device_map(model, cluster, whole=step.atomic), "ours": our_plan[0]}
    for key, map_of_key in maps.items():
        timeline = simulate(graph, cluster, read_back(graph, map_of_key))
        used = len(set(read_back(graph, map_of_key).device.tolist()))
        record[key] = {"simulated_ms": timeline.makespan_us / 1e3, "fits": timeline.feasible, "devices_used": used}
    cpus = Cluster.uniform(devices, kind="cpu", memory_bytes=1 << 34, link=Link(5.0, 1e-4))
    placements = {key: read_back(graph, map_of_key) for key, map_of_key in maps.items()}
    placements["one device"] = Placement(device=np.zeros(graph.n, dtype=np.int32))
    record["one device"] = {"simulated_ms": simulate(graph, roomy, placements["one device"]).makespan_us / 1e3}
    for _ in range(3):
        for key, placement in placements.items():
            clock: list[float] = []
            run = execute(step, placement, steps, cluster=cpus, graph=graph, on_step=_noting(clock))
            times = {"measured_ms": run.median_seconds, "processor_ms": float(np.diff(clock)[-steps - 1 : -1].min())}
            for name_of, seconds in times.items():
                record[key][name_of] = min(record[key].get(name_of, float("inf")), seconds * 1e3)
    return record


def _noting(clock: list[float]) -> Callable[[Any], None]:
    """After every step, the processor time of this thread in seconds."""
    return lambda step: clock.append(time.thread_time())


def main() -> None:
    """Compare, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", help="store the results as JSON")
    parser.add_argument(
        "--measured", action="store_true", help="run the small steps alone; keep the stored simulations"
    )
    options = parser.parse_args()
    rows = list(result("device_maps")["simulated"]) if options.measured else []
    for configuration in () if options.measured else CONFIGURATIONS:
        rows.append(compared(configuration))
        a, b = rows[-1]["accelerate"], rows[-1]["ours"]
        print(
            configuration,
            "accelerate",
            a and (round(a["step_us"]), a["fits"]),
            "ours",
            b and (b["placer"], round(b["step_us"]), b["fits"]),
            flush=True,
        )
    real = []
    for name, shares in MEASURED:
        real.append(measured(name, shares))
        print(real[-1], flush=True)
    if options.output:
        store(
            options.output,
            "python -m studies.device_maps",
            machine="2 cores",
            simulated=rows,
            measured=real,
        )


if __name__ == "__main__":
    main()
