"""TensorFlow's errors in one line."""

from __future__ import annotations

_HEADINGS = (
    "Graph execution error",
    "Detected at node",
    "Node:",
    "<stack traces unavailable>",
    "File ",
    "From /job:",
    "=====",
)


def first_line(error: BaseException) -> str:
    """Returns an error in one line, without the headings and lists of ops that TensorFlow puts around it.

    >>> first_line(ValueError("Graph execution error:\\n\\nno kernel"))
    'no kernel'
    """
    text = str(getattr(error, "message", None) or error or type(error).__name__)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (line for line in lines if not line.startswith(_HEADINGS))
    return next(telling, lines[0] if lines else type(error).__name__)[:500]
