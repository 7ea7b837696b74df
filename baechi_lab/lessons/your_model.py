"""Exercises of `60_your_model.ipynb`: the memory of a model, and its split into stages."""

from __future__ import annotations

from .exercise import function, names, number

WAYS = ("measured", "estimated", "configuration", "exported program", "trace", "graph file")


def split(layer_us: list[float], stages: int) -> float:
    """Returns the largest stage of the best split of layers into consecutive stages, one per GPU.

    >>> split([4.0, 4.0, 4.0, 4.0, 1.0], 2)
    9.0
    """
    if stages == 1 or len(layer_us) <= 1:
        return sum(layer_us)
    return min(
        max(sum(layer_us[:k]), split(layer_us[k:], stages - 1))
        for k in range(1, len(layer_us) - min(stages - 1, len(layer_us) - 1) + 1)
    )


CHECKS = {
    # A model of 2e9 parameters trained by Adam: 2e9 * (4 + 4 + 2 * 4) bytes of weights, gradients and states.
    1: number(
        32,
        "GB",
        {
            8.0: "those are the weights alone",
            16.0: "Adam keeps two numbers for each weight",
            24.0: "count the gradients, too",
            4.0: "four bytes per number",
        },
    ),
    2: names({"measured", "trace"}, WAYS),
    3: function(
        split,
        lambda: [
            ([4.0, 4.0, 4.0, 4.0, 1.0], 2),
            ([5.0], 1),
            ([1.0, 2.0, 3.0, 4.0], 1),
            ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], 3),
            ([7.0, 2.0, 5.0, 10.0, 8.0], 2),
            ([1.0, 1.0, 8.0, 1.0], 4),
        ],
    ),
}
