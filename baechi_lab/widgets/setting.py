"""The setting: the values of all controls of the workbench, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..checks import check_whole
from ..errors import InvalidInput, in_short
from ..fitting.record import KEPT_IN_WORDS
from ..graph import Cluster, Device, Link, Placement
from ..graph.device import DEFAULT_MEMORY, default_memory
from ..graph.formats.reading import program_kind
from ..graph.hardware import HARDWARE, kind_named
from ..graph.link import FREE, PCIE
from ..graph.link_presets import LINKS as PRESETS
from ..graph.link_presets import default_link
from ..graph.units import parse_bytes
from ..passes.optimize import PASSES
from ..stages import Optimize, Profile

GIVEN_SUBJECT, MODEL, FILE = "given", "model:", "file:"
"""The source that is the graph or step that the workbench was opened with, and the beginnings of other sources."""

LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "PCIe 3.0 through host memory": PCIE,
        **{name: preset.link for name, preset in PRESETS.items()},
        "free (no cost)": FREE,
    }
)
"""Links by the names in the list of the workbench: Jeon et al.'s fit (section 5.1), those of
`baechi_lab.graph.link_presets`, and one without cost."""


@dataclass(frozen=True)
class HardwarePreset:
    """A number of machines with equal devices of one `hardware` (`graph.hardware`); links as in `Cluster.machines`."""

    hardware: str
    devices: int
    link: str
    machines: int = 1
    network: str = ""

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the memory of the data sheet; every pair of devices on two machines has the network's link."""
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
"""Common clusters, by the text of the control."""


def preset_name(cluster: Cluster) -> str:
    """Returns the name of the preset with this cluster; empty if there is none.

    >>> preset_name(HARDWARE_PRESETS["4 x RTX 4090, PCIe"].cluster), preset_name(Cluster.uniform(3))
    ('4 x RTX 4090, PCIe', '')
    """
    return next((name for name, preset in HARDWARE_PRESETS.items() if preset.cluster == cluster), "")


