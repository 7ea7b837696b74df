"""`bl.models.expert`: where a human expert puts each op of a benchmark model.

Source: Jeon et al. 2020, section 5.3, and Mirhoseini et al. 2018, section 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import UnknownNameError
from ..graph import Cluster, OpGraph, allowed_devices
from .registry import model_class, model_names


def model_of(graph: OpGraph, model: str | None = None) -> str:
    """Returns the benchmark model that `graph` was traced from: `model` if given, else what its name begins with.

    A graph may say more after the model's name: "gnmt", "gnmt length 50" and "gnmt-50" are all `gnmt`.
    """
    if model is not None:
        return model_class(model).name
    for model_name in sorted(model_names(), key=len, reverse=True):
        suffix = graph.name[len(model_name) :]
        if graph.name.startswith(model_name) and not suffix[:1].isalnum():
            return model_name
    raise UnknownNameError.of("benchmark model of graph", graph.name, model_names())


def expert(model: str | None, graph: OpGraph, cluster: Cluster, attention: str = "last") -> NDArray[np.int32]:
    """Returns int32[n]: the expert's device of every op; None takes the model from the graph's name.

    `attention`: whether a translation model's attention goes with the "last" layer (Mirhoseini et al. 2018) or with the
    "first". Colocation groups stay together; an op that may not run on the expert's device goes to the first that it may.
    The expert knows no memory limit. Raises `UnknownNameError` for a graph of no benchmark model.
    """
    device = model_class(model_of(graph, model)).expert(graph, cluster.n, attention)
    allowed = allowed_devices(graph, cluster)
    not_allowed = ~allowed[np.arange(graph.n), device]
    device[not_allowed] = allowed[not_allowed].argmax(axis=1)
    return device
