"""Setting: everything that the workbench's controls say, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import Cluster, Device, Link, Placement
from ..graph.device import DEFAULT_MEMORY, default_memory
from ..graph.hardware import HARDWARE
from ..graph.link import FREE, PCIE
from ..graph.link_presets import LINKS as PRESETS
from ..graph.link_presets import default_link
from ..passes.optimize import PASSES
from ..stages import Optimize, Profile

GIVEN_SUBJECT = "given"
"""The source that stands for the graph or step that the workbench was opened with."""

LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "PCIe 3.0 through host memory": PCIE,
        **{name: preset.link for name, preset in PRESETS.items()},
        "free (no cost)": FREE,
    }
)
"""Links by the names in the list of the workbench: paper B's fit (section 5.1), those of `baechi_lab.graph.link_presets`, and
one without cost."""


@dataclass(frozen=True)
class HardwarePreset:
    """So many machines of so many devices each, of one `hardware` (`graph.hardware`); links as in `Cluster.machines`."""

    hardware: str
    devices: int
    link: str
    machines: int = 1
    network: str = ""

    @property
    def cluster(self) -> Cluster:
        """The devices with the memory of their data sheet; between machines every pair has the link of the network."""
        memory_bytes = int(HARDWARE[self.hardware].memory_bytes)
        if self.machines == 1:
            return Cluster.uniform(self.devices, memory_bytes=memory_bytes, link=self.link, comm="duplex")
        count = self.devices * self.machines
        return Cluster.machines(count, self.devices, memory_bytes=memory_bytes, link=self.link, network=self.network)


HARDWARE_PRESETS: Mapping[str, HardwarePreset] = MappingProxyType(
    {
        "8 x H100, NVLink": HardwarePreset("h100", 8, "nvlink4"),
        "8 x A100, NVLink": HardwarePreset("a100", 8, "nvlink3"),
        "4 x RTX 4090, PCIe": HardwarePreset("rtx4090", 4, "pcie4"),
        "4 x RTX 2080, PCIe": HardwarePreset("rtx2080", 4, "pcie3"),
        "2 machines of 4 x A100, InfiniBand": HardwarePreset("a100", 4, "nvlink3", 2, "infiniband-hdr"),
        "2 machines of 4 x RTX 4090, Ethernet": HardwarePreset("rtx4090", 4, "pcie4", 2, "ethernet-25g"),
    }
)
"""Clusters that many have, by the words of the control."""


def preset_name(cluster: Cluster) -> str:
    """The preset that a cluster is; empty for any other.

    >>> preset_name(HARDWARE_PRESETS["4 x RTX 4090, PCIe"].cluster), preset_name(Cluster.uniform(3))
    ('4 x RTX 4090, PCIe', '')
    """
    return next((name for name, preset in HARDWARE_PRESETS.items() if preset.cluster == cluster), "")


@dataclass(frozen=True)
class Setting:
    """What is placed, on what, and how.

    Args:
        source: "given", "model:NAME" (a benchmark model) or "file:PATH" (a stored graph).
        model_params: parameters of the model other than its batch size; `batch_size` None means the model's own.
        profile, hardware: how a step gets its costs, see `bl.profile`.
        cluster: the devices and links.
        passes, forward_only: see `bl.optimize`; no passes means the graph is placed as it is.
        placer, params: see `bl.place`.
        scheduler: see `bl.simulate`.
        micro_batches, schedule: see `bl.simulate`; a model is then built with the batch of one micro-batch.
        replicas: so many copies of the placement side by side, each on its share of the devices, as in `bl.sweep`.
        moves: `(what, device name)` pairs: changes made by hand, in order, see `bl.move`.
        start: the setting whose placement a placer with the parameter `start` goes on from; it differs in `placer`, `params`,
            `moves` and `start` alone.
    """

    cluster: Cluster
    source: str = GIVEN_SUBJECT
    batch_size: int | None = None
    model_params: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "estimated"
    hardware: str = "rtx2080"
    passes: tuple[str, ...] = PASSES
    forward_only: bool | str = "auto"
    placer: str = "m-etf"
    params: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    replicas: int = 1
    moves: tuple[tuple[str, str], ...] = ()
    start: Setting | None = None

    def __post_init__(self) -> None:
        for key in ("model_params", "params"):
            object.__setattr__(self, key, MappingProxyType(dict(getattr(self, key))))
        object.__setattr__(self, "passes", Optimize(self.passes, self.forward_only).passes)
        object.__setattr__(self, "moves", _pairs(self.moves))
        kind, _, name = self.source.partition(":")
        if not (self.source == GIVEN_SUBJECT or (kind in ("model", "file") and name)):
            raise InvalidInput(f"source is {self.source!r}; it must be 'given', 'model:NAME' or 'file:PATH'")
        self._check_names()
        self._check_pipeline()

    def _check_names(self) -> None:
        """Refuse a model, costs and a scheduler that do not exist before anything is computed with them."""
        from ..models.registry import make_model
        from ..simulator.schedulers import make_scheduler

        if self.model:
            size = {} if self.batch_size is None else {"batch_size": self.batch_size}
            make_model(self.model, **{**self.model_params, **size})
        Profile(mode="estimated", hardware=self.hardware)
        Profile(mode=self.profile)
        make_scheduler(self.scheduler, Placement(device=np.zeros(1, np.int32)))

    def _check_pipeline(self) -> None:
        """Refuse a schedule that does not exist, a batch that does not divide, and devices that cannot be shared out."""
        from ..simulator.pipelined_graph import pipeline_options
        from ..sweeps.grid import replica_error

        pipeline_options(self.micro_batches, self.schedule)
        self.built_batch  # noqa: B018  (raises where the batch does not divide)
        check_whole("replicas", self.replicas)
        if why := replica_error(self.cluster.n, self.replicas, self.micro_batches):
            raise InvalidInput(why)

    @property
    def built_batch(self) -> int | None:
        """The batch size with which a model is built: that of one micro-batch."""
        from ..passes.unroll import micro_batch_size

        if self.batch_size is None or self.micro_batches is None:
            return self.batch_size
        return micro_batch_size(self.batch_size, self.micro_batches)

    @property
    def pipeline(self) -> dict[str, Any]:
        """What is given of `micro_batches` and `schedule`, for `bl.simulate`."""
        values = {"micro_batches": self.micro_batches, "schedule": self.schedule}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def once(self) -> Setting:
        """The same for one micro-batch alone."""
        return replace(self, batch_size=None, micro_batches=None, schedule=None, replicas=1)

    @property
    def share(self) -> Cluster:
        """The devices of one replica: what is placed on."""
        from ..sweeps.grid import equal_devices

        if self.replicas == 1:
            return self.cluster
        return equal_devices(self.cluster, self.cluster.n // self.replicas, int(self.cluster.memory_bytes[0]))

    @property
    def placer_params(self) -> dict[str, Any]:
        """The placer's parameters; with micro-batches, one that can be told so places for a step of them."""
        from ..placers.registry import pipeline_parameters

        return {**pipeline_parameters(self.placer, self.pipeline), **self.params}

    @property
    def model(self) -> str:
        """The benchmark model's name, or an empty text."""
        return self.source.partition(":")[2] if self.source.startswith("model:") else ""

    @property
    def path(self) -> str:
        """The stored graph's path, or an empty text."""
        return self.source.partition(":")[2] if self.source.startswith("file:") else ""

    def same_graph(self, setting: Setting) -> bool:
        """Whether both are about the same ops."""
        return all(getattr(self, k) == getattr(setting, k) for k in ("source", "built_batch", "model_params"))

    def _changed_start(self, changes: Mapping[str, object]) -> Setting | None:
        """Where to start from after changes: another placer starts anew, anything else is changed there as well."""
        if self.start is None or changes.get("placer", self.placer) != self.placer:
            return None
        return self.start.replace(**{key: value for key, value in changes.items() if key not in OWN})

    def replace(self, **changes: Any) -> Setting:
        """The setting with some fields changed.

        Moves belong to the placement that they changed: another source, placer or pass drops them, and so does a
        cluster that lacks the device.
        """
        changed = replace(self, **{"start": self._changed_start(changes), **changes})
        if "moves" in changes or not changed.moves:
            return changed
        fresh = any(
            getattr(changed, k) != getattr(self, k)
            for k in ("source", "batch_size", "model_params", "passes", "forward_only", "placer", "params", "replicas")
        )
        return replace(changed, moves=() if fresh else tuple(m for m in changed.moves if m[1] in changed.cluster.names))


