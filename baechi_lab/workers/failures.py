"""Errors of TensorFlow, and the ends of processes, in one line."""

from __future__ import annotations

import re

_HEADINGS = (
    "Graph execution error",
    "Detected at node",
    "Node:",
    "<stack traces unavailable>",
    "File ",
    "From /job:",
    "=====",
)
_COUNT = re.compile(r"\d+ root error\(s\) found")
_NUMBER = re.compile(r"^\(\d+\) [A-Z_]+: ")


def first_line(error: BaseException) -> str:
    """Returns an error in one line, without the headings and lists of ops that TensorFlow puts around it.

    Of several errors it is the first.

    >>> first_line(ValueError("Graph execution error:\\n\\n2 root error(s) found.\\n  (0) INTERNAL: no kernel\\n  (1) ABORTED: "))
    'no kernel'
    """
    text = str(getattr(error, "message", None) or error or type(error).__name__)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (_NUMBER.sub("", line) for line in lines if not line.startswith(_HEADINGS) and not _COUNT.match(line))
    return next(telling, lines[0] if lines else type(error).__name__)[:500]


_CAUSES = (r"F\d{4} .*\] ", r"what\(\): ", "terminate called", "Fatal Python error: ")
"""Beginnings of the lines that say why a process ends: of glog, C++ and Python's faulthandler.

faulthandler comes last: it names the signal that the others raise.
"""
_STACK = re.compile(
    r'File "|(Current )?[Tt]hread 0x|<no Python frame>|Stack \(most recent|Binary file "|@ |#\d|\*\*\* |PC: @|Extension modules: '
)
"""Beginnings of the lines of their dumps, which say where the process was."""


def cause_of_end(log: bytes) -> str:
    """Returns the line of a process's log that says why it ended: the last one, if no dump of stacks follows it.

    >>> cause_of_end(b"ready\\nFatal Python error: Aborted\\n\\nCurrent thread 0x7f:\\n  File \\"a.py\\", line 6 in f")
    'Fatal Python error: Aborted'
    """
    lines = [line.strip()[:300] for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
    for cause in _CAUSES:
        for line in lines:
            if re.match(cause, line):
                return line
    return next((line for line in reversed(lines) if not _STACK.match(line)), lines[-1] if lines else "")
