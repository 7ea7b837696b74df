"""Cluster: devices, and the cost of moving bytes between them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_position, check_whole, is_list
from ..errors import DuplicateNameError, InvalidInput, UnknownNameError, in_short
from ..frameworks import framework_part
from .device import Device, default_memory, device_count
from .hardware import HOST, kind_named
from .kernels.csr import frozen_array
from .link import FREE, Link
from .link_presets import default_link, named_link
from .units import format_bytes, parse_bytes

MOST_MEMORY = 2**63 - 1
"""Most bytes of all devices of a cluster together."""

COMMUNICATION_MODES = ("parallel", "sequential", "duplex")


@dataclass(frozen=True, eq=False, repr=False)
class Cluster:
    """Devices, one `Link` per ordered pair, and a communication mode.

    Args:
        devices: at least one; ops are placed on their positions.
        link: one Link for all pairs, or a square matrix: `link[a][b]` carries tensors from device `a` to `b` (the
            diagonal is not used: on one device a tensor costs nothing).
        comm: `parallel`, `sequential` or `duplex`; see docs/simulated-time.md.

    Raises:
        InvalidInput: no devices, a matrix of the wrong shape, an unknown mode.
        DuplicateNameError: device names.

    >>> c = Cluster.uniform(2, memory_bytes="8GB", link=Link(10.0, 0.001))
    >>> [d.name for d in c.devices], float(c.latency_us[0, 1]), float(c.latency_us[0, 0])
    (['gpu:0', 'gpu:1'], 10.0, 0.0)
    """

    devices: tuple[Device, ...]
    link: Link | Sequence[Sequence[Link]] = FREE
    comm: str = "sequential"

    def __post_init__(self) -> None:
        if not is_list(self.devices):
            raise InvalidInput(f"devices is {in_short(self.devices)}; it must be a list of Device")
        devices = tuple(self.devices)
        object.__setattr__(self, "devices", devices)
        if not devices:
            raise InvalidInput("devices is empty; a cluster needs at least one device")
        if not all(isinstance(d, Device) for d in devices):
            raise InvalidInput(
                f"devices holds {in_short(next(d for d in devices if not isinstance(d, Device)))}; each must be a Device"
            )
        device_count(len(devices))
        names = [d.name for d in devices]
        if len(set(names)) != len(names):
            twice = next(x for x, times in Counter(names).items() if times > 1)
            raise DuplicateNameError(f"device name {twice!r} appears more than once; names must be distinct")
        if not isinstance(self.comm, str) or self.comm not in COMMUNICATION_MODES:
            raise UnknownNameError.of("communication mode", self.comm, COMMUNICATION_MODES)
        if (total := sum(d.memory_bytes for d in devices)) > MOST_MEMORY:
            raise InvalidInput(f"memory_bytes of all devices add up to {total}; at most {MOST_MEMORY} can be added up")
        if not isinstance(self.link, Link):
            if not isinstance(self.link, (list, tuple)) or not all(isinstance(r, (list, tuple)) for r in self.link):
                raise InvalidInput(
                    f"link is {type(self.link).__name__}; it must be a Link or a square list of lists of Link"
                )
            rows, n = tuple(tuple(r) for r in self.link), len(self.devices)
            if len(rows) != n or any(len(r) != n for r in rows):
                raise InvalidInput(f"link matrix has rows of {[len(r) for r in rows]}; {n} devices need {n} x {n}")
            bad = [x for r in rows for x in r if not isinstance(x, Link)]
            if bad:
                raise InvalidInput(
                    f"link matrix holds {in_short(bad[0])}; each entry must be a Link(latency_us, us_per_byte)"
                )
            object.__setattr__(self, "link", rows)

    # -- making one ----------------------------------------------------------------------------------

    @classmethod
    def uniform(
        cls,
        n: int,
        *,
        memory_bytes: int | str | None = None,
        link: Link | str | None = None,
        comm: str = "sequential",
        kind: str = "gpu",
        speed: float = 1.0,
    ) -> Cluster:
        """Makes `n` equal devices `kind:0 ..`, with the memory and the fastest link of their hardware.

        Args:
            n: number of devices.
            memory_bytes: memory of each device; by default that of its kind in the hardware table, or 8 GB for other kinds.
            link: the link of every pair, or a name such as "nvlink", "pcie4", "infiniband-ndr", "ethernet-100g"; by default
                the fastest one of the kind in the hardware table, or PCIe 3.0 through host memory (Jeon et al. 2020, 5.1).
            comm: `parallel`, `sequential` or `duplex`.
            kind: kind of the devices: "gpu", "cpu" or a name of the hardware table ("a100"), in any case.
            speed: speed relative to the reference device.

        Raises:
            UnknownNameError: no link has this name.
            InvalidInput: devices of this kind do not have this link, or as `Device` raises it.

        >>> Cluster.uniform(4, kind="A100")    # joined by NVLink 3
        <Cluster 4 x a100 of 80.00 GB, sequential transfers>
        """
        device_count(n)
        kind = kind_named(kind)
        if memory_bytes is None:
            memory_bytes = default_memory(kind)
        if link is None:
            link = default_link(kind)
        elif isinstance(link, str):
            link = named_link(link, kind)
        memory = parse_bytes(memory_bytes)
        return cls(tuple(Device(f"{kind}:{i}", kind, memory, speed) for i in range(n)), link, comm)

    @classmethod
    def machines(
        cls,
        n: int,
        per_machine: int,
        *,
        kind: str = "gpu",
        memory_bytes: int | str | None = None,
        link: Link | str = "nvlink",
        network: Link | str = "infiniband",
        comm: str = "duplex",
    ) -> Cluster:
        """Makes `n` equal devices in machines of `per_machine`; neighbours are in one machine.

        Args:
            n: number of all devices: a multiple of `per_machine`, or fewer than that.
            per_machine: number of devices of one machine.
            kind, memory_bytes, comm: as for `uniform`.
            link: the link between devices of one machine.
            network: the link between devices of different machines, as each device has it while all of them send at once.

        Raises:
            InvalidInput: the devices do not fill their machines, or as `uniform` raises it.

        >>> cluster = Cluster.machines(16, 8, kind="h100")
        >>> [round(1e-3 / cluster.link_between(0, other).us_per_byte) for other in (7, 8)]    # GB/s
        [370, 48]
        """
        n, per_machine = check_whole("n", n), check_whole("per_machine", per_machine)
        if n > per_machine and n % per_machine:
            raise InvalidInput(f"n is {n} and per_machine {per_machine}; the devices must fill their machines")
        one = cls.uniform(n, memory_bytes=memory_bytes, link=link, comm=comm, kind=kind)
        if n <= per_machine:
            return one
        inside = one.link_between(0, 1)
        between = named_link(network, one.devices[0].kind) if isinstance(network, str) else network
        machine = [device // per_machine for device in range(n)]
        return one.replace(link=[[inside if machine[a] == machine[b] else between for b in range(n)] for a in range(n)])

    @classmethod
    def from_tensorflow(cls, **options: object) -> Cluster:
        """Returns the devices that TensorFlow sees here.

        Options are those of `baechi_lab.executors.tensorflow.devices.attached_cluster`.
        """
        return framework_part("executors", "tensorflow").attached_cluster(**options)

    @classmethod
    def from_torch(cls, **options: object) -> Cluster:
        """Returns the devices that PyTorch sees here; options as of `baechi_lab.torch_steps.devices.attached_cluster`."""
        return framework_part("executors", "torch").attached_cluster(**options)

    # -- views ---------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    @cached_property
    def latency_us(self) -> NDArray[np.float64]:
        """float64[n, n], 0 on the diagonal."""
        return self._matrix("latency_us")

    @cached_property
    def us_per_byte(self) -> NDArray[np.float64]:
        """float64[n, n], 0 on the diagonal."""
        return self._matrix("us_per_byte")

    @cached_property
    def overhead_us(self) -> NDArray[np.float64]:
        """float64[n, n], 0 on the diagonal: the processor time of a message on the sending and on the receiving device."""
        return self._matrix("overhead_us")

    def without_overhead(self) -> Cluster:
        """Returns the cluster with processor time of messages counted as latency; the cluster itself if there is none.

        >>> Cluster.uniform(2, link=Link(10.0, 0.0, overhead_us=3.0)).without_overhead().link
        Link(latency_us=16.0, us_per_byte=0.0)
        """
        if not self.overhead_us.any():
            return self
        plain = lambda x: Link(x.latency_us + 2 * x.overhead_us, x.us_per_byte)  # noqa: E731
        one = isinstance(self.link, Link)
        return self.replace(link=plain(self.link) if one else [[plain(x) for x in row] for row in self.link])  # type: ignore[union-attr]

    def _matrix(self, key: str) -> NDArray[np.float64]:
        if isinstance(self.link, Link):
            matrix = np.full((self.n, self.n), getattr(self.link, key), dtype=np.float64)
        else:
            matrix = np.array([[getattr(x, key) for x in row] for row in self.link], dtype=np.float64)
        np.fill_diagonal(matrix, 0.0)
        return frozen_array(matrix, np.float64)

    @cached_property
    def memory_bytes(self) -> NDArray[np.int64]:
        """int64[n]."""
        return frozen_array([d.memory_bytes for d in self.devices], np.int64)

    @cached_property
    def speed(self) -> NDArray[np.float64]:
        """float64[n]."""
        return frozen_array([d.speed for d in self.devices], np.float64)

    @cached_property
    def is_host(self) -> NDArray[np.bool_]:
        """bool[n]: devices of kind "host", if there are others. They hold offloaded bytes, and compute nothing else.

        >>> Cluster.uniform(1).with_host("1GB").is_host.tolist()
        [False, True]
        """
        hosts = np.array([device.kind == HOST for device in self.devices], dtype=np.bool_)
        return frozen_array(hosts & ~hosts.all(), np.bool_)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.devices)

    def index(self, name: str | int) -> int:
        """Returns the position of the device with this name. A position is returned as it is.

        Raises:
            UnknownNameError: no device has this name.
            InvalidInput: no device has this position.
        """
        if isinstance(name, Integral) and not isinstance(name, bool):
            return check_position("device", name, self.n, "devices")
        if not isinstance(name, str) or name not in self.names:
            raise UnknownNameError.of("device", name, self.names)
        return self.names.index(name)

    def link_between(self, source: int, target: int) -> Link:
        """Returns the link from device `source` to `target`. Raises `InvalidInput` unless both are positions of devices."""
        source, target = (check_position("device", device, self.n, "devices") for device in (source, target))
        return self.link if isinstance(self.link, Link) else self.link[source][target]

    def replace(self, **changes: Any) -> Cluster:
        """Returns a new cluster with some fields replaced."""
        return replace(self, **changes)

    def with_memory(self, memory_bytes: int | str | Iterable[int | str]) -> Cluster:
        """Returns the cluster with another memory size, for all devices or one each."""
        one = isinstance(memory_bytes, (int, np.integer, str, float))
        if not one and not is_list(memory_bytes):
            raise InvalidInput(
                f"memory_bytes is {in_short(memory_bytes)}; it must be one size, or a list of one per device"
            )
        sizes = [memory_bytes] * self.n if one else list(memory_bytes)  # type: ignore[arg-type]
        if len(sizes) != self.n:
            raise InvalidInput(f"memory_bytes has {len(sizes)} entries for {self.n} devices")
        devices = tuple(replace(d, memory_bytes=m) for d, m in zip(self.devices, sizes, strict=True))  # type: ignore[arg-type]
        return self.replace(devices=devices)

    def resized(self, count: int) -> Cluster:
        """Returns the cluster with `count` devices: the first ones with their links, further ones like the last.

        A matrix in which all pairs have one link becomes that link.

        >>> Cluster.machines(8, 4, kind="h100").resized(4) == Cluster.uniform(4, kind="h100", comm="duplex")
        True
        """
        if device_count(count) == self.n:
            return self
        first = range(min(count, self.n))
        link = self.link
        if not isinstance(link, Link):
            pairs = {link[a][b] for a in first for b in first if a != b} or {self.link_between(0, min(1, self.n - 1))}
            link = pairs.pop() if len(pairs) == 1 else [[link[a][b] for b in first] for a in first]
        smaller = self.replace(devices=self.devices[: len(first)], link=link)
        return smaller.with_devices(count - int(smaller.is_host.sum())) if count > smaller.n else smaller

    def with_host(self, memory_bytes: int | str, link: Link | None = None, name: str = HOST) -> Cluster:
        """Returns the cluster with a device of kind "host", which holds the bytes that `bl.offload` moves, and runs no other op.

        Args:
            memory_bytes: memory of the host.
            link: link between the host and every device, in both directions; by default the first link of the cluster.
            name: name of the device.

        Raises:
            DuplicateNameError: the cluster has a device of this name.

        >>> Cluster.uniform(2).with_host("64GB").names
        ('gpu:0', 'gpu:1', 'host')
        """
        link = link or self.link_between(0, min(1, self.n - 1))
        rows = [[self.link_between(a, b) for b in range(self.n)] + [link] for a in range(self.n)]
        one = isinstance(self.link, Link) and link == self.link
        links = self.link if one else [*rows, [link] * (self.n + 1)]
        return self.replace(devices=(*self.devices, Device(name, HOST, parse_bytes(memory_bytes))), link=links)

    def with_devices(self, count: int) -> Cluster:
        """Returns the cluster with copies of its last computing device and its links, so that `count` devices compute.

        Raises:
            InvalidInput: more than `count` devices compute already.

        >>> Cluster.uniform(1).with_host("1GB").with_devices(2).names
        ('gpu:0', 'host', 'gpu:1')
        """
        computing = np.flatnonzero(~self.is_host).tolist()
        check_whole("number of devices", count, low=len(computing))
        last, names, number = computing[-1], set(self.names), 0
        origin, devices = list(range(self.n)), list(self.devices)
        kind = devices[last].kind
        for _ in range(device_count(count) - len(computing)):
            while f"{kind}:{number}" in names:
                number += 1
            names.add(f"{kind}:{number}")
            devices.append(replace(devices[last], name=f"{kind}:{number}"))
            origin.append(last)
        if isinstance(self.link, Link):
            return self.replace(devices=tuple(devices))
        between_copies = self._link_between_copies(computing)
        link = [
            [between_copies if a == b and i != j else self.link_between(a, b) for j, b in enumerate(origin)]
            for i, a in enumerate(origin)
        ]
        return self.replace(devices=tuple(devices), link=link)

    def _link_between_copies(self, computing: list[int]) -> Link:
        """Returns the link between copies of the last computing device, which is its link to the previous device.

        For a single device it is the diagonal's link, which `with_host` keeps, or else the link to the host.
        """
        last = computing[-1]
        if len(computing) > 1:
            return self.link_between(last, computing[-2])
        diagonal = self.link_between(last, last)
        if diagonal != FREE:
            return diagonal
        return self.link_between(last, next((k for k in range(self.n) if k != last), last))

    # -- identity ------------------------------------------------------------------------------------

    @cached_property
    def content_key(self) -> str:
        """Hash of all fields that affect costs."""
        return hashlib.blake2b(repr((self.devices, self.link, self.comm)).encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self.content_key == other.content_key

    def __hash__(self) -> int:
        return hash(self.content_key)

    def __repr__(self) -> str:
        same = len({(d.kind, d.memory_bytes, d.speed) for d in self.devices}) == 1
        first = self.devices[0]
        summary = f"{self.n} x {first.kind} of {format_bytes(first.memory_bytes)}" if same else ", ".join(self.names)
        return f"<Cluster {summary}, {self.comm} transfers>"