OWN = ("placer", "params", "moves", "start")
"""What a setting need not share with the one that it starts from."""


def _pairs(moves: Any) -> tuple[tuple[str, str], ...]:
    """What moves, and to which device, as pairs of names."""
    try:
        return tuple((str(op_name), str(device)) for op_name, device in moves)
    except (TypeError, ValueError):
        raise InvalidInput(f"moves is {moves!r:.60}; it must be pairs of what moves and a device's name") from None


def resized(cluster: Cluster, count: int) -> Cluster:
    """The cluster with `count` devices: the first ones kept, further ones like the last; a matrix becomes one link.

    >>> resized(Cluster.uniform(2), 3).names
    ('gpu:0', 'gpu:1', 'gpu:2')
    """
    if count == cluster.n:
        return cluster
    link = cluster.link if isinstance(cluster.link, Link) else cluster.link_between(0, min(1, cluster.n - 1))
    kept = cluster.replace(devices=cluster.devices[: max(count, 1)], link=link)
    return kept.with_devices(count - int(kept.is_host.sum())) if count > kept.n else kept


def with_hardware(cluster: Cluster, before: str, after: str) -> Cluster:
    """The cluster with the memory and the link of hardware `after`, where it had those of `before` or of no hardware.

    Memory and links that were chosen otherwise stay.

    >>> with_hardware(Cluster.uniform(2), "rtx2080", "h100").link == LINKS["nvlink4"]
    True
    """
    sizes = {DEFAULT_MEMORY, default_memory(before)}
    devices = tuple(
        replace(d, memory_bytes=default_memory(after) if d.memory_bytes in sizes else d.memory_bytes)
        for d in cluster.devices
    )
    is_default = cluster.link in (PCIE, default_link(before))
    return cluster.replace(devices=devices, link=default_link(after) if is_default else cluster.link)


