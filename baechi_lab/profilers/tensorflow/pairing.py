"""Which forward op does a backward op belong to?

TensorFlow names gradient ops `gradient_tape/<name scope of the forward op>/...`, and in the gradient of a called
function `gradients/<forward op>_grad/...`. The longest prefix of that path which is a forward op, or a scope with
forward ops in it, is the place to look; within a scope the forward op whose data the gradient op reads wins, then the
one whose type fits (`Relu` for `ReluGrad`), then the last. What has no place by name (sums of gradients, constants)
follows the backward op that reads it, or that it reads. O(ops x depth of names), plus the ops of each scope once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.opgraph import OpGraph
from .inlining import CONTROL_FLOW_OPS
from .nodes import data_inputs

_TAPE = "gradient_tape/"
_SEED = "gradients/grad_ys_"  # what a function's gradient starts from
_PLUMBING = frozenset({"Const", "VarHandleOp", "ReadVariableOp", "Placeholder", "NoOp"})
_MAX_SCOPE = 200  # a larger scope says too little: only an op that shares data with the gradient op is taken from it


def is_backward(name: str) -> bool:
    """Does the name say that this op computes gradients?"""
    return _TAPE in name or _SEED in name or _grad_target(name) is not None


def paired_share(graph: OpGraph) -> float:
    """Share of the backward ops (by name) that know their forward op; 1.0 when there are none."""
    backward = [i for i, name in enumerate(graph.names) if is_backward(name)]
    return float(np.mean(graph.forward_of[backward] >= 0)) if backward else 1.0


def forward_ops(nodes: tuple[Any, ...]) -> NDArray[np.int32]:
    """int32[n]: the forward op of every backward op, -1 for none. `nodes` are in topological order."""
    return _Pairing(nodes).run()


def _grad_target(name: str) -> str | None:
    """The forward op that a name of the second form means; None for other names.

    A call within a call names both: `gradients/f_grad/PartitionedCall/gradients/MatMul_grad/MatMul_1` is `f/MatMul`.
    """
    parts = name.split("/")
    target: list[str] = []
    k = 0
    while k < len(parts):
        if parts[k] == "gradients":
            end = next((e for e in range(k + 1, len(parts)) if parts[e].endswith("_grad")), None)
            if end is not None:
                target += [*parts[k + 1 : end], parts[end][: -len("_grad")]]
                k = end
        k += 1
    return "/".join(target) or None


class _Pairing:
    """Indexes of one graph; made and used once."""

    def __init__(self, nodes: tuple[Any, ...]) -> None:
        self.nodes = nodes
        self.index = {node.name: i for i, node in enumerate(nodes)}
        self.backward = [is_backward(node.name) for node in nodes]
        self.sources = [[self.index[p] for p, _ in data_inputs(node)] for node in nodes]
        self.readers: list[list[int]] = [[] for _ in nodes]
        for i, sources in enumerate(self.sources):
            for s in sources:
                self.readers[s].append(i)
        self.scopes: dict[str, list[int]] = defaultdict(list)
        self.leaves: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(nodes):
            if not self.backward[i]:
                self._register(i, node)

    def _register(self, i: int, node: Any) -> None:
        parts = node.name.split("/")
        self.leaves[parts[-1]].append(i)
        if node.op not in _PLUMBING:
            for depth in range(1, len(parts)):
                self.scopes["/".join(parts[:depth])].append(i)

    def run(self) -> NDArray[np.int32]:
        found = np.full(len(self.nodes), -1, dtype=np.int32)
        for i, node in enumerate(self.nodes):
            if self.backward[i]:
                target = _grad_target(node.name)
                found[i] = -1 if target is None else self._by_suffix(i, target)
                if found[i] < 0 and _TAPE in node.name:
                    found[i] = self._by_tape(i)
        self._follow_neighbours(found)
        return found

    def _by_tape(self, i: int) -> int:
        before, _, rest = self.nodes[i].name.partition(_TAPE)
        parts = (before + rest.replace(_TAPE, "")).split("/")
        linked = self._linked(i)
        for depth in range(len(parts), 0, -1):
            prefix = "/".join(parts[:depth])
            exact = self.index.get(prefix, -1)
            if exact >= 0 and self._is_forward(exact) and (depth < len(parts) or self._fits(i, exact)):
                return exact
            inside = self.scopes.get(prefix)
            if inside:
                near = [f for f in linked if self.nodes[f].name.startswith(prefix + "/")]
                if near or len(inside) <= _MAX_SCOPE:
                    return self._best(i, near or inside)
                return -1
        near = [f for f in linked if "/" not in self.nodes[f].name]
        return self._best(i, near) if near else -1

    def _by_suffix(self, i: int, target: str) -> int:
        """The forward op named `target` in whatever scope its function was inlined; the nearest such scope."""
        linked = set(self._linked(i))
        own = self.nodes[i].name.replace(_TAPE, "")
        leaf = self.leaves.get(target.rsplit("/", 1)[-1], ())
        while True:
            same = [f for f in leaf if ("/" + self.nodes[f].name).endswith("/" + target)]
            if same or "/" not in target:
                return max(same, key=lambda f: (_common(own, self.nodes[f].name), f in linked, f), default=-1)
            target = target.partition("/")[2]

    def _linked(self, i: int) -> list[int]:
        """Forward ops whose output this op reads, or that read what it reads."""
        forward: dict[int, None] = {}
        for source in self.sources[i]:
            if self.backward[source]:
                continue
            if self.nodes[source].op not in _PLUMBING:
                forward[source] = None
            if self.nodes[source].op != "VarHandleOp":
                forward.update((r, None) for r in self.readers[source] if not self.backward[r])
        return [f for f in forward if self.nodes[f].op not in _PLUMBING]

    def _is_forward(self, k: int) -> bool:
        return not self.backward[k] and self.nodes[k].op not in _PLUMBING

    def _fits(self, i: int, f: int) -> bool:
        return self.nodes[i].op.startswith(self.nodes[f].op)

    def _best(self, i: int, candidates: Iterable[int]) -> int:
        sources = set(self.sources[i])
        return max(candidates, key=lambda f: (self._fits(i, f), f in sources, bool(sources & set(self.sources[f])), f))

    def _follow_neighbours(self, found: NDArray[np.int32]) -> None:
        """Unpaired backward ops, and sums of gradients outside any scope, take the pair of a neighbour.

        A loop that fills a list for its gradient is the pair of the list.
        """
        unpaired = [i for i, b in enumerate(self.backward) if b and found[i] < 0]
        sums = [i for i, node in enumerate(self.nodes) if node.op == "AddN" and not self.backward[i] and self._sums(i)]
        for i in unpaired:
            if _SEED not in self.nodes[i].name:
                self._take(i, self.sources[i], found)
        for i in sorted([*unpaired, *sums], reverse=True):
            self._take(i, self.readers[i], found)
        for i in sorted([*unpaired, *sums]):
            self._take(i, self.sources[i], found)

    def _take(self, i: int, neighbours: list[int], found: NDArray[np.int32]) -> None:
        if found[i] < 0:
            pairs = (int(found[k]) for k in neighbours if found[k] >= 0 and found[k] != i)
            loops = (k for k in neighbours if self.nodes[k].op in CONTROL_FLOW_OPS and not self.backward[k])
            found[i] = next(pairs, next(loops, -1))

    def _sums(self, i: int) -> bool:
        return all(self.backward[s] or self.nodes[s].op == "AddN" for s in self.sources[i])


def _common(a: str, b: str) -> int:
    """Leading scopes that two names share."""
    count = 0
    for x, y in zip(a.split("/"), b.split("/"), strict=False):
        if x != y:
            break
        count += 1
    return count
