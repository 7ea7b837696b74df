"""Connected components of a list of pairs, for passes of other packages (docs/add-a-pass.md)."""

from ..graph.groups import components

__all__ = ["components"]
