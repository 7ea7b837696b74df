"""Names the outputs of a step by the keys of the dict that it returns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .nodes import split

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def name_outputs(nodes: list[NodeDef], outputs: list[str], structure: object) -> tuple[list[str], tuple[str, ...]]:
    """Renames the Identity that tracing adds for an output to the key under which the output is returned.

    Args:
        nodes: NodeDefs, changed in place.
        outputs: references like `"Identity:0"`.
        structure: the function's result: dicts and tuples of symbolic tensors.

    Returns:
        the outputs' references, and their names (`loss`, or `metrics/accuracy` for nested ones); no names if the function
        returned no dict. An op that already has the name keeps it.
    """
    names = list(_paths(structure, ())) if isinstance(structure, dict) else []
    if len(names) != len(outputs) or len(set(outputs)) != len(outputs):
        return outputs, ()
    used_names = {n.name for n in nodes}
    table = {n.name: n for n in nodes}
    new_name: dict[str, str] = {}
    for reference, name in zip(outputs, names, strict=True):
        identity_name = split(reference)[0]
        legal = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
        if table[identity_name].op == "Identity" and legal not in used_names and re.match(r"[A-Za-z0-9.]", legal):
            used_names.add(legal)
            new_name[identity_name] = legal
    for node in nodes:
        node.name = new_name.get(node.name, node.name)
        for k, reference in enumerate(node.input):
            node.input[k] = _rename_reference(reference, new_name)
    return [_rename_reference(reference, new_name) for reference in outputs], tuple(names)


def _rename_reference(reference: str, new_name: dict[str, str]) -> str:
    waits = "^" if reference.startswith("^") else ""
    source, colon, index = reference.removeprefix("^").partition(":")
    return waits + new_name.get(source, source) + colon + index


def _paths(value: object, above: tuple[str, ...]) -> Iterator[str]:
    """Yields one path per tensor in TensorFlow's order of flattening, with the keys of dicts sorted."""
    import tensorflow as tf

    if isinstance(value, dict):
        for key in sorted(value):
            yield from _paths(value[key], (*above, str(key)))
    elif isinstance(value, (list, tuple)):
        for k, element in enumerate(value):
            yield from _paths(element, (*above, str(k)))
    else:
        for _ in tf.nest.flatten(value, expand_composites=True):
            if value is not None:
                yield "/".join(above)
