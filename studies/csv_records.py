"""Reads tables of measurements: CSV files with a heading, also compressed by gzip."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

Record = TypeVar("Record", bound=NamedTuple)


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Returns the rows of a file as column -> text."""
    open_text = gzip.open if str(path).endswith(".gz") else open
    with open_text(path, "rt", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def read_records(path: str | Path, record_type: type[Record]) -> list[Record]:
    """Returns the rows of a file as records, whose fields are columns of the same name and are texts or numbers.

    >>> class Cost(NamedTuple):
    ...     op: str
    ...     us: float
    >>> _ = Path("costs.csv").write_text("us,op,device\\n1.5,add,cpu\\n")
    >>> read_records("costs.csv", Cost)
    [Cost(op='add', us=1.5)]
    """
    types = get_type_hints(record_type)
    return [record_type(*(types[field](row[field]) for field in record_type._fields)) for row in read_rows(path)]
