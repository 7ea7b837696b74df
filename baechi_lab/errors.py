"""The exceptions and warnings of this library. Every exception that it raises on purpose is a `BaechiLabError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def in_short(value: object, length: int = 60) -> str:
    """Returns what a message says of `value`: at most `length` characters of what Python writes for it.

    Python refuses to write whole numbers of more than 4,300 digits, alone and within lists.

    >>> in_short("text"), in_short(10**5000), in_short([10**5000])
    ("'text'", 'a number of more than 50 digits', 'a list with a number of thousands of digits')
    """
    if isinstance(value, int) and abs(value) >= 10**50:
        return "a number of more than 50 digits"
    try:
        return repr(value)[:length]
    except ValueError:
        return f"a {type(value).__name__} with a number of thousands of digits"


def describe_error(error: BaseException, length: int = 300) -> str:
    """Returns the class of an error and at most `length` characters of its message, in one line.

    >>> describe_error(ValueError("no\\n  number")), describe_error(MemoryError())
    ('ValueError: no number', 'MemoryError')
    """
    message = " ".join(str(error).split())[:length]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


MOST_LISTED_NAMES = 40
"""Known names that an error about an unknown one lists."""


class BaechiLabError(Exception):
    """Base class of every error that this library raises on purpose; its message is always one line."""

    def __init__(self, *args: object):
        super().__init__(*(" ".join(a.split()) if isinstance(a, str) and len(a.splitlines()) > 1 else a for a in args))


class InvalidInput(BaechiLabError, ValueError):
    """An argument is not allowed; the message names the field, the value and what is allowed."""


class CycleError(InvalidInput):
    """The graph is not a DAG."""


class OpenBatchSize(InvalidInput):
    """A program leaves its batch size open, and none is given."""


class CostError(InvalidInput):
    """A duration or size is negative, NaN or infinite."""


class UnknownOpError(InvalidInput):
    """An index or name does not belong to the graph."""


class DuplicateNameError(InvalidInput):
    """Two operators, tensors of one producer, or devices share a name."""


class ColocationError(InvalidInput):
    """Operators that must share a device have no common allowed device."""


class FormatError(InvalidInput):
    """A file is truncated, foreign, or does not follow its format."""


class UnknownNameError(InvalidInput):
    """No placer, pass, model or hardware of that name; the message suggests the nearest."""

    @classmethod
    def of(cls, kind: str, name: object, known_names: Iterable[str]) -> UnknownNameError:
        """Makes the error for a `name` that is not among `known_names`, the names of that kind of thing.

        Of many names it lists the nearest.
        """
        names = sorted(set(known_names))
        lower = {known_name.lower(): known_name for known_name in names}  # "A1000" is nearer to "a100" than to "v100"
        near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5) if isinstance(name, str) else []
        hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
        listed_names, unlisted_count = names, ""
        if len(names) > MOST_LISTED_NAMES:
            nearest = difflib.get_close_matches(in_short(name, 80).lower(), lower, n=MOST_LISTED_NAMES, cutoff=0.0)
            listed_names = sorted(lower[near_name] for near_name in nearest)
            unlisted_count = f" and {len(names) - len(listed_names)} more"
        return cls(f"unknown {kind} {in_short(name, 80)}{hint} (known: {', '.join(listed_names)}{unlisted_count})")


class InfeasiblePlacement(BaechiLabError):
    """No placement fits the memory (or the allowed devices).

    Args:
        message: one sentence.
        needed_bytes: the bytes that had to be placed.
        available_bytes: the memory of each device.
        is_proof: whether it is proven that none fits; False where a placer found none, or counted more bytes than needed.
    """

    def __init__(
        self, message: str, needed_bytes: int = 0, available_bytes: Sequence[int] = (), *, is_proof: bool = True
    ):
        super().__init__(message)
        self.is_proof = is_proof
        self.needed_bytes = int(needed_bytes)
        self.available_bytes = tuple(int(b) for b in available_bytes)


class ExecutionError(BaechiLabError):
    """A placed step could not be run on real devices."""


class StepWarning(UserWarning):
    """A graph, a step or a setting makes results other than expected; of warnings that have no class of their own."""


class CodeOrderKept(UserWarning):
    """Some calls keep the order of the code, because the planned order could change results; the message names them."""


class ActivationsKept(UserWarning):
    """Outputs that the graph recomputes are kept in memory, because their calls cannot run twice; the message names them."""


class StateAtOnce(UserWarning):
    """All offloaded optimizer state is copied to its devices at once, which takes more memory than simulated."""


class UncountedWork(UserWarning):
    """A profile is too short, because the work of an operator or of a pass is not counted; the message names it."""


class AssumedShares(UserWarning):
    """An estimate assumes that layers with the shapes of experts get equal shares of the tokens; the message names them."""


class BusyMachine(UserWarning):
    """Other programs ran during the measurement of a profile, or its repeats differ widely; the message says by how much."""


class RandomLayers(UserWarning):
    """A model drew which of its layers run, and a profile lacks those that it skipped; the message names one."""


TESTED_VERSIONS = {"tensorflow": ">=2.17,<2.22", "torch": ">=2.13,<2.14"}
"""Required versions of the frameworks, of which private names are used; a test compares them with pyproject.toml."""


class MissingPackage(BaechiLabError, ImportError):
    """An optional package is not installed; the message says which `pip install` brings it."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingPackage:
        """Makes the error for a package; `extra` is the extra of a checkout that installs it, empty if every checkout does."""
        checkout = f"'.[{extra}]'" if extra else "."
        requirement = f"'{package}{TESTED_VERSIONS[package]}'" if package in TESTED_VERSIONS else package
        return cls(
            f"{purpose} needs the package {package!r}: pip install {requirement} (in a checkout: pip install {checkout})"
        )
