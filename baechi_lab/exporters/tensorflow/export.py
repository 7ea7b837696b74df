"""The folder of a placed TensorFlow step: placed graph, values, plan, script and README."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...executors.tensorflow import heap, keepalive, loopback, tunnel
from ...graph import Placement, Step
from ...workers import network
from ..folder import Writer

if TYPE_CHECKING:
    from ...executors.tensorflow.pipelined_step import PipelinedStep

FORMAT = "baechi-lab placed training"


def folder_files(
    step: Step,
    op_names: Sequence[str],
    placement: Placement,
    devices: Sequence[str],
    workers: Sequence[str],
    pipelined: PipelinedStep | None = None,
) -> dict[str, bytes | str | Writer]:
    """Returns the files of the export.

    Args:
        step: the step that the script runs; with `pipelined`, all its micro-batches.
        op_names: the names of the ops of `placement`, in its order.
        placement: the device of every op.
        devices: full names of TensorFlow's devices, in the order of the placement's devices.
        workers: addresses of the workers between which the script divides the step; none for one machine.
        pipelined: for a step that was unrolled into micro-batches, of which `step` is the step.
    """
    from ...executors.tensorflow.session import place_graph

    device_of = {name: devices[d] for name, d in zip(op_names, placement.device.tolist(), strict=True)}
    placed_graph = place_graph(step, device_of)
    kinds = {spec.name.split(":")[0]: spec.dtype for spec in step.variables}
    count = 1 if pipelined is None else pipelined.micro_batches
    inputs = step.inputs[: len(step.inputs) // count]
    plan = {
        "format": FORMAT,
        "version": 1,
        "step": step.name,
        "placer": placement.placer,
        "devices": list(devices),
        "workers": list(workers),
        "micro_batches": count,
        "schedule": None if pipelined is None or pipelined.pipe.schedule is None else str(pipelined.pipe.schedule),
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape)} for s in inputs],
        "feeds": placed_graph.feeds,
        "fetches": placed_graph.fetches,
        "targets": placed_graph.targets,
        "variables": [{**vars(v), "dtype": kinds[v.name]} for v in placed_graph.variables],
        "moved_ops": placed_graph.moved_ops,
        "placement": {name: int(d) for name, d in zip(op_names, placement.device.tolist(), strict=True)},
    }
    return {
        "placement.json": json.dumps(plan, indent=1) + "\n",
        "placed_graph.pb": placed_graph.graph_def,
        "initial_values.npz": partial(_save, {f"variable_{i}": v for i, v in enumerate(step.initial_values)}),
        "example_inputs.npz": partial(
            _save, {f"input_{i}": v for i, v in enumerate(step.example_inputs[: len(inputs)])}
        ),
        "train.py": Path(__file__).with_name("script.py").read_text(encoding="utf-8"),
        "README.md": readme(step, placement, devices, workers, pipelined),
        **(_worker_files() if workers else {}),
    }


def _worker_files() -> dict[str, bytes | str | Writer]:
    """Returns the additional files for `train.py --worker` and for training on workers."""
    paths = [
        *(Path(__file__).with_name(name) for name in ("worker.py", "watch.py")),
        *(Path(str(module.__file__)) for module in (heap, keepalive, loopback, network, tunnel)),
    ]
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _save(arrays: Mapping[str, NDArray[np.generic]], stream: BinaryIO) -> None:
    """Writes an .npz without pickle; text becomes fixed-width."""
    plain = {k: np.asarray(v).astype("S") if np.asarray(v).dtype.kind == "O" else v for k, v in arrays.items()}
    np.savez(stream, **plain)  # type: ignore[arg-type]


def readme(
    step: Step,
    placement: Placement,
    devices: Sequence[str],
    workers: Sequence[str],
    pipelined: PipelinedStep | None = None,
) -> str:
    """Returns the README: the contents of the folder, and how to train."""
    counts = np.bincount(placement.device, minlength=len(devices)).tolist()
    table = "\n".join(
        f"| {i} | `{name}` | {count} |" for i, (name, count) in enumerate(zip(devices, counts, strict=True))
    )
    return f"""# {step.name}, placed on {len(devices)} device(s) by `{placement.placer}`

Needs Python with TensorFlow and NumPy, nothing else:
{_start_workers(workers)}
    python train.py --steps 100{" --secret cluster.pem" if workers else ""}

Plug your own input iterator in at the marked line of `train.py`.
{_micro_batches(pipelined)}
| device | name | ops |
|---|---|---|
{table}

| file | what it is |
|---|---|
| `train.py` | trains under the placement; writes `trained_values.npz` |
| `placed_graph.pb` | the step as a TensorFlow GraphDef with a device on every op |
| `placement.json` | op -> device, and the names that feed, run and read the step |
| `initial_values.npz` | the variables' values when the step was traced |
| `example_inputs.npz` | the batch with which it was traced |
{_device_note(workers)}"""


def _micro_batches(pipelined: PipelinedStep | None) -> str:
    if pipelined is None:
        return ""
    order = (
        ""
        if pipelined.pipe.schedule is None
        else f"""
Every device works through its units (stage, F forward or B backward or W gradients of weights, micro-batch) in this order:

```
{pipelined.pipe.schedule}
```
"""
    )
    return f"""
A step is {pipelined.micro_batches} micro-batches. Arrays that are {pipelined.micro_batches} times as long along one axis as
`inputs` in `placement.json` says are cut; others go to every micro-batch.
{order}"""


def _start_workers(workers: Sequence[str]) -> str:
    if not workers:
        return ""
    lines = "\n".join(f"    python train.py --worker {address} --secret cluster.pem" for address in workers)
    local = all(loopback.is_loopback(address.rpartition(":")[0]) for address in workers)
    return f"""
Start each worker first, on the machine of its address:

{lines}

{_WARNING}{_USERS if local else _NETWORK} Then train:
"""


_WARNING = """`cluster.pem` is a key and its certificate; whoever has it, and nobody else, reaches the workers, through TLS,
and can run code as you there. Make it once, and copy it to every machine on a way that you trust:

    openssl req -x509 -newkey ed25519 -nodes -days 3650 -subj /CN=workers -keyout cluster.pem -out certificate.pem
    cat certificate.pem >> cluster.pem && chmod 600 cluster.pem

Other users of a worker's machine do not reach it either: it has a network of its own (Linux network namespaces). Where the system
allows none, it does not start; `--trusted-users` then says that you let them all run code as you.

TensorFlow's servers themselves have NO AUTHENTICATION: """

_USERS = """with `--trusted-users` instead of `--secret cluster.pem` you say that you let
all users of this machine run code as you; to train takes no option then."""

_NETWORK = """with `--trusted-network` instead of `--secret cluster.pem` you say
that you let everyone who reaches these machines run code as you."""


def _device_note(workers: Sequence[str]) -> str:
    if workers:
        return ""
    return """
On a machine with at least as many GPUs as the placement has devices it runs on these; otherwise on as many logical
CPU devices.
"""
