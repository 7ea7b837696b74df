"""The linear solver HiGHS without output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from highspy import HighsLp

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


def silent_highs(**options: Any) -> Any:
    """Returns a HiGHS solver with these options that writes nothing.

    It is of the compiled class: since version 1.16 the constructor of the Python class around it prints a banner.
    """
    from highspy._core import _Highs

    solver = _Highs()
    for name, value in {"output_flag": False, **options}.items():
        solver.setOptionValue(name, value)
    return solver


def row_program(
    cost: FloatArray,
    columns: tuple[FloatArray, FloatArray],
    rows: tuple[FloatArray, FloatArray],
    matrix: tuple[IntArray, IntArray, FloatArray],
) -> HighsLp:
    """Returns the program that minimizes `cost`, with lower and upper bounds of `columns` and of `rows`.

    `matrix` has the start of each row, the columns of its entries, and their values.
    """
    import highspy

    model = highspy.HighsLp()
    model.num_row_, model.num_col_, model.col_cost_ = len(rows[0]), len(cost), cost
    model.col_lower_, model.col_upper_ = columns
    model.row_lower_, model.row_upper_ = rows
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = matrix
    return model
