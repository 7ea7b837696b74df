"""Sizes of benchmark models: `bl.models.describe` traces one, `bl.models.list` reads the stored ones.

`python -m studies.model_sizes` traces all of them again (a few minutes) and rewrites `sizes.json`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from ..frameworks import require_framework
from ..graph import OpGraph
from .registry import make_model

if TYPE_CHECKING:
    import pandas

_STORED = "sizes.json"
_NOT_COMPUTED = frozenset({"Const", "VarHandleOp", "Placeholder", "ReadVariableOp"})


def describe(name: str, **params: object) -> dict[str, object]:
    """Traces one training step of a model and returns its sizes. Needs TensorFlow.

    Returns a record: `model`, `params` (as given), `ops` and `edges` of its OpGraph, `parameters` (trained numbers),
    `flops` (floating point operations of forward, backward and update), `activation_bytes` (results of forward ops
    that the backward pass reads).

    >>> describe("mlp", layers=1, units=4, inputs=3, classes=2)["parameters"]  # 3*4+4 + 4*2+2
    26
    """
    require_framework("tensorflow", "bl.models.describe")
    from ..profilers import profile, trace
    from ..profilers.tensorflow.op_work import count_work
    from ..profilers.tensorflow.structure import read_structure

    training = make_model(name, **params).training_step()
    step = trace(training.function, *training.inputs, name=name)
    graph = profile(step, mode="estimated")
    return {
        "model": name,
        "params": dict(params),
        "ops": graph.n,
        "edges": graph.edge_count,
        "parameters": sum(int(np.prod(v.shape)) for v in training.variables),
        "flops": float(count_work(read_structure(step)).flops.sum()),
        "activation_bytes": activation_bytes(graph),
    }


def activation_bytes(graph: OpGraph) -> int:
    """Bytes of the tensors that forward ops compute and backward ops read, each once.

    Whatever depends on a backward op (sums of gradients have no telling name) is not forward.
    """
    from ..profilers.tensorflow.backward_pairing import is_backward

    backward = np.array([is_backward(name) for name in graph.names], dtype=np.bool_)
    is_later, (pointer, before) = backward.copy(), graph.predecessors
    for op in graph.order.tolist():
        is_later[op] |= is_later[before[pointer[op] : pointer[op + 1]]].any()
    forward = np.array([kind not in _NOT_COMPUTED for kind in graph.op_types], dtype=np.bool_) & ~is_later
    tensors_kept = np.unique(graph.edge_tensor[backward[graph.consumers]])
    return int(graph.tensor_bytes[tensors_kept[forward[graph.tensor_producer[tensors_kept]]]].sum())


def table() -> pandas.DataFrame:
    """Returns ops, parameters, FLOPs and activation bytes of the benchmark models, one row each, as stored.

    They were traced with TensorFlow 2.21, for the default and for the papers' parameters; `describe(name, **params)`
    traces a model anew.
    """
    import pandas

    rows = json.loads(files(__package__).joinpath(_STORED).read_text(encoding="utf-8"))
    for row in rows:
        row["params"] = ", ".join(f"{key}={value!r}" for key, value in row["params"].items())
    return pandas.DataFrame(rows)