def with_speeds(cluster: Cluster, speeds: list[float]) -> Cluster:
    """The cluster with one speed for all devices, or one each."""
    if len(speeds) not in (1, cluster.n):
        raise InvalidInput(f"speeds has {len(speeds)} numbers; give one, or one for each of the {cluster.n} devices")
    each = speeds * cluster.n if len(speeds) == 1 else speeds
    devices: tuple[Device, ...] = tuple(replace(d, speed=s) for d, s in zip(cluster.devices, each, strict=True))
    return cluster.replace(devices=devices)


def link_name(cluster: Cluster) -> str:
    """The preset that the cluster uses; empty for another link or a matrix."""
    return next((name for name, link in LINKS.items() if cluster.link == link), "")


def stored_graphs(start: Path | None = None) -> list[str]:
    """Graph files in `data/` of this folder, of the one above, or of the checkout, as paths to read them by."""
    try:
        folder_path = Path.cwd() if start is None else start
    except FileNotFoundError:  # the current folder was deleted
        return []
    for folder in (folder_path / "data", folder_path.parent / "data", Path(__file__).resolve().parents[2] / "data"):
        paths = sorted(p for p in folder.glob("*.json.gz") if p.is_file()) + sorted(folder.glob("*.json"))
        if paths:
            inside = folder_path in folder.parents
            return [str(p.relative_to(folder_path)) if inside else str(p) for p in paths]
    return []
