"""Our docstrings, as the parser of Google's style wants them: each entry with one name, each example in its section."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to a blank line, as doctest reads it
_SECTION = re.compile(r"^(?:Args|Raises):\n(?:(?: .*)?\n)+", re.MULTILINE)
_SHARED = re.compile(r"^    (\w+(?:, \w+)+)(: .*(?:\n     .*)*)", re.MULTILINE)


class HouseStyle(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_google(obj.docstring.value)


def as_google(text: str) -> str:
    """`text` with its doctests under a heading, and an entry `a, b: what` as one for `a` and one for `b`.

    >>> as_google("Twice.\\n\\nArgs:\\n    a, b: numbers.\\n\\n>>> 2 * 3\\n6").splitlines()[2:]
    ['Args:', '    a: numbers.', '    b: numbers.', '', 'Examples:', '    >>> 2 * 3', '    6']
    """
    apart = _SECTION.sub(lambda section: _SHARED.sub(_one_each, section[0]), text + "\n").rstrip()
    return _EXAMPLE.sub(lambda found: "Examples:\n" + textwrap.indent(found[0], "    "), apart)


def _one_each(entry: re.Match[str]) -> str:
    return "\n".join(f"    {name}{entry[2]}" for name in entry[1].split(", "))
