"""Profiles of PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646): its `graph.txt` of layers.

A line per layer, `node4 -- Conv2d(...) -- forward_compute_time=46.2, backward_compute_time=113.3,
activation_size=1644167168.0, parameter_size=147712.0`, times in ms and sizes in bytes of one micro-batch; then, each
after a tab, lines `node4 -- node5`: the second reads the first. What becomes what:

    node                one forward op, and one backward op with it in one colocation group, so that they share a stage;
                        a layer named Input has none, and takes no time: it loads data, which PipeDream leaves out
    duration_us         1000 * forward_compute_time, 1000 * backward_compute_time
    persistent_bytes    parameter_size, on the forward op
    tensors             what a forward op makes, activation_size, goes to the readers, and to the backward ops of both;
                        a backward op sends the gradient of what its layer read, of that size, to the backward op of the
                        layer that made it (gradients of one size are one tensor)
    stage_id=...        an earlier answer of PipeDream's, is not read
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ...errors import DuplicateNameError, FormatError, UnknownOpError, in_short
from ..opgraph import OpGraph

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


class _Layer(NamedTuple):
    name: str
    kind: str
    forward_ms: float
    backward_ms: float
    activation: int
    parameters: int


PEEK = 4096
"""Characters of a file's beginning that tell whether it is a profile."""


def looks_like_pipedream(beginning: str) -> bool:
    """Whether a text that begins like this is a profile, whole or damaged."""
    return beginning.lstrip()[:1] not in ("{", "[") and " -- " in beginning


def graph_from_pipedream(text: str, name: str) -> OpGraph:
    """Returns the training graph of a profile.

    Raises:
        FormatError: naming line and field, or that layers lack edges. DuplicateNameError, UnknownOpError, CycleError.
    """
    layers: dict[str, _Layer] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("\t"):
            end_ids = line.strip().split(" -- ")
            if len(end_ids) != 2:
                raise FormatError(f"line {number} is {line.strip()!r:.80}; it must be NODE -- NODE")
            for end in end_ids:
                if end not in layers:
                    raise UnknownOpError(f"line {number}: no node is named {end!r}")
            edges.append((end_ids[0], end_ids[1]))
        elif line.strip():
            columns = line.strip().split(" -- ")
            if len(columns) < 3:
                raise FormatError(f"line {number} is {line.strip()!r:.80}; it must be NODE -- DESCRIPTION -- FIELDS")
            fields = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", columns[2]))
            forward, backward, activation, parameters = (_number(fields, key, number) for key in _FIELDS)
            layer = _Layer(columns[0], columns[1], forward, backward, round(activation), round(parameters))
            if layer.name in layers:
                raise DuplicateNameError(f"line {number}: node {layer.name!r} is there twice")
            layers[layer.name] = layer
    ends_of_edges = {end for edge in edges for end in edge}
    alone = [x.name for x in layers.values() if x.name not in ends_of_edges and not x.kind.startswith("Input")]
    if alone and len(layers) > 1:
        raise FormatError(
            f"{len(alone)} of {len(layers)} nodes have no edge, such as {alone[0]!r} (edges come last: is the file truncated?)"
        )
    return _graph(list(layers.values()), edges, name)


def _number(fields: dict[str, str], key: str, line: int) -> float:
    """Reads one number; a list (of the sizes of several outputs) counts as its sum."""
    if key not in fields:
        raise FormatError(f"line {line}: field {key} is missing")
    try:
        value = sum(float(summand) for summand in re.split(r"[;,]", fields[key].strip("[]")) if summand.strip())
    except ValueError as error:
        raise FormatError(f"line {line}: {key} is {in_short(fields[key])}; it must be a number") from error
    if not 0 <= value < 2**62:
        raise FormatError(f"line {line}: {key} is {value}; it must be at least 0 and below 2**62")
    return value


def _graph(layers: list[_Layer], edges: list[tuple[str, str]], name: str) -> OpGraph:
    """Returns a forward and a backward op per trained layer; milliseconds become microseconds."""
    index = {layer.name: k for k, layer in enumerate(layers)}
    trained_layers = [k for k, layer in enumerate(layers) if not layer.kind.startswith("Input")]
    backward = {k: len(layers) + b for b, k in enumerate(trained_layers)}
    triples = [(k, backward_op, layers[k].activation) for k, backward_op in backward.items()]
    for source, target in ((index[a], index[b]) for a, b in edges):
        size = layers[source].activation
        triples.append((source, target, size))
        if target in backward:
            triples.append((source, backward[target], size))
            if source in backward:
                triples.append((backward[target], backward[source], size))
    return OpGraph.from_edges(
        [1000.0 * x.forward_ms * (k in backward) for k, x in enumerate(layers)]
        + [1000.0 * layers[k].backward_ms for k in trained_layers],
        triples,
        names=[x.name for x in layers] + [f"{layers[k].name}/backward" for k in trained_layers],
        op_types=[x.kind.split("(")[0] for x in layers]
        + [layers[k].kind.split("(")[0] + "Grad" for k in trained_layers],
        persistent_bytes=[x.parameters for x in layers] + [0] * len(trained_layers),
        colocation=np.array([*range(len(layers)), *trained_layers], dtype=np.int32),
        colocation_names=tuple(x.name for x in layers),
        forward_of=np.array([-1] * len(layers) + trained_layers, dtype=np.int32),
        name=name,
    )
