"""Placements of human experts: one LSTM layer per device, convolutional networks on one.

Source: Jeon et al. 2020, section 5.3, and Mirhoseini et al. 2018, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import InfeasiblePlacement, InvalidInput
from ..graph import Cluster, OpGraph, Placement
from ..graph.units import format_bytes
from ..placers.base import Placer
from ..simulator import makespan_and_peak


@dataclass(frozen=True)
class Expert(Placer):
    """The hand-made rule of a benchmark model: a recurrent layer per device, a convolutional network on one.

    Idea: rules by name scope, see `baechi_lab.models`; O(ops). Wu et al. 2016 (arXiv:1609.08144) put encoder and
    decoder layer k on device k; Jeon et al. 2020 add the embedding to the first and the output layer to the last,
    Mirhoseini et al. 2018 the attention. Like an expert it chooses before it knows the memory, and raises an error if the
    memory does not suffice (Table 4 of Jeon et al. 2020). Ops run in the order in which they become ready.

    Args:
        model: name of the benchmark model; None takes it from the graph's name.
        attention: "last" places a translation model's attention with the last layer, as Mirhoseini et al. 2018 do; "first"
            with the first, which in GNMT asks for it and, on slow links, saves two transfers per time step.

    Raises `InfeasiblePlacement` when a device's memory does not suffice, `UnknownNameError` for a graph of no
    benchmark model.
    """

    name: ClassVar[str] = "expert"
    model: str | None = None
    attention: str = "last"

    def validate(self) -> None:
        if self.attention not in ("first", "last"):
            raise InvalidInput(f"attention is {self.attention!r}; it must be 'first' or 'last'")
        if self.model is not None:
            from .registry import model_class

            model_class(self.model)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        from .experts import expert

        placement = Placement(expert(self.model, graph, cluster, self.attention))
        _, peak = makespan_and_peak(graph, cluster, placement)
        fullest = int(np.argmax(peak - cluster.memory_bytes))
        if peak[fullest] > cluster.memory_bytes[fullest]:
            needed_bytes, available = int(peak[fullest]), cluster.memory_bytes
            raise InfeasiblePlacement(
                f"the expert's placement needs {format_bytes(needed_bytes)} on device {cluster.names[fullest]}, "
                f"which has {format_bytes(int(available[fullest]))}",
                needed_bytes,
                available.tolist(),
            )
        return placement
