"""The base class of passes: a small parameter object with one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ..graph import OpGraph
from ..params import Params


class Pass(Params):
    """Base class of passes. A subclass is a frozen dataclass whose fields are the parameters.

    `bl.list_passes()` shows the first line of its docstring. A pass is a pure function: it returns a DAG, whose `group_of` maps
    the original ops to its ops and whose `source_key` names the original graph. Passes can be applied in any order, and again.
    """

    name: ClassVar[str]

    @abstractmethod
    def apply(self, graph: OpGraph) -> OpGraph:
        """Returns the new graph, or the given one if nothing changes."""
