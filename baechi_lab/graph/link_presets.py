"""Links between devices by name: the bandwidth and latency that transfers reach, for clusters that are not here to be measured.

Bandwidth is that of one direction between two devices: what transfers reach (`bandwidth`), and what the specification says
(`specified`). `bl.measure_link` measures links that are here.

`nvlink3` is fitted to NCCL's all-reduce on two to eight A100 of one machine (`studies/links`): a ring sends 2 (n - 1) messages
of a part of 1 / n each, and a message of `b` bytes takes 7.26 us + b / 209.5 GB/s. The mean error over 336 all-reduces of 1 MB to
1 GB is 10.8 %, and 6.8 % from 16 MB on; small ones between two devices take up to twice as long.

NVIDIA's library NCCL has the bandwidth that other links reach in its model of topologies (github.com/NVIDIA/nccl,
`src/graph/topo.h` at 069a3d4). Latencies of other links add to that of NVLink what NCCL's model of times adds for a step of a
ring (`src/graph/tuning.cc` at 01afd20, protocol "Simple"): 5.7 instead of 3.4 us over PCIe, 9.6 us over a network. A network
stack of the host (TCP) adds an assumed 30 us.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidInput, UnknownNameError
from .hardware import HARDWARE, known_kind
from .link import PCIE, Link

NVLINK_US = 7.26
"""Fitted latency of a message over NVLink."""

PCIE_US = NVLINK_US + 2.3
"""Latency of a message over PCIe."""

RDMA_US = NVLINK_US + 6.2
"""Latency of a message over InfiniBand."""

TCP_US = RDMA_US + 30.0
"""Assumed latency of a message over Ethernet, through the host's network stack."""

NVLINK_SHARE = 0.8
"""Share of the specified bandwidth that links reach: 20 of 25 GB/s per NVLink 2 or 3 in NCCL's model."""

TCP_SHARE = 1460 / 1538
"""Share of the bytes on an Ethernet that are payload: TCP over IPv4 in frames of 1500 bytes."""


@dataclass(frozen=True)
class LinkPreset:
    """A kind of link.

    Args:
        specified: bytes/s in one direction, by its specification.
        bandwidth: bytes/s in one direction that transfers reach.
        latency_us: microseconds of a message.
        source: where the numbers are from.
    """

    specified: float
    bandwidth: float
    latency_us: float
    source: str

    @property
    def link(self) -> Link:
        """The preset as the cost of a transfer."""
        return Link.from_bandwidth(self.bandwidth / 1e6, self.latency_us)


def _preset(specified_gb: float, reached_gb: float, latency_us: float, source: str) -> LinkPreset:
    return LinkPreset(specified_gb * 1e9, reached_gb * 1e9, latency_us, source)


_ASSUMED = "; what transfers reach is assumed to be the share of NVLink"

LINKS = {
    "nvlink2": _preset(
        150, 120, NVLINK_US, "NVIDIA V100 datasheet: 300 GB/s in both directions together; NCCL: 6 links of 20 GB/s"
    ),
    "nvlink3": _preset(
        300,
        209.5,
        NVLINK_US,
        "NVIDIA A100 datasheet: 600 GB/s in both directions together; fitted to NCCL's all-reduce",
    ),
    "nvlink4": _preset(
        450,
        370,
        NVLINK_US,
        "NVIDIA H100 datasheet: 900 GB/s in both directions together; NCCL: 18 links of 20.6 GB/s; rings measured at "
        "368.8 GB/s (github.com/NVIDIA/nccl-tests, issues 212 and 309)",
    ),
    "nvlink5": _preset(
        900,
        721.8,
        NVLINK_US,
        "NVIDIA DGX B200 datasheet: 1.8 TB/s per GPU in both directions together; NCCL: 18 links of 40.1 GB/s",
    ),
    "infinity-fabric": _preset(
        64,
        64 * NVLINK_SHARE,
        NVLINK_US,
        f"AMD Instinct MI300X data sheet: 128 GB/s per link in both directions together{_ASSUMED}",
    ),
    "ici": _preset(
        50,
        50 * NVLINK_SHARE,
        NVLINK_US,
        f"Google Cloud documentation, TPU v5e: 1600 Gbit/s per chip over four links{_ASSUMED}",
    ),
    "pcie3": _preset(
        15.75, 12, PCIE_US, "PCI Express 3.0 base specification: 16 lanes of 8 GT/s, 128b/130b; NCCL: 12 GB/s"
    ),
    "pcie4": _preset(
        31.5, 24, PCIE_US, "PCI Express 4.0 base specification: 16 lanes of 16 GT/s, 128b/130b; NCCL: twice PCIe 3"
    ),
    "pcie5": _preset(
        63, 48, PCIE_US, "PCI Express 5.0 base specification: 16 lanes of 32 GT/s, 128b/130b; NCCL: four times PCIe 3"
    ),
    "infiniband-hdr": _preset(
        25, 24, RDMA_US, "NVIDIA ConnectX-6 datasheet: 200 Gbit/s; NCCL's authors: 24 GB/s (NVIDIA/nccl, issue 412)"
    ),
    "infiniband-ndr": _preset(
        50, 48, RDMA_US, "NVIDIA ConnectX-7 datasheet: 400 Gbit/s; what transfers reach is assumed to be twice HDR"
    ),
    "ethernet-10g": _preset(1.25, 1.25 * TCP_SHARE, TCP_US, "IEEE 802.3ae: 10 Gbit/s; payload of TCP"),
    "ethernet-25g": _preset(3.125, 3.125 * TCP_SHARE, TCP_US, "IEEE 802.3by: 25 Gbit/s; payload of TCP"),
    "ethernet-100g": _preset(12.5, 12.5 * TCP_SHARE, TCP_US, "IEEE 802.3bj: 100 Gbit/s; payload of TCP"),
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
        hardware_name = known_kind(kind)
        has = (
            HARDWARE[hardware_name].links
            if hardware_name
            else tuple(name for name in LINKS if name.startswith(canonical))
        )
        of_family = [name for name in has if name.startswith(canonical)]
        if hardware_name and of_family:
            canonical = of_family[0]
        else:
            if not hardware_name:
                reason = f"which {canonical} devices of kind {kind!r} have is not known"
            else:
                reason = f"{hardware_name} has no {canonical}"
            choices = f"give one of {', '.join(has)}" if has else "give a link by its latency and bandwidth"
            raise InvalidInput(f"link is {canonical!r}, and {reason}; {choices}")
    if canonical not in LINKS:
        raise UnknownNameError.of("link", name, [*LINKS, *_FAMILIES, *_OF_KIND])
    return LINKS[canonical].link


def default_link(kind: str) -> Link:
    """Returns the default link between devices of one kind: the fastest one of named hardware.

    For other kinds, and for hardware without links of its own, it is PCIe 3.0 through host memory (paper B, section 5.1).

    >>> default_link("H100") == named_link("nvlink4"), default_link("gpu") == PCIE
    (True, True)
    """
    hardware_name = known_kind(kind)
    links = HARDWARE[hardware_name].links if hardware_name else ()
    return LINKS[links[0]].link if links else PCIE
