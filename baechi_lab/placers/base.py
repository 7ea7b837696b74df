"""The base class of placers: a small parameter object with one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ..graph import Cluster, OpGraph, Placement
from ..params import Params


class Placer(Params):
    """Base class of placers. A subclass is a frozen dataclass whose fields are the parameters of the algorithm.

    `bl.list_placers()` shows the first line of its docstring. `anytime` placers improve until their `time_limit`.
    `uses_memory` is False for classical placers, which ignore memory limits.
    """

    name: ClassVar[str]
    anytime: ClassVar[bool] = False
    uses_memory: ClassVar[bool] = True

    @abstractmethod
    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        """Chooses a device (and, where the algorithm plans one, an order) for every op.

        Raises `InfeasiblePlacement` when it finds none.
        """
