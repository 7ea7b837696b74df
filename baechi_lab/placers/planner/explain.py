"""The groups that a planner learned, as a record: their ops, their devices, and their common properties."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import inverse
from ..scopes import scope_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class LearnedGroups:
    """The groups of the best placement, largest work first; groups without ops are left out.

    `group` int32[n]: the group of each op of the graph that was placed. Per group: `device` int32 where most of its ops
    are, `ops` int64, `astray` int64 ops elsewhere (they may not run there), `duration_us` float64; `kind` its most
    frequent op type, `scope` the name scope that its ops share ("" where none).
    """

    group: NDArray[np.int32]
    device: NDArray[np.int32]
    ops: NDArray[np.int64]
    astray: NDArray[np.int64]
    duration_us: NDArray[np.float64]
    kind: tuple[str, ...]
    scope: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        return f"<LearnedGroups: {len(self)} groups of {len(self.group)} ops>"

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one row per group."""
        import pandas as pd

        columns = {k: getattr(self, k) for k in ("device", "ops", "astray", "duration_us", "kind", "scope")}
        return pd.DataFrame(columns).rename_axis("group")


def learned_groups(graph: OpGraph, group: NDArray[np.int64], device: NDArray[np.int32]) -> LearnedGroups:
    """Returns the record of `group` int[n] on `device` int32[n]."""
    used, number = np.unique(group, return_inverse=True)
    work = np.bincount(number.reshape(-1), graph.duration_us, minlength=len(used)).astype(np.float64)
    largest = np.argsort(-work, kind="stable")
    group_devices = inverse(largest).astype(np.int32)[number.reshape(-1)]
    count = np.zeros((len(used), int(device.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(count, (group_devices, device), 1)
    members = [np.flatnonzero(group_devices == k).tolist() for k in range(len(used))]
    return LearnedGroups(
        group=group_devices,
        device=count.argmax(axis=1).astype(np.int32),
        ops=count.sum(axis=1),
        astray=count.sum(axis=1) - count.max(axis=1),
        duration_us=work[largest],
        kind=tuple(Counter(graph.op_types[i] for i in ops).most_common(1)[0][0] for ops in members),
        scope=tuple(_common([scope_of(graph.names[i]) for i in ops]) for ops in members),
    )


def _common(scopes: list[tuple[str, ...]]) -> str:
    """Returns the scopes that all ops are in, outermost first."""
    levels = takewhile(lambda components: len(set(components)) == 1, zip(*scopes, strict=False))
    return "/".join(components[0] for components in levels)
