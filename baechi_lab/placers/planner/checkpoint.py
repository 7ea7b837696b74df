"""A training run on disk: one `.npz` of plain arrays (no pickle), written whole or not at all.

It belongs to one graph, cluster and set of parameters (budgets aside); another one is refused by name.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, InvalidInput
from .reinforce import History, Trainer

VERSION = 2
_CURVES = ("reward", "valid", "best_seconds", "entropy", "grouper_entropy")


def save(path: str | os.PathLike[str], trainer: Trainer, belongs: dict[str, object]) -> None:
    """Writes `trainer`'s state; `belongs` identifies the run that may continue it."""
    head = {"version": VERSION, "belongs": belongs}
    arrays: dict[str, Any] = {
        "head": np.frombuffer(json.dumps(head, sort_keys=True).encode(), dtype=np.uint8),
        "numbers": np.array([trainer.baseline, trainer.best_seconds], dtype=np.float64),
        "counts": np.array([trainer.samples, trainer.adam.steps], dtype=np.int64),
        "best_device": trainer.best_device,
        "best_group": trainer.best_group,
    }
    for name, value in trainer.weights.items():
        arrays[f"weight/{name}"] = value
        arrays[f"first/{name}"], arrays[f"second/{name}"] = trainer.adam.first[name], trainer.adam.second[name]
    for curve in _CURVES:
        arrays[f"curve/{curve}"] = np.array(getattr(trainer.history, curve), dtype=np.float64)
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    with open(partial, "wb") as file:
        np.savez(file, **arrays)
    os.replace(partial, target)


def load(path: str | os.PathLike[str], trainer: Trainer, belongs: dict[str, object]) -> None:
    """Continues from `path`: replaces the state of a fresh `trainer`.

    Raises `FormatError` for a file that is missing, damaged or foreign, `InvalidInput` for one of another run.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"cannot read checkpoint {os.fspath(path)!r}: {error}") from error
    _check_head(path, arrays, belongs)
    try:
        trainer.baseline, trainer.best_seconds = (float(x) for x in arrays["numbers"])
        trainer.samples, trainer.adam.steps = (int(x) for x in arrays["counts"])
        trainer.best_device, trainer.best_group = arrays["best_device"], arrays["best_group"]
        for name in list(trainer.weights):
            trainer.weights[name] = arrays[f"weight/{name}"]
            trainer.adam.first[name], trainer.adam.second[name] = arrays[f"first/{name}"], arrays[f"second/{name}"]
        curves = {curve: arrays[f"curve/{curve}"].tolist() for curve in _CURVES}
        curves["valid"] = [int(x) for x in curves["valid"]]
        trainer.history = History(**curves)
    except (KeyError, IndexError) as error:
        raise FormatError(f"checkpoint {os.fspath(path)!r} lacks {error.args[0]}") from error


def _check_head(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], belongs: dict[str, object]) -> None:
    try:
        head = json.loads(arrays["head"].tobytes())
        version, stored_owner = head["version"], head["belongs"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)!r} is not a checkpoint of the planner") from error
    if version != VERSION:
        raise FormatError(f"checkpoint {os.fspath(path)!r} has version {version}; this one reads {VERSION}")
    expected_owner = json.loads(json.dumps(belongs, sort_keys=True))
    for key in sorted({*expected_owner, *stored_owner}):
        if expected_owner.get(key) != stored_owner.get(key):
            raise InvalidInput(
                f"checkpoint {os.fspath(path)!r} was made with {key} {stored_owner.get(key)!r}, "
                f"this run has {expected_owner.get(key)!r}; they must agree"
            )
