"""The instance of a search as arrays: the graph on its cluster, the units of ops that can move, and the parameters."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices
from ..evaluation.cost import PROHIBITIVE, Objective, Prices, Samples, no_samples
from ..evaluation.model import make_model, memory_matters
from ..evaluation.moves import Units, make_units
from ..evaluation.work import make_work
from ..problem import groups_of, transfer_us
from .coarsen import coarsen
from .parameters import SEARCH, SearchParameters
from .structure import layer_labels


class Instance:
    """The problem as arrays, which all chains share and none changes.

    `group` int32[n]: the colocation group of every op. `allowed`: the devices that an op may use. `price` float64[tensors]: a
    mean transfer of each tensor in microseconds, and `edge_cost` float64[edges] the share of each of its readers. `work`
    float64[n]: the least duration of every op. `track`: whether memory may run out, so that simulations follow it.
    """

    def __init__(
        self, graph: OpGraph, cluster: Cluster, samples: Samples | None = None, parameters: SearchParameters = SEARCH
    ):
        self.graph, self.cluster, self.parameters = graph, cluster, parameters
        self.model = make_model(graph, cluster)
        self.samples = no_samples(graph.n, cluster.n) if samples is None else samples
        if samples is not None:  # the longest path after an op must hold for every sample
            least = np.minimum(self.samples.table.min(axis=0), self.model.table)
            self.model = make_model(graph, cluster, least)._replace(table=self.model.table)
        self.track = memory_matters(self.model)
        self.position = graph.position
        self.group = groups_of(graph)
        self.allowed = allowed_devices(graph, cluster)
        self.price = transfer_us(graph, cluster)
        self.edge_cost = (self.price / np.maximum(np.diff(graph.consumer_ptr), 1))[graph.edge_tensor]
        self.work = self.model.table.min(axis=1) + 1e-9
        self.groups = make_units(self.group, self.position, self.allowed)

    def objective(self) -> Objective:
        """Returns the objective of the graph's own costs, with new scratch space; no time makes up for a byte too many."""
        prices = Prices(1.0, PROHIBITIVE if self.track else 0.0)
        return Objective(self.model, make_work(self.model, self.parameters), self.samples, prices, self.track)

    @cached_property
    def structures(self) -> list[NDArray[np.int64]]:
        """Labels of which units are made, the coarsest first: the layers of the graph if any, then its colocation groups."""
        layers = layer_labels(self.graph, self.group, self.parameters.structure_share)
        return [*(() if layers is None else (layers,)), self.group.astype(np.int64)]

    @cached_property
    def coarse_layers(self) -> NDArray[np.int64] | None:
        """Labels of the layers if they are few enough that every one is moved often; else None."""
        layers = self.structures[0]
        return layers if len(self.structures) > 1 and layers.max() < self.parameters.coarse_labels else None

    def labels_near(self, unit_count: int) -> NDArray[np.int64]:
        """Returns labels of which about `unit_count` units are made: the structure nearest to that number."""
        return min(self.structures, key=lambda labels: abs(np.log((labels.max() + 1) / unit_count)))

    def units(self, device: NDArray[np.int32], unit_count: int | NDArray[np.int64], rng: np.random.Generator) -> Units:
        """Makes about `unit_count` units, each on one device, or those of the layers, given as labels int64[n]."""
        if isinstance(unit_count, np.ndarray):
            label, count = unit_count, self.parameters.coarse_labels
        else:
            label, count = self.labels_near(unit_count), unit_count
        edges = self.graph.edge_source, self.graph.consumers, self.edge_cost
        return make_units(
            coarsen(label * self.cluster.n + device, device, edges, self.work, count, rng, self.parameters),
            self.position,
            self.allowed,
        )
