"""Links between devices by name: what their specifications say, for clusters that are not here to be measured.

Bandwidth is that of one direction between two devices, as specified; real transfers reach a part of it (`bl.measure_link`
measures). No specification gives the latency of a transfer: between devices of one host it is assumed to be what a
launch costs, as a copy is launched like a kernel; networks add what is assumed below.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidInput, UnknownNameError
from .hardware import GPU_LAUNCH_US, HARDWARE, known_kind
from .link import Link

RDMA_US = 2.0
"""Assumed latency of a message over InfiniBand beyond the launch of the copy."""

TCP_US = 30.0
"""Likewise over Ethernet, through the host's network stack."""


@dataclass(frozen=True)
class LinkPreset:
    """A kind of link: bytes/s in one direction, latency in microseconds, and where the bandwidth is from."""

    bandwidth: float
    latency_us: float
    source: str

    @property
    def link(self) -> Link:
        """As the cost of a transfer."""
        return Link.from_bandwidth(self.bandwidth / 1e6, self.latency_us)


def _local(gigabytes: float, source: str) -> LinkPreset:
    return LinkPreset(gigabytes * 1e9, GPU_LAUNCH_US, source)


LINKS = {
    "nvlink2": _local(150, "NVIDIA V100 datasheet: 300 GB/s in both directions together"),
    "nvlink3": _local(300, "NVIDIA A100 datasheet: 600 GB/s in both directions together"),
    "nvlink4": _local(450, "NVIDIA H100 datasheet: 900 GB/s in both directions together"),
    "nvlink5": _local(900, "NVIDIA DGX B200 datasheet: 1.8 TB/s per GPU in both directions together"),
    "infinity-fabric": _local(64, "AMD Instinct MI300X data sheet: 128 GB/s per link in both directions together"),
    "ici": _local(50, "Google Cloud documentation, TPU v5e: 1600 Gbit/s per chip over four links"),
    "pcie3": _local(15.75, "PCI Express 3.0 base specification: 16 lanes of 8 GT/s, 128b/130b"),
    "pcie4": _local(31.5, "PCI Express 4.0 base specification: 16 lanes of 16 GT/s, 128b/130b"),
    "pcie5": _local(63, "PCI Express 5.0 base specification: 16 lanes of 32 GT/s, 128b/130b"),
    "infiniband-hdr": LinkPreset(25e9, GPU_LAUNCH_US + RDMA_US, "NVIDIA ConnectX-6 datasheet: 200 Gbit/s"),
    "infiniband-ndr": LinkPreset(50e9, GPU_LAUNCH_US + RDMA_US, "NVIDIA ConnectX-7 datasheet: 400 Gbit/s"),
    "ethernet-10g": LinkPreset(1.25e9, GPU_LAUNCH_US + TCP_US, "IEEE 802.3ae: 10 Gbit/s"),
    "ethernet-25g": LinkPreset(3.125e9, GPU_LAUNCH_US + TCP_US, "IEEE 802.3by: 25 Gbit/s"),
    "ethernet-100g": LinkPreset(12.5e9, GPU_LAUNCH_US + TCP_US, "IEEE 802.3bj: 100 Gbit/s"),
}
"""Known links by name."""

_FAMILIES = {"infiniband": "infiniband-ndr", "ethernet": "ethernet-100g"}
_OF_KIND = ("nvlink", "pcie")


def named_link(name: str, kind: str = "gpu") -> Link:
    """The link of that name, in any case.

    Args:
        name: one of `LINKS`, or a family: "nvlink" and "pcie" mean what devices of this kind have, "infiniband" NDR,
            "ethernet" 100 Gbit/s.
        kind: of the devices on both ends.

    Raises:
        UnknownNameError: no link of that name.
        InvalidInput: devices of this kind have no such link, or are not in the table.

    >>> named_link("NVLink", "h200") == named_link("nvlink4")
    True
    """
    canonical = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    canonical = _FAMILIES.get(canonical, canonical)
    if canonical in _OF_KIND:
        canonical = _of_kind(canonical, kind)
    if canonical not in LINKS:
        raise UnknownNameError.of("link", name, [*LINKS, *_FAMILIES, *_OF_KIND])
    return LINKS[canonical].link


def _of_kind(family: str, kind: str) -> str:
    hardware_name = known_kind(kind)
    has = HARDWARE[hardware_name].links if hardware_name else tuple(name for name in LINKS if name.startswith(family))
    of_family = [name for name in has if name.startswith(family)]
    if hardware_name and of_family:
        return of_family[0]
    reason = (
        f"{hardware_name} has no {family}"
        if hardware_name
        else f"which {family} devices of kind {kind!r} have is not known"
    )
    raise InvalidInput(f"link is {family!r}, and {reason}; give one of {', '.join(has)}")
