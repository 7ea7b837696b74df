"""`msr`: Maximum Successor Rank first (Mayer et al. 2017, section 4.2, doi:10.1145/3154842.3154843).

Among the ready ops of a device the one that does most for the others runs first. Equation 13, with p(i) the device of i:

    MSR(i) = sum over successors j of (alpha + beta [p(j) != p(i)] + gamma [j has one predecessor]
                                       + delta [p(j) is idle and j has one predecessor]).

All but the last term is computed once per placement; the last is looked up when a device decides: a device is idle when
it runs nothing at that moment. The deciding device itself is never idle, as it is about to run the op.
Per decision O(log ready ops), plus the devices of the successors of every ready op whose score could be the highest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...checks import check_number
from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.csr import Integers, offsets
from ...params import Params
from .. import kernel


@dataclass(frozen=True)
class Msr(Params):
    """Most successors, other devices and idle devices first (Mayer et al. 2017, equation 13)."""

    name = "msr"
    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    delta: float = 5.0

    def validate(self) -> None:
        for key, value in self.get_params().items():
            check_number(f"{key} of scheduler 'msr'", value)

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        self.validate()
        score, pointer, woken = self.terms(graph, placement.device)
        highest_score, waker = score.copy(), np.repeat(np.arange(graph.n), np.diff(pointer))
        wakes_other = woken != kernel.lanes(graph, cluster, placement.device)[waker]
        np.add.at(highest_score, waker[wakes_other], float(self.delta))  # one by one, as the kernel adds
        return kernel.Scheduler(kernel.BY_IDLENESS, -highest_score, score, pointer, woken, float(self.delta))

    def terms(
        self, graph: OpGraph, device: Integers
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]]:
        """Returns the score float64[n] without the idle term, and CSR op -> devices of successors that wait for this op alone."""
        pointer, successor = graph.successors
        op = np.repeat(np.arange(graph.n), np.diff(pointer))
        alone = np.diff(graph.predecessors[0])[successor] == 1
        gain = self.alpha + self.beta * (device[op] != device[successor]) + self.gamma * alone
        score = np.bincount(op, gain, minlength=graph.n).astype(np.float64)
        return score, offsets(op[alone], graph.n), device[successor[alone]].astype(np.int32)
