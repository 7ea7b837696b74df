"""Cluster: devices, and what it costs to move bytes between them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_position, check_whole, is_list
from ..errors import DuplicateNameError, InvalidInput, UnknownNameError
from .columns import finite, text
from .kernels.csr import frozen
from .units import format_bytes, parse_bytes

MOST_DEVICES = 4096
"""Links are kept as dense matrices, one number per ordered pair: 16 million at this many devices."""

MOST_MEMORY = 2**63 - 1

MOST_US = 1e150
"""Times of a graph or link, in microseconds, and speeds go up to this: sums and products of a few stay finite."""

HOST = "host"
"""Kind of the devices that hold what is offloaded (`passes.offload`)."""

FAMILIES = ("gpu", "cpu", "tpu", HOST)
"""Kinds that name no product; they are written in lower case, however they are given."""

COMMUNICATION_MODES = ("parallel", "sequential", "duplex")


def device_count(n: Any, field: str = "number of devices") -> int:
    """`n`, if a cluster may have so many devices."""
    check_whole(field, n)
    if n > MOST_DEVICES:
        raise InvalidInput(f"{field} is {str(n)[:60]}; at most {MOST_DEVICES} are possible")
    return int(n)


@dataclass(frozen=True)
class Device:
    """One device of a cluster.

    Args:
        name: distinct within a cluster.
        kind: such as "gpu", "cpu" (in any case) or "a100"; an op may have a duration per kind.
        memory_bytes: capacity, as a number or a text such as "8GB".
        speed: relative to the reference device; durations are divided by it.

    Raises:
        InvalidInput: an empty name or kind, negative memory, a speed that is not between 1e-150 and 1e150.

    >>> Device("gpu:0", "gpu", 8 << 30).speed
    1.0
    """

    name: str
    kind: str
    memory_bytes: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        for key in ("name", "kind"):
            value = getattr(self, key)
            if not isinstance(value, str) or not value:
                raise InvalidInput(f"device {key} is {value!r:.60}; it must be a non-empty text")
            text(f"device {key}", value)
        if self.kind.lower() in FAMILIES:
            object.__setattr__(self, "kind", self.kind.lower())
        object.__setattr__(
            self, "memory_bytes", parse_bytes(self.memory_bytes, f"memory_bytes of device {self.name!r}")
        )
        if self.memory_bytes < 0:
            raise InvalidInput(f"memory_bytes of device {self.name!r} is {self.memory_bytes}; it must not be negative")
        speed = finite(self.speed)
        if speed is None or not 1 / MOST_US <= speed <= MOST_US:
            raise InvalidInput(
                f"speed of device {self.name!r} is {self.speed!r:.60}; it must be finite and above 0, "
                f"from {1 / MOST_US:g} to {MOST_US:g}"
            )
        object.__setattr__(self, "speed", speed)

    @property
    def family(self) -> str:
        """`gpu`, `cpu` or `tpu` for what is in the hardware table, else the kind itself.

        >>> Device("a", "A100", 1).family, Device("b", "cpu-core", 1).family, Device("c", "fpga", 1).family
        ('gpu', 'cpu', 'fpga')
        """
        from ..profilers.hardware import HARDWARE, known_kind  # a record that looks something up, as `Cluster.uniform`

        known = known_kind(self.kind)
        return HARDWARE[known].kind if known else self.kind


@dataclass(frozen=True, repr=False)
class Link:
    """The linear cost of one ordered device pair: `latency_us + us_per_byte * size_bytes`.

    Args:
        latency_us: microseconds per message.
        us_per_byte: microseconds per byte; 0.001 is 1 GB/s.
        overhead_us: LogGP's `o` (Alexandrov et al. 1995, doi:10.1145/215399.215427): processor time that each message
            takes from the sending device and again from the receiving one, which compute nothing meanwhile. Devices
            with transfer engines have none; workers without, such as those of `bl.LocalCluster`, do. It lives in
            durations: the simulator adds it to the op that made the tensor and to the first op that reads it on the
            other device.

    Raises:
        InvalidInput: a number that is negative, not finite or above 1e150.

    >>> Link(134.0, 0.0001754).cost_us(1 << 20)
    317.9202...
    """

    latency_us: float
    us_per_byte: float
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        for key in ("latency_us", "us_per_byte", "overhead_us"):
            value = finite(getattr(self, key))
            if value is None or value < 0:
                raise InvalidInput(
                    f"link {key} is {getattr(self, key)!r:.60}; it must be finite and not negative "
                    "(a bandwidth of 0 has no link)"
                )
            if value > MOST_US:
                raise InvalidInput(f"link {key} is {value:g}; it must be at most {MOST_US:g}")
            object.__setattr__(self, key, value)  # 0 and 0.0 are one cost, and must have one hash
        if (message := self.latency_us + 2 * self.overhead_us) > MOST_US:
            raise InvalidInput(f"link latency_us + 2 * overhead_us is {message:g}; it must be at most {MOST_US:g}")

    @classmethod
    def from_bandwidth(cls, bytes_per_us: float, latency_us: float = 0.0) -> Link:
        """A link of a given bandwidth in bytes per microsecond (1000 = 1 GB/s)."""
        if not finite(bytes_per_us) or bytes_per_us <= 0:
            raise InvalidInput(
                f"link bandwidth is {bytes_per_us!r:.60}; it must be finite and above 0 bytes per microsecond"
            )
        return cls(latency_us, 1.0 / bytes_per_us)

    def cost_us(self, size_bytes: int) -> float:
        """Microseconds to move `size_bytes`, without the devices' own share. Raises `InvalidInput` for no number of bytes."""
        size = finite(size_bytes)
        if size is None or size < 0:
            raise InvalidInput(f"size_bytes is {str(size_bytes)[:60]}; it must be finite and not negative")
        return self.latency_us + self.us_per_byte * size

    def __repr__(self) -> str:
        more = f", overhead_us={self.overhead_us!r}" if self.overhead_us else ""
        return f"Link(latency_us={self.latency_us!r}, us_per_byte={self.us_per_byte!r}{more})"


