"""PyTorch's implementation of the protocol `baechi_lab.exporters.Exporter`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...errors import InvalidInput
from ...graph import Cluster, Placement
from ...torch_steps.step import TorchStep
from .export import export as export_folder
from .export import folder_files


def export(
    step: TorchStep, placement: Placement, folder: str | os.PathLike[str], *, cluster: Cluster | None, **options: Any
) -> Path:
    """Exports by `bl.torch.export`, for the devices of a `Cluster`."""
    if not (cluster is None or isinstance(cluster, Cluster)):
        raise InvalidInput(f"cluster is {cluster!r}; the script of a PyTorch step runs on the devices of a bl.Cluster")
    return export_folder(step, placement, folder, cluster=cluster, **options)


def script(step: TorchStep, placement: Placement, **options: Any) -> str:
    """Returns the `train.py` that `export` writes."""
    return str(folder_files(step, placement, **options)["train.py"])
