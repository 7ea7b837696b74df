"""What every pass is: a small parameter object with one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ..graph import OpGraph
from ..params import Params


class Pass(Params):
    """Subclass as a frozen dataclass whose fields are the parameters; the docstring's first line is the listing.

    A pass is a pure function: the result is again a DAG, `group_of` leads from the original ops to its ops,
    `source_key` names the original graph. Passes can be applied in any order, and again.
    """

    name: ClassVar[str]

    @abstractmethod
    def apply(self, graph: OpGraph) -> OpGraph:
        """The new graph; the given one when there is nothing to do."""