@dataclass(frozen=True)
class Setting:
    """The values of all controls: the graph or model, the cluster, the passes, the placer and the schedule.

    Args:
        source: "given", "model:NAME" (a benchmark model) or "file:PATH" (a stored graph, or a program: see `is_program`).
        model_params: parameters of the model other than its batch size; `batch_size` None means the model's own, or the
            program's.
        profile, hardware: how a step gets its costs, see `bl.profile`.
        recompute: what `bl.recompute` keeps ("sqrt" or "boundaries"), or its budget, such as "3GB"; empty if nothing is
            computed again.
        cluster: the devices and links.
        passes, forward_only: see `bl.optimize`; no passes means the graph is placed as it is.
        placer, params: see `bl.place`.
        scheduler: see `bl.simulate`.
        micro_batches, schedule: see `bl.simulate`; a model is then built with the batch of one micro-batch.
        replicas: the number of copies of the placement, each on its share of the devices, as in `bl.sweep`.
        moves: `(name, device name)` pairs: moves by hand, in order, see `bl.move`.
        start: the setting whose placement a placer with the parameter `start` starts from; it differs only in `placer`,
            `params`, `moves` and `start`.
    """

    cluster: Cluster
    source: str = GIVEN_SUBJECT
    batch_size: int | None = None
    model_params: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "estimated"
    hardware: str = "rtx2080"
    recompute: str = ""
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
        from ..models.registry import make_model
        from ..simulator.pipelined_graph import pipeline_options
        from ..simulator.schedulers import make_scheduler
        from ..sweeps.grid import replica_error

        for key in ("model_params", "params"):
            object.__setattr__(self, key, MappingProxyType(dict(getattr(self, key))))
        object.__setattr__(self, "passes", Optimize(self.passes, self.forward_only).passes)
        object.__setattr__(self, "moves", _pairs(self.moves))
        if not (self.source == GIVEN_SUBJECT or self.model or self.path):
            raise InvalidInput(f"source is {self.source!r}; it must be 'given', 'model:NAME' or 'file:PATH'")
        if self.model:
            size = {} if self.batch_size is None else {"batch_size": self.batch_size}
            make_model(self.model, **{**self.model_params, **size})
        Profile(mode="estimated", hardware=self.hardware)
        Profile(mode=self.profile)
        try:
            parse_bytes(self.recomputation.get("budget", 0))
        except InvalidInput as error:
            kept_outputs = " or ".join(map(repr, KEPT_IN_WORDS))
            message = (
                f"recompute is {self.recompute!r}; it must be {kept_outputs}, or most bytes of a device, such as '3GB'"
            )
            raise InvalidInput(message) from error
        if self.is_program and self.profile == "measured":
            raise InvalidInput(f"profile is 'measured'; the operators of {self.path!r} can only be estimated")
        make_scheduler(self.scheduler, Placement(device=np.zeros(1, np.int32)))
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
        """The arguments `micro_batches` and `schedule` of `bl.simulate`, as far as they are set."""
        values = {"micro_batches": self.micro_batches, "schedule": self.schedule}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def recomputation(self) -> dict[str, Any]:
        """The argument of `bl.recompute`; empty if nothing is computed again.

        >>> Setting(Cluster.uniform(1), recompute="sqrt").recomputation, Setting(Cluster.uniform(1)).recomputation
        ({'keep': 'sqrt'}, {})
        """
        return {"keep" if self.recompute in KEPT_IN_WORDS else "budget": self.recompute} if self.recompute else {}

    @property
    def once(self) -> Setting:
        """The same setting for a single micro-batch."""
        return replace(self, batch_size=None, micro_batches=None, schedule=None, replicas=1)

    @property
    def share(self) -> Cluster:
        """The devices of one replica, on which the graph is placed."""
        return self.cluster.resized(self.cluster.n // self.replicas)

    @property
    def placer_params(self) -> dict[str, Any]:
        """The placer's parameters, with the micro-batches and the objective "step" if the placer takes them."""
        from ..placers.registry import pipeline_parameters

        return {**pipeline_parameters(self.placer, self.pipeline), **self.params}

    @property
    def model(self) -> str:
        """The benchmark model's name, or an empty text."""
        return self.source.removeprefix(MODEL) if self.source.startswith(MODEL) else ""

    @property
    def path(self) -> str:
        """The stored graph's path, or an empty text."""
        return self.source.removeprefix(FILE) if self.source.startswith(FILE) else ""

    @property
    def is_program(self) -> bool:
        """Whether the path is that of a program, whose operators are estimated (`bl.profile_program`).

        >>> Setting(Cluster.uniform(1), "file:net.onnx").is_program, Setting(Cluster.uniform(1), "file:a.json").is_program
        (True, False)
        """
        return bool(self.path) and program_kind(self.path) is not None

    @property
    def takes_batches(self) -> bool:
        """Whether its source has a graph for every batch size: a model, or a program that leaves the batch size open.

        >>> Setting(Cluster.uniform(1), "file:net.onnx", batch_size=8).takes_batches, Setting(Cluster.uniform(1)).takes_batches
        (True, False)
        """
        return bool(self.model) or (self.is_program and self.batch_size is not None)

    def same_graph(self, setting: Setting) -> bool:
        """Whether both settings have the same ops."""
        return all(getattr(self, k) == getattr(setting, k) for k in (*GRAPH, "built_batch"))

    def replace(self, **changes: Any) -> Setting:
        """Returns the setting with some fields changed.

        Moves belong to a placement: a change of the source, the placer or the passes drops them, and so does a cluster that
        lacks their device.
        """
        if self.start is None or changes.get("placer", self.placer) != self.placer:
            start = None
        else:
            start = self.start.replace(**{key: value for key, value in changes.items() if key not in OWN})
        setting = replace(self, **{"start": start, **changes})
        if "moves" in changes or not setting.moves:
            return setting
        fresh = any(
            getattr(setting, k) != getattr(self, k)
            for k in (*GRAPH, "batch_size", "passes", "forward_only", "placer", "params", "replicas")
        )
        return replace(setting, moves=() if fresh else tuple(m for m in setting.moves if m[1] in setting.cluster.names))


GRAPH = ("source", "model_params", "recompute")
"""Fields that choose the graph, besides the batch size."""
OWN = ("placer", "params", "moves", "start")
"""Fields in which a setting may differ from its `start`."""


def _pairs(moves: Any) -> tuple[tuple[str, str], ...]:
    """Returns moves as pairs of names: of the ops, and of the device."""
    try:
        return tuple((str(op_name), str(device)) for op_name, device in moves)
    except (TypeError, ValueError):
        raise InvalidInput(f"moves is {in_short(moves)}; it must be pairs of what moves and a device's name") from None


def with_hardware(cluster: Cluster, before: str, after: str) -> Cluster:
    """Returns the cluster with the memory and the link of hardware `after`, if it had those of `before` or the defaults.

    Other memory sizes and links stay.

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
    """Returns the cluster with one speed for all devices, or one each."""
    if len(speeds) not in (1, cluster.n):
        raise InvalidInput(f"speeds has {len(speeds)} numbers; give one, or one for each of the {cluster.n} devices")
    each = speeds * cluster.n if len(speeds) == 1 else speeds
    devices: tuple[Device, ...] = tuple(replace(d, speed=s) for d, s in zip(cluster.devices, each, strict=True))
    return cluster.replace(devices=devices)


def named_hardware(cluster: Cluster) -> str:
    """Returns the hardware that the kind of the first device names or stands for.

    >>> [named_hardware(Cluster.uniform(2, kind=kind)) for kind in ("gpu", "H100", "cpu")]
    ['rtx2080', 'h100', 'cpu-core']
    """
    kind = kind_named(cluster.devices[0].kind)
    return kind if kind in HARDWARE else {"cpu": "cpu-core", "tpu": "tpu-v5e"}.get(kind, Setting.hardware)


def link_name(cluster: Cluster) -> str:
    """Returns the name of the cluster's link preset; empty for another link or a matrix."""
    return next((name for name, link in LINKS.items() if cluster.link == link), "")


def stored_graphs(start: Path | None = None) -> list[str]:
    """Returns the paths of graph files in `data/` of the current folder, its parent, or the checkout."""
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
