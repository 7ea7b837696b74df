"""The outputs of a step that returns a dict are called as there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .nodes import split


def name_outputs(nodes: list[Any], outputs: list[str], returned: Any) -> tuple[list[str], tuple[str, ...]]:
    """Rename, in `nodes`, the Identity that tracing adds for an output to the key it is returned under.

    Args:
        nodes: NodeDefs, changed in place.
        outputs: references like `"Identity:0"`.
        returned: what the function returned, its dicts and tuples with symbolic tensors in them.

    Returns:
        the outputs' references, and their names (`loss`, or `metrics/accuracy` for nested ones), which are empty
        where the function returned no dict. An op that has the name already keeps it.
    """
    names = list(_paths(returned, ())) if isinstance(returned, dict) else []
    if len(names) != len(outputs) or len(set(outputs)) != len(outputs):
        return outputs, ()
    taken = {n.name for n in nodes}
    table = {n.name: n for n in nodes}
    renamed: dict[str, str] = {}
    for reference, name in zip(outputs, names, strict=True):
        old = split(reference)[0]
        legal = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
        if table[old].op == "Identity" and legal not in taken and re.match(r"[A-Za-z0-9.]", legal):
            taken.add(legal)
            renamed[old] = legal
    for node in nodes:
        node.name = renamed.get(node.name, node.name)
        for k, reference in enumerate(node.input):
            node.input[k] = _renamed(reference, renamed)
    return [_renamed(reference, renamed) for reference in outputs], tuple(names)


def _renamed(reference: str, renamed: dict[str, str]) -> str:
    waits = "^" if reference.startswith("^") else ""
    source, colon, index = reference.removeprefix("^").partition(":")
    return waits + renamed.get(source, source) + colon + index


def _paths(value: Any, above: tuple[str, ...]) -> Iterator[str]:
    """One path per tensor, in the order in which TensorFlow flattens them: keys of dicts sorted."""
    import tensorflow as tf

    if isinstance(value, dict):
        for key in sorted(value):
            yield from _paths(value[key], (*above, str(key)))
    elif isinstance(value, (list, tuple)):
        for k, part in enumerate(value):
            yield from _paths(part, (*above, str(k)))
    else:
        for _ in tf.nest.flatten(value, expand_composites=True):
            if value is not None:
                yield "/".join(above)