PCIE = Link(134.0, 0.0001754)
"""PCIe 3.0 through host memory (paper B, section 5.1)."""


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
    link: Link | Sequence[Sequence[Link]] = Link(0.0, 0.0)
    comm: str = "sequential"

    def __post_init__(self) -> None:
        if not is_list(self.devices):
            raise InvalidInput(f"devices is {self.devices!r:.60}; it must be a list of Device")
        devices = tuple(self.devices)
        object.__setattr__(self, "devices", devices)
        if not devices:
            raise InvalidInput("devices is empty; a cluster needs at least one device")
        if not all(isinstance(d, Device) for d in devices):
            raise InvalidInput(
                f"devices holds {next(d for d in devices if not isinstance(d, Device))!r}; each must be a Device"
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
        object.__setattr__(self, "link", self._checked_links())

    def _checked_links(self) -> Link | tuple[tuple[Link, ...], ...]:
        if isinstance(self.link, Link):
            return self.link
        if not isinstance(self.link, (list, tuple)) or not all(isinstance(r, (list, tuple)) for r in self.link):
            raise InvalidInput(
                f"link is {type(self.link).__name__}; it must be a Link or a square list of lists of Link"
            )
        rows, n = tuple(tuple(r) for r in self.link), len(self.devices)
        if len(rows) != n or any(len(r) != n for r in rows):
            raise InvalidInput(f"link matrix has rows of {[len(r) for r in rows]}; {n} devices need {n} x {n}")
        bad = [x for r in rows for x in r if not isinstance(x, Link)]
        if bad:
            raise InvalidInput(f"link matrix holds {bad[0]!r}; each entry must be a Link(latency_us, us_per_byte)")
        return rows

    # -- making one ----------------------------------------------------------------------------------

    @classmethod
    def uniform(
        cls,
        n: int,
        *,
        memory_bytes: int | str | None = None,
        link: Link | str = Link(134.0, 0.0001754),
        comm: str = "sequential",
        kind: str = "gpu",
        speed: float = 1.0,
    ) -> Cluster:
        """`n` equal devices `kind:0 ..`; the default link is PCIe 3.0 through host memory (paper B, section 5.1).

        Args:
            n: how many devices.
            memory_bytes: of each; by default what the hardware table says of the kind, 8 GiB for kinds that it does not
                have.
            link: between any two, or a name such as "nvlink", "pcie4", "infiniband-ndr", "ethernet-100g".
            comm: `parallel`, `sequential` or `duplex`.
            kind: of the devices; "gpu", "cpu" and names of the hardware table ("a100") in any case.
            speed: relative to the reference device.

        Raises:
            UnknownNameError: no link of that name.
            InvalidInput: a link that devices of this kind do not have; whatever `Device` refuses.

        >>> Cluster.uniform(4, kind="A100", link="nvlink")
        <Cluster 4 x a100 of 80.00 GB, sequential transfers>
        """
        from ..profilers.hardware import HARDWARE, kind_named  # a constructor may look things up, as from_tensorflow

        device_count(n)
        kind = kind_named(kind)
        if memory_bytes is None:
            memory_bytes = HARDWARE[kind].memory_bytes if kind in HARDWARE else 8 << 30
        if isinstance(link, str):
            from ..profilers.link_presets import named_link

            link = named_link(link, kind)
        memory = parse_bytes(memory_bytes)
        return cls(tuple(Device(f"{kind}:{i}", kind, memory, speed) for i in range(n)), link, comm)

    @classmethod
    def from_tensorflow(cls, **options: Any) -> Cluster:
        """The devices that TensorFlow sees here; see `baechi_lab.executors.tensorflow.devices.attached_cluster`."""
        # A record that asks a stage: it is a constructor of clusters, but only the executors know what is attached.
        from ..executors.tensorflow.devices import attached_cluster

        return attached_cluster(**options)

    @classmethod
    def from_torch(cls, **options: Any) -> Cluster:
        """The devices that PyTorch sees here; see `baechi_lab.torch.attached.attached_cluster`."""
        from ..torch.attached import attached_cluster

        return attached_cluster(**options)

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
        """float64[n, n], 0 on the diagonal: what a message takes of the sending and of the receiving device."""
        return self._matrix("overhead_us")

    def without_overhead(self) -> Cluster:
        """The same cluster, where a message takes in latency what it took in processor time; itself if it took none.

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
        return frozen(matrix, np.float64)

    @cached_property
    def memory_bytes(self) -> NDArray[np.int64]:
        """int64[n]."""
        return frozen([d.memory_bytes for d in self.devices], np.int64)

    @cached_property
    def speed(self) -> NDArray[np.float64]:
        """float64[n]."""
        return frozen([d.speed for d in self.devices], np.float64)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.devices)

    def index(self, name: str) -> int:
        """Position of the device of that name."""
        if not isinstance(name, str) or name not in self.names:
            raise UnknownNameError.of("device", name, self.names)
        return self.names.index(name)

    def link_between(self, source: int, target: int) -> Link:
        """The link from device `source` to device `target`. Raises `InvalidInput` for what is no position of a device."""
        source, target = (check_position("device", device, self.n, "devices") for device in (source, target))
        return self.link if isinstance(self.link, Link) else self.link[source][target]

    def replace(self, **changes: Any) -> Cluster:
        """A new cluster with some fields replaced."""
        return replace(self, **changes)

    def with_memory(self, memory_bytes: int | str | Iterable[int | str]) -> Cluster:
        """The same cluster with another memory size, for all devices or one each."""
        one = isinstance(memory_bytes, (int, np.integer, str, float))
        if not one and not is_list(memory_bytes):
            raise InvalidInput(
                f"memory_bytes is {memory_bytes!r:.60}; it must be one size, or a list of one per device"
            )
        sizes = [memory_bytes] * self.n if one else list(memory_bytes)  # type: ignore[arg-type]
        if len(sizes) != self.n:
            raise InvalidInput(f"memory_bytes has {len(sizes)} entries for {self.n} devices")
        devices = tuple(replace(d, memory_bytes=m) for d, m in zip(self.devices, sizes, strict=True))  # type: ignore[arg-type]
        return self.replace(devices=devices)

    def with_host(self, memory_bytes: int | str, link: Link | None = None, name: str = HOST) -> Cluster:
        """The same cluster and a device of kind "host": it holds what `bl.offload` puts there, and runs nothing else.

        Args:
            memory_bytes: of the host.
            link: between the host and every device, both ways; by default the first link of the cluster.
            name: of the device.

        Raises:
            DuplicateNameError: the cluster has a device of that name.

        >>> Cluster.uniform(2).with_host("64GB").names
        ('gpu:0', 'gpu:1', 'host')
        """
        link = link or self.link_between(0, min(1, self.n - 1))
        rows = [[self.link_between(a, b) for b in range(self.n)] + [link] for a in range(self.n)]
        one = isinstance(self.link, Link) and link == self.link
        links = self.link if one else [*rows, [link] * (self.n + 1)]
        return self.replace(devices=(*self.devices, Device(name, HOST, parse_bytes(memory_bytes))), link=links)

    def with_devices(self, count: int) -> Cluster:
        """The same cluster with copies of its last device that computes, behind links like its, until `count` devices compute.

        Raises:
            InvalidInput: fewer than there are.

        >>> Cluster.uniform(1).with_host("1GB").with_devices(2).names
        ('gpu:0', 'host', 'gpu:1')
        """
        from .costs import hosts_beside
        from .growing import grown

        check_whole("number of devices", count, low=int((~hosts_beside(self)).sum()))
        return grown(self, device_count(count))

    # -- identity ------------------------------------------------------------------------------------

    @cached_property
    def content_key(self) -> str:
        """Hash of everything that changes a cost."""
        return hashlib.blake2b(repr((self.devices, self.link, self.comm)).encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self.content_key == other.content_key

    def __hash__(self) -> int:
        return hash(self.content_key)

    def __repr__(self) -> str:
        same = len({(d.kind, d.memory_bytes, d.speed) for d in self.devices}) == 1
        first = self.devices[0]
        what = f"{self.n} x {first.kind} of {format_bytes(first.memory_bytes)}" if same else ", ".join(self.names)
        return f"<Cluster {what}, {self.comm} transfers>"
