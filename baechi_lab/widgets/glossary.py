"""The glossary, of which glossary.csv has the terms: tooltips of the workbench, and docs/glossary.md, which
`python -m baechi_lab.widgets.glossary` prints.
"""

from __future__ import annotations

import csv
import html
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

with Path(__file__).with_name("glossary.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))

GLOSSARY: Mapping[str, str] = MappingProxyType({row["term"]: row["meaning"] for row in _ROWS})
"""Terms and what they mean, in Markdown, in the order of the page."""

WORDS: Mapping[str, str] = MappingProxyType(
    {pattern: row["term"] for row in _ROWS for pattern in row["words"].split(";") if pattern}
)
"""Patterns that are marked in the texts of the workbench, and their terms."""
NAMES: Mapping[str, str] = MappingProxyType(
    {name: row["term"] for row in _ROWS for name in row["names"].split(";") if name}
)
"""Names of placers, columns and numbers that are also plain English words, and their terms: texts do not mark them."""
_MARK = re.compile(r"(?<![\w/.-])(?:" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")(?![\w/-])", re.IGNORECASE)


def meaning(term: str) -> str:
    """Returns the meaning of a term as plain text."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", GLOSSARY[term])
    return re.sub(r"[`*]", "", text)


def tip(word: str) -> str:
    """Returns the meaning of a word, or of the name of a placer, a column or a number; empty if the glossary has none.

    >>> tip("lower bound")[:40], tip("single")[:29], tip("blue")
    ('A step time that no placement and no sch', 'A placer that puts everything', '')
    """
    definition = NAMES.get(word.strip()) or next(
        (term for pattern, term in WORDS.items() if re.fullmatch(pattern, word.strip(), re.IGNORECASE)), None
    )
    return "" if definition is None else meaning(definition)


def with_term_tooltips(text: str) -> str:
    """Returns a plain text as HTML in which the first use of every term has its meaning as tooltip.

    >>> with_term_tooltips("<the makespan>")
    '&lt;the <abbr title="The time from the start of a step to the end of its last op: the step time.">makespan</abbr>&gt;'
    """
    explained_terms: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        definition = tip(match[0])
        if not definition or definition in explained_terms:
            return match[0]
        explained_terms.add(definition)
        return f'<abbr title="{html.escape(definition)}">{match[0]}</abbr>'

    return _MARK.sub(mark, html.escape(text))


def name_with_tooltip(name: str) -> str:
    """Returns a name as HTML with its meaning as tooltip; a name of several words has those of its terms.

    >>> name_with_tooltip("op")[:41], name_with_tooltip("blue")
    ('<abbr title="A node of the graph: a matri', 'blue')
    """
    definition = tip(name)
    if definition:
        return f'<abbr title="{html.escape(definition)}">{html.escape(name)}</abbr>'
    return with_term_tooltips(name)


def page() -> str:
    """Returns the page docs/glossary.md."""
    head = "# Glossary\n\nNames of records and functions are those of the [reference](api/index.md).\n"
    fold = textwrap.TextWrapper(118, initial_indent=":   ", subsequent_indent="    ", break_on_hyphens=False).fill
    return head + "".join(f"\n{term}\n{fold(text)}\n" for term, text in GLOSSARY.items())


if __name__ == "__main__":
    print(page(), end="")
