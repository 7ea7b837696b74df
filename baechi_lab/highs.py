"""The linear solver HiGHS without output."""

from __future__ import annotations

from typing import Any


def silent_highs(**options: Any) -> Any:
    """Returns a HiGHS solver with these options that writes nothing.

    It is of the compiled class: since version 1.16 the constructor of the Python class around it prints a banner.

    >>> silent_highs(threads=1).getOptionValue("threads")[1]
    1
    """
    from highspy._core import _Highs

    solver = _Highs()
    for name, value in {"output_flag": False, **options}.items():
        solver.setOptionValue(name, value)
    return solver
