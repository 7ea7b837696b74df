"""The devices on which ops that share a device may run: the meet of their `allowed` lists, if a list can express it.

An op may run on a device whose name or kind is in its list. Two lists of names, or two lists of kinds, meet in their
intersection. If a list contains another, their meet is the other. Whether a device name and a kind agree ("gpu:1" and "gpu")
depends on the cluster, and no list can express "both". Such ops keep their own lists (`UNCLEAR`), and
`baechi_lab.graph.allowed_devices` combines them for a cluster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ColocationError
from ..graph import OpGraph
from ..graph.kernels.csr import Ints

ANY, UNCLEAR = -1, -2
"""Codes of a meet: every device, and one that no list can express."""
Names = tuple[str, ...]


class AllowedMeets:
    """Meets of `allowed` lists, as codes into a growing table; `ANY` means no restriction."""

    def __init__(self, table: tuple[Names, ...]):
        self.table = list(table)
        self._code = {names: k for k, names in reversed(list(enumerate(table)))}
        self._meet_of_codes: dict[tuple[int, int], int | None] = {}

    def meet(self, a: int, b: int) -> int | None:
        """Returns the code of the meet: `UNCLEAR` if no list can express it, None if it is empty."""
        if a == b or b == ANY:
            return a
        if a == ANY:
            return b
        if UNCLEAR in (a, b):
            return UNCLEAR
        if (a, b) not in self._meet_of_codes:
            first, second = self.table[a], self.table[b]
            common = tuple(x for x in first if x in second)
            if len({*map(_is_name, first), *map(_is_name, second)}) == 1 or len(common) in (
                len(set(first)),
                len(set(second)),
            ):
                if common and common not in self._code:
                    self._code[common] = len(self.table)
                    self.table.append(common)
                self._meet_of_codes[a, b] = self._code[common] if common else None
            else:
                self._meet_of_codes[a, b] = UNCLEAR
        return self._meet_of_codes[a, b]

    def meet_if_nested(self, a: int, b: int) -> int | None:
        """Returns the meet if one of the two lists contains the other (`ANY` contains every list), else None.

        Ops that are joined only by this rule may run wherever one of them may. So joining ops that need not share a device
        makes no graph infeasible on any cluster; a meet of two overlapping lists could.
        """
        meet_code = self.meet(a, b)
        if meet_code is None or ANY in (a, b) or (a == b and a != UNCLEAR):
            return meet_code
        if meet_code != UNCLEAR and set(self.table[meet_code]) in (set(self.table[a]), set(self.table[b])):
            return meet_code
        return None


def _is_name(text: str) -> bool:
    """Whether a text is a device name: it has an index or a path (`gpu:0`, `/gpu:0`), unlike a kind."""
    return ":" in text or "/" in text


def common_allowed(
    graph: OpGraph, group: Ints | NDArray[np.int32], groups: int
) -> tuple[NDArray[np.int32], AllowedMeets]:
    """Returns the code of the common list of each group (which may be `ANY` or `UNCLEAR`), and the table of codes.

    `group`: int[n], -1 for none. Raises `ColocationError`, which names two ops, if lists can never agree.
    """
    meets = AllowedMeets(graph.allowed_sets)
    common = np.full(groups, ANY, dtype=np.int32)
    member = np.flatnonzero((group >= 0) & (graph.allowed >= 0))
    width = len(graph.allowed_sets) + 1
    pair, first = np.unique(group[member].astype(np.int64) * width + graph.allowed[member], return_index=True)
    # Short lists first: a list that is within all others decides, although two of the others may be unclear.
    length = np.array([len(set(names)) for names in graph.allowed_sets], dtype=np.int64)
    for k in np.lexsort((length[pair % width], pair // width)).tolist() if len(pair) else ():
        at, code = divmod(int(pair[k]), width)
        op = int(member[first[k]])
        meet_code = meets.meet(int(common[at]), code)
        if meet_code is None:
            raise ColocationError(
                f"op {graph.names[op]!r} allows only {', '.join(graph.allowed_sets[code])}, but it must share a device "
                f"with ops that allow only {', '.join(meets.table[common[at]])}"
            )
        common[at] = meet_code
    return common, meets


def codes_of_ops(graph: OpGraph, group: Ints | NDArray[np.int32], common: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the code of each op's common list; its own code if it has no group or the common list is unclear."""
    code = np.where(group >= 0, common[group], UNCLEAR) if len(common) else np.full(graph.n, UNCLEAR)
    return np.where(code == UNCLEAR, graph.allowed, code).astype(np.int32)


def with_common_lists(graph: OpGraph) -> OpGraph:
    """Returns the graph in which every op has the common list of its colocation group, or its own if that is unclear."""
    common, meets = common_allowed(graph, graph.colocation, len(graph.colocation_names))
    code = codes_of_ops(graph, graph.colocation, common)
    same = np.array_equal(code, graph.allowed)
    return graph if same else graph.replace(allowed=code, allowed_sets=tuple(meets.table))
