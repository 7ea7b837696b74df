"""Groups of ops: joins those that overlap."""

from __future__ import annotations

from collections.abc import Iterable


def join_groups(n: int, groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of `n` ops that remain when all that overlap are joined (union-find, near-linear).

    Members ascend, and groups are in the order of their first members. A group of one op is left out.

    >>> join_groups(5, [(1, 3), (0, 1), (4,)])
    ((0, 1, 3),)
    """
    root = list(range(n))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for first, *other_members in groups:
        for member in other_members:
            a, b = sorted((find(first), find(member)))
            root[b] = a
    members: dict[int, list[int]] = {}
    for i in range(n):
        members.setdefault(find(i), []).append(i)
    return tuple(tuple(m) for m in members.values() if len(m) > 1)
