"""What ops that share a device may run on: the meet of their `allowed` lists, as far as it can be written down.

An op may run on a device whose name or kind its list holds. Two lists of names, or two lists of kinds, meet in their
intersection; a list that contains another meets it in the other. A device name and a kind ("gpu:1" and "gpu") may agree
or not, which only a cluster can tell, and no list says "both": such ops keep their own lists (`UNCLEAR`), and
`baechi_lab.graph.allowed_devices` combines them where the cluster is known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ColocationError
from ..graph import OpGraph

Ints = NDArray[np.int64]

ANY, UNCLEAR = -1, -2
Names = tuple[str, ...]


class AllowedMeets:
    """Meets of `allowed` lists, as codes into a growing table; `ANY` is no restriction."""

    def __init__(self, table: tuple[Names, ...]):
        self.table = list(table)
        self._code = {names: k for k, names in reversed(list(enumerate(table)))}
        self._meet_of_codes: dict[tuple[int, int], int | None] = {}

    def meet(self, a: int, b: int) -> int | None:
        """The code of the meet: `UNCLEAR` when no list says it, None when nothing is left."""
        if a == b or b == ANY:
            return a
        if a == ANY:
            return b
        if UNCLEAR in (a, b):
            return UNCLEAR
        if (a, b) not in self._meet_of_codes:
            self._meet_of_codes[a, b] = self._compute(self.table[a], self.table[b])
        return self._meet_of_codes[a, b]

    def covered(self, a: int, b: int) -> int | None:
        """The meet, where one of the two lists lies within the other (`ANY` holds every list); else None.

        A set of ops that is joined by this rule alone may run wherever one of its own ops may. So joining ops that need
        not share a device makes no graph impossible, whatever the cluster; a meet of two overlapping lists could.
        """
        met = self.meet(a, b)
        if met is None or ANY in (a, b) or (a == b and a != UNCLEAR):
            return met
        return met if met != UNCLEAR and set(self.table[met]) in (set(self.table[a]), set(self.table[b])) else None

    def _compute(self, first: Names, second: Names) -> int | None:
        common = tuple(x for x in first if x in second)
        if len({*map(_is_name, first), *map(_is_name, second)}) == 1 or len(common) in (
            len(set(first)),
            len(set(second)),
        ):
            if not common:
                return None
            if common not in self._code:
                self._code[common] = len(self.table)
                self.table.append(common)
            return self._code[common]
        return UNCLEAR


def _is_name(text: str) -> bool:
    """Device names carry an index or a path (`gpu:0`, `/gpu:0`); kinds do not. As `OpGraph` tells them apart."""
    return ":" in text or "/" in text


def common_allowed(
    graph: OpGraph, group: Ints | NDArray[np.int32], groups: int
) -> tuple[NDArray[np.int32], AllowedMeets]:
    """Per group the code of what all of its members may run on (`ANY`, `UNCLEAR` included), and the table of codes.

    `group`: int[n], -1 for none. Raises `ColocationError` naming two ops whose lists can never agree.
    """
    meets = AllowedMeets(graph.allowed_sets)
    common = np.full(groups, ANY, dtype=np.int32)
    member = np.flatnonzero((group >= 0) & (graph.allowed >= 0))
    width = len(graph.allowed_sets) + 1
    pair, first = np.unique(group[member].astype(np.int64) * width + graph.allowed[member], return_index=True)
    # Short lists first: one that lies within all others then decides, where two of the others alone would be unclear.
    length = np.array([len(set(names)) for names in graph.allowed_sets], dtype=np.int64)
    for k in np.lexsort((length[pair % width], pair // width)).tolist() if len(pair) else ():
        at, code = divmod(int(pair[k]), width)
        op = int(member[first[k]])
        met = meets.meet(int(common[at]), code)
        if met is None:
            raise ColocationError(
                f"op {graph.names[op]!r} allows only {', '.join(graph.allowed_sets[code])}, but it must share a device "
                f"with ops that allow only {', '.join(meets.table[common[at]])}"
            )
        common[at] = met
    return common, meets


def codes_of_ops(graph: OpGraph, group: Ints | NDArray[np.int32], common: NDArray[np.int32]) -> NDArray[np.int32]:
    """Per op the code of its group's common list; its own where it has no group or the common list is unclear."""
    code = np.where(group >= 0, common[group], UNCLEAR) if len(common) else np.full(graph.n, UNCLEAR)
    return np.where(code == UNCLEAR, graph.allowed, code).astype(np.int32)


def with_common_lists(graph: OpGraph) -> OpGraph:
    """The graph with the common list of its colocation group for every op; where that is unclear, its own."""
    common, meets = common_allowed(graph, graph.colocation, len(graph.colocation_names))
    code = codes_of_ops(graph, graph.colocation, common)
    same = np.array_equal(code, graph.allowed)
    return graph if same else graph.replace(allowed=code, allowed_sets=tuple(meets.table))
