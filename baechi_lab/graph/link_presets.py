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

import csv
from dataclasses import dataclass
from pathlib import Path

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


_TRANSPORTS = {
    "nvlink": (NVLINK_US, NVLINK_SHARE),
    "pcie": (PCIE_US, 1.0),
    "rdma": (RDMA_US, 1.0),
    "tcp": (TCP_US, TCP_SHARE),
}
"""Latency in microseconds, and the share of the specified bandwidth for links whose table row has no `reached_gb`."""


def _read_table() -> dict[str, LinkPreset]:
    """Reads the named links; the table has GB/s in one direction."""
    lines = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    links: dict[str, LinkPreset] = {}
    for row in csv.DictReader(lines):
        latency_us, share = _TRANSPORTS[row["transport"]]
        specified_gb = float(row["specified_gb"])
        reached_gb = float(row["reached_gb"]) if row["reached_gb"] else specified_gb * share
        links[row["name"]] = LinkPreset(specified_gb * 1e9, reached_gb * 1e9, latency_us, row["source"])
    return links


LINKS = _read_table()
"""Known links by name."""

_FAMILIES = {"infiniband": "infiniband-ndr", "ethernet": "ethernet-100g"}
_OF_KIND = ("nvlink", "pcie")


def named_link(name: str, kind: str = "gpu") -> Link:
    """Returns the link of that name, in any case.

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
        if hardware_name:
            has = HARDWARE[hardware_name].links
        else:
            has = tuple(name for name in LINKS if name.startswith(canonical))
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

    For other kinds, and for hardware without links of its own, it is PCIe 3.0 through host memory (Jeon et al. 2020, 5.1).

    >>> default_link("H100") == named_link("nvlink4"), default_link("gpu") == PCIE
    (True, True)
    """
    hardware_name = known_kind(kind)
    links = HARDWARE[hardware_name].links if hardware_name else ()
    return LINKS[links[0]].link if links else PCIE
