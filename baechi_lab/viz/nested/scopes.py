"""The scope of each op: that of its name or, if the name has none, that of its neighbours.

Frameworks number some ops instead of giving them the scope of their layer: `AddN_7` sums gradients of one layer, `ones` starts
the backward pass, only `inception_v3/conv2d_1` reads `conv2d/kernel`. In a picture of the model such ops would be separate
boxes with arrows across the picture. O(ops + edges).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph

BACKWARD = "∇"
"""The outermost scope of every backward op, followed by the scopes of its forward op."""
TAPES = ("gradient_tape", "gradients")
Path = tuple[str, ...]
MOST_STRAYS = 0.05
"""Largest share of forward ops without a scope; up to it they get the scope of their neighbours."""


def scope_paths(graph: OpGraph) -> tuple[Path, ...]:
    """Returns the scopes around every op, outermost first; those of a backward op begin with `BACKWARD`.

    - The call of a PyTorch module with an update is in the scope of that module, as the update is: `head`, `head/update`.
    - A backward op has the scopes of its forward op (`forward_of`), or those behind `gradient_tape/` in its name.
    - An update has the scopes of the variable with which it is colocated, or those behind `optimizer/` in its name.
    - Variables and constants outside the model's scopes have the scopes of their readers.
    - A backward op without a scope gets that of its producers, or else of its readers; so does a forward op, if there are few.

    >>> graph = OpGraph.from_edges([1] * 4, [(0, 1, 4), (1, 2, 4), (2, 3, 4)],
    ...     names=["net/w", "net/MatMul", "gradient_tape/net/MatMul", "AddN_1"], forward_of=[-1, -1, 1, -1])
    >>> scope_paths(graph)
    (('net',), ('net',), ('∇', 'net'), ('∇', 'net'))
    """
    mark = separator(graph.names)
    named_ops = list(zip(graph.names, graph.forward_of.tolist(), strict=True))
    # An update is named after its module; so is the backward op of a call, which has a forward op.
    modules = {name.partition("/")[0] for name, twin in named_ops if "/" in name and twin < 0 and mark == "."}
    paths: list[Path] = []
    for name, twin in named_ops:
        components = tuple(parts_of(name, mark))
        scopes = components if name in modules else components[:-1]
        backward = components[0] in TAPES or twin >= 0
        while scopes and scopes[0] in (*TAPES, "optimizer"):
            scopes = scopes[1:]
        paths.append((BACKWARD, *scopes) if backward else scopes)
    if not any(paths):
        return tuple(paths)
    update = updates(graph)
    for op in np.flatnonzero(_after_backward(graph) & ~update).tolist():
        paths[op] = paths[op] or (BACKWARD,)
    # Give sources whose outermost scope has no computing op the common scopes of their forward readers, or of
    # all readers. The same holds for updates in such a scope: a learning rate, the slots of an optimizer.
    source = np.diff(graph.predecessors[0]) == 0
    computes = timed_ops(graph).tolist()
    computing = {path[0] for path, is_computing in zip(paths, computes, strict=True) if path and is_computing}
    outside = [bool(p) and p[0] not in computing for p in paths]
    readers: dict[int, list[Path]] = {}
    forward = ~update & np.array([bool(p) and p[0] != BACKWARD for p in paths], dtype=np.bool_)
    forward_readers = forward[graph.consumers]
    for u, v in zip(
        graph.edge_source[forward_readers].tolist(), graph.consumers[forward_readers].tolist(), strict=True
    ):
        if outside[u] and source[u]:
            readers.setdefault(u, []).append(paths[v])
    serves = update.copy()
    serves[graph.edge_source[update[graph.consumers]]] = True
    for op in np.flatnonzero(source | update).tolist():
        if outside[op] and op in readers:
            paths[op] = _common(readers[op]) or paths[op]
        elif outside[op] and serves[op]:
            paths[op] = ()
    for op in np.flatnonzero(graph.forward_of >= 0).tolist():
        paths[op] = (BACKWARD, *(s for s in paths[graph.forward_of[op]] if s != BACKWARD))
    variable = _by_group(graph)
    for op in np.flatnonzero(update & (variable >= 0)).tolist():
        paths[op] = paths[variable[op]]
    _by_neighbours(graph, paths, update)
    return tuple(paths)


def separator(names: Sequence[str]) -> str:
    """Returns the separator of scopes in these names: a slash, or a dot if most begin with a PyTorch module's path."""
    dots = sum("." in name.partition("/")[0] for name in names)
    return "." if dots > len(names) / 2 else "/"


