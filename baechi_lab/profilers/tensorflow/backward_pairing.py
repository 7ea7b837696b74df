"""Pairs each backward op with its forward op.

TensorFlow names gradient ops `gradient_tape/<name scope of the forward op>/...`, and in the gradient of a called function
`gradients/<forward op>_grad/...`. The search starts at the longest prefix of that path that is a forward op or a scope of
forward ops. An op through which no gradient can pass, such as a count of an optimizer, is no forward op. Within a scope, the
best candidate is a forward op of fitting type (`Relu` for `ReluGrad`), then one whose data the gradient op reads, then the
last one. Ops without such a name (sums of gradients, constants) take the pair of a backward op that reads them or that they
read. O(ops x depth of names), plus the ops of each scope once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .inlining import CONTROL_FLOW_OPS
from .nodes import data_inputs, output_types

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_TAPE = "gradient_tape/"
_SEED = "gradients/grad_ys_"  # start of a function's gradient
_PLUMBING = frozenset({"Const", "VarHandleOp", "ReadVariableOp", "Placeholder", "NoOp"})
_DIFFERENTIATED = frozenset({"VarHandleOp", "Placeholder"})
_MAX_SCOPE = 200  # in a larger scope, only ops that share data with the gradient op are candidates


def is_backward(name: str) -> bool:
    """Whether the name marks an op that computes gradients."""
    return _TAPE in name or _SEED in name or _grad_target(name) is not None


def forward_ops(nodes: tuple[NodeDef, ...]) -> NDArray[np.int32]:
    """Returns int32[n], the forward op of every backward op, -1 for none. `nodes` are in topological order."""
    return _Pairing(nodes).run()


def _grad_target(name: str) -> str | None:
    """Returns the forward op that a name of the second form refers to; None for other names.

    A call within a call names both: `gradients/f_grad/PartitionedCall/gradients/MatMul_grad/MatMul_1` is `f/MatMul`.
    """
    path = name.split("/")
    target: list[str] = []
    start = 0
    while start < len(path):
        if path[start] == "gradients":
            end = next((position for position in range(start + 1, len(path)) if path[position].endswith("_grad")), None)
            if end is not None:
                target += [*path[start + 1 : end], path[end][: -len("_grad")]]
                start = end
        start += 1
    return "/".join(target) or None


class _Pairing:
    """Looks up the forward op of each backward op of one graph, by the names, scopes and neighbours of its ops."""

    def __init__(self, nodes: tuple[NodeDef, ...]) -> None:
        self.nodes = nodes
        self.index = {node.name: i for i, node in enumerate(nodes)}
        self.backward = [is_backward(node.name) for node in nodes]
        self.sources = [[self.index[p] for p, _ in data_inputs(node)] for node in nodes]
        self.readers: list[list[int]] = [[] for _ in nodes]
        for i, sources in enumerate(self.sources):
            for s in sources:
                self.readers[s].append(i)
        self.differentiable = self._differentiable()
        self.scopes: dict[str, list[int]] = defaultdict(list)
        self.leaves: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(nodes):
            if not self.backward[i]:
                path = node.name.split("/")
                self.leaves[path[-1]].append(i)
                if node.op not in _PLUMBING:
                    for depth in range(1, len(path)):
                        self.scopes["/".join(path[:depth])].append(i)

    def run(self) -> NDArray[np.int32]:
        """Returns int32[n], the forward op of every backward op, -1 for none."""
        forward_of = np.full(len(self.nodes), -1, dtype=np.int32)
        for i, node in enumerate(self.nodes):
            if self.backward[i]:
                target = _grad_target(node.name)
                forward_of[i] = -1 if target is None else self._by_suffix(i, target)
                if forward_of[i] < 0 and _TAPE in node.name:
                    forward_of[i] = self._by_tape(i)
        # Unpaired backward ops, and sums of gradients outside any scope, get the pair of a neighbour.
        unpaired_ops = [i for i, b in enumerate(self.backward) if b and forward_of[i] < 0]
        sums = [i for i, node in enumerate(self.nodes) if node.op == "AddN" and not self.backward[i]]
        sums = [i for i in sums if all(self.backward[s] or self.nodes[s].op == "AddN" for s in self.sources[i])]
        for i in unpaired_ops:
            if _SEED not in self.nodes[i].name:
                self._take_pair_of_neighbour(i, self.sources[i], forward_of)
        for i in sorted([*unpaired_ops, *sums], reverse=True):
            self._take_pair_of_neighbour(i, self.readers[i], forward_of)
        for i in sorted([*unpaired_ops, *sums]):
            self._take_pair_of_neighbour(i, self.sources[i], forward_of)
        # An op that a forward op reads, such as an empty list that a loop fills, is no part of its gradient.
        read_by_loops = set[int]()
        for i in range(len(self.nodes) - 1, -1, -1):
            if forward_of[i] in self.readers[i] or not read_by_loops.isdisjoint(self.readers[i]):
                forward_of[i] = -1
                read_by_loops.add(i)
        return forward_of

    def _differentiable(self) -> list[bool]:
        """Returns for each op whether a gradient may pass through it: it gives floats that depend on a variable or an input.

        No gradient passes through ops that read gradients, such as those of an optimizer. Counts of steps are no floats.
        """
        import tensorflow as tf

        varies, reads_gradients = [False] * len(self.nodes), self.backward[:]
        for i, node in enumerate(self.nodes):
            varies[i] = node.op in _DIFFERENTIATED or any(varies[s] for s in self.sources[i])
            reads_gradients[i] |= any(reads_gradients[s] for s in self.sources[i])
        gives_floats = (
            any(
                tf.dtypes.as_dtype(kind).is_floating or tf.dtypes.as_dtype(kind).is_complex
                for kind in output_types(node)
            )
            for node in self.nodes
        )
        return [a and b and not c for a, b, c in zip(varies, gives_floats, reads_gradients, strict=True)]

    def _by_tape(self, i: int) -> int:
        """Returns the forward op of the longest prefix of an op's path after `gradient_tape/`, or -1."""
        before_tape, _, after_tape = self.nodes[i].name.partition(_TAPE)
        path = (before_tape + after_tape.replace(_TAPE, "")).split("/")
        linked_ops = self._linked_forward_ops(i)
        for depth in range(len(path), 0, -1):
            prefix = "/".join(path[:depth])
            named_op = self.index.get(prefix, -1)
            is_forward = named_op >= 0 and self.differentiable[named_op] and self.nodes[named_op].op not in _PLUMBING
            if is_forward and (depth < len(path) or self._fits(i, named_op)):
                return named_op
            scope_ops = self.scopes.get(prefix)
            if scope_ops:
                linked_in_scope = [f for f in linked_ops if self.nodes[f].name.startswith(prefix + "/")]
                if linked_in_scope or len(scope_ops) <= _MAX_SCOPE:
                    return self._best(i, linked_in_scope or scope_ops)
                return -1
        linked_in_scope = [f for f in linked_ops if "/" not in self.nodes[f].name]
        return self._best(i, linked_in_scope) if linked_in_scope else -1

    def _by_suffix(self, i: int, target: str) -> int:
        """Returns the forward op named `target` in the nearest scope into which its function was inlined."""
        linked_ops = set(self._linked_forward_ops(i))
        gradient_name = self.nodes[i].name.replace(_TAPE, "")
        leaf = self.leaves.get(target.rsplit("/", 1)[-1], ())
        while True:
            matching_ops = [f for f in leaf if ("/" + self.nodes[f].name).endswith("/" + target)]
            if matching_ops or "/" not in target:
                return max(
                    matching_ops,
                    key=lambda f: (_common_scopes(gradient_name, self.nodes[f].name), f in linked_ops, f),
                    default=-1,
                )
            target = target.partition("/")[2]

    def _linked_forward_ops(self, i: int) -> list[int]:
        """Returns the forward ops whose output this op reads, or that read one of its inputs."""
        forward: dict[int, None] = {}
        for source in self.sources[i]:
            if self.backward[source]:
                continue
            if self.nodes[source].op not in _PLUMBING:
                forward[source] = None
            if self.nodes[source].op != "VarHandleOp":
                forward.update((r, None) for r in self.readers[source] if not self.backward[r])
        return [f for f in forward if self.nodes[f].op not in _PLUMBING]

    def _fits(self, i: int, f: int) -> bool:
        """Whether the type of op `i` begins with that of op `f`, as `ReluGrad` with `Relu`."""
        return self.nodes[i].op.startswith(self.nodes[f].op)

    def _best(self, i: int, candidates: Iterable[int]) -> int:
        """Returns the candidate of fitting type, else one that op `i` reads or shares an input with, else the last one."""
        sources = set(self.sources[i])
        return max(candidates, key=lambda f: (self._fits(i, f), f in sources, bool(sources & set(self.sources[f])), f))

    def _take_pair_of_neighbour(self, i: int, neighbours: list[int], forward_of: NDArray[np.int32]) -> None:
        """Gives op `i`, if it has no forward op, that of a neighbour, or a loop or conditional among its neighbours."""
        if forward_of[i] < 0:
            pairs = (int(forward_of[k]) for k in neighbours if forward_of[k] >= 0 and forward_of[k] != i)
            loops = (k for k in neighbours if self.nodes[k].op in CONTROL_FLOW_OPS and not self.backward[k])
            forward_of[i] = next(pairs, next(loops, -1))


def _common_scopes(a: str, b: str) -> int:
    """Returns the number of leading scopes that two names share."""
    pairs = zip(a.split("/"), b.split("/"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