def parts_of(name: str, mark: str) -> list[str]:
    """Splits a name into its scopes and its end. Behind a module's path, a slash precedes an operator or `backward`.

    PyTorch's exporter of ONNX writes a slash before the outermost scope.

    >>> parts_of("encoder.layer.0/backward/mm", "."), parts_of("/encoder/layer.0/backward", "/")
    (['encoder', 'layer', '0', 'mm'], ['encoder', 'layer.0'])
    """
    if mark == "/":
        return name.removeprefix("/").removesuffix("/backward").split("/")
    path, *inside = name.split("/")
    return [*path.split("."), *(component for component in inside if component != "backward")]


def updates(graph: OpGraph) -> NDArray[np.bool_]:
    """Returns bool[n]: ops in the scope `optimizer/`, and those colocated with parameters that depend on a backward op."""
    in_optimizer_scope = np.array([name.startswith("optimizer/") for name in graph.names], dtype=np.bool_)
    return in_optimizer_scope | ((_by_group(graph) >= 0) & _after_backward(graph) & (graph.forward_of < 0))


def _after_backward(graph: OpGraph) -> NDArray[np.bool_]:
    """Returns bool[n]: backward ops and all ops that depend on one."""
    after = (graph.forward_of >= 0).tolist()
    pointer, ahead = (a.tolist() for a in graph.successors)
    for op in graph.order.tolist():
        if after[op]:
            for k in ahead[pointer[op] : pointer[op + 1]]:
                after[k] = True
    return np.array(after, dtype=np.bool_)


def timed_ops(graph: OpGraph) -> NDArray[np.bool_]:
    """Returns bool[n]: ops whose position says when a box has its turn, which are neither variables nor updates.

    An op that reads none of the graph's tensors, such as an embedding, has a backward op, as no variable has.
    """
    computes = np.diff(graph.predecessors[0]) > 0
    computes[graph.forward_of[graph.forward_of >= 0]] = True
    return computes & ~updates(graph)


def _by_group(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the first op of each op's colocation group that holds parameters, or -1.

    It is a variable, or the call of a PyTorch module; an update, which may hold an optimizer's state, is none.
    """
    holder = np.flatnonzero((graph.persistent_bytes > 0) & (graph.colocation >= 0) & ~_after_backward(graph))
    first = np.full(len(graph.colocation_names) + 1, -1, dtype=np.int64)
    first[graph.colocation[holder[::-1]]] = holder[::-1]
    first[-1] = -1
    return first[graph.colocation]


def _common(paths: Sequence[Path]) -> Path:
    """Returns the scopes with which all paths begin."""
    common_path = paths[0]
    for path in paths[1:]:
        k = 0
        while k < min(len(common_path), len(path)) and common_path[k] == path[k]:
            k += 1
        common_path = common_path[:k]
    return common_path


def _by_neighbours(graph: OpGraph, paths: list[Path], update: NDArray[np.bool_]) -> None:
    """Gives ops without a scope that of their producers, in topological order, and then that of their readers, in reverse.

    Ops that an optimizer runs for all scopes together (clipping by the norm, counting steps) stay in a scope of their own.
    """
    stray = [path in ((), (BACKWARD,)) for path in paths]
    alone = [k for k, path in enumerate(paths) if path == () and not update[k]]
    pointer, ahead = graph.successors
    if len(alone) > MOST_STRAYS * graph.n:  # the model has no scopes for them
        for k in alone:
            readers = ahead[pointer[k] : pointer[k + 1]].tolist()
            stray[k] = bool(readers) and all(paths[r][:1] == (BACKWARD,) for r in readers)
    for backwards, (pointer, near) in ((False, graph.predecessors), (True, graph.successors)):
        first, neighbours = pointer.tolist(), near.tolist()
        for op in graph.order[:: -1 if backwards else 1].tolist():
            if stray[op]:
                near_by = [paths[k] for k in neighbours[first[op] : first[op + 1]] if not stray[k]]
                near_by = [p for p in near_by if paths[op] == p[: len(paths[op])]]  # backward ones stay backward
                votes = Counter(near_by)
                if not votes:
                    winner = None
                else:
                    if backwards:  # an op that both passes read belongs to the forward pass
                        votes = Counter({p: k for p, k in votes.items() if p[:1] != (BACKWARD,)}) or votes
                    outer = Counter(_outermost(p) for p in votes.elements()).most_common(1)[0][0]
                    winner = _common([p for p in votes if _outermost(p) == outer])
                if winner is not None and update[op] and len({_outermost(p) for p in near_by}) > 1:
                    winner = ("optimizer",)
                if winner is not None:
                    paths[op], stray[op] = winner, False


def _outermost(path: Path) -> Path:
    return path[: 2 if path[:1] == (BACKWARD,) else 1]
