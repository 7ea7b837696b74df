"""Plan: what the distributed model needs to know of its placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from .activation_policy import ActivationRow
from .order import Order, make_order

Send = tuple[int, int, int]
"""Output, device, and how many calls take it there."""


@dataclass(frozen=True)
class Plan:
    """Key, device and dependencies of every call of the model's layers and functions, in code order.

    - `device` indexes `devices`, the torch device names.
    - `parents` are the calls that must come before.
    - `rank` is the planned position, lowest first; None means code order.
    - `sends` are the outputs that are sent as soon as they are computed.
    - `parameters` maps every parameter and buffer to its device.
    - `layers` are the modules that are one operator each.
    - `fixed` are the calls that keep their place in the code whatever `rank` says.
    - `activation_rows` say which outputs are computed again or wait on the host (see `activation_policy.ActivationSources`).
    - `shares` says that some parameter has several readers.
    - `offloaded_state` are groups of parameters whose optimizer state waits on a host.
    """

    keys: tuple[str, ...]
    device: tuple[int, ...]
    devices: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    sends: tuple[tuple[Send, ...], ...]
    layers: tuple[str, ...]
    layer_device: dict[str, int]
    parameters: dict[str, int]
    rank: tuple[float, ...] | None = None
    reorder: str = "gpu"
    inplace: frozenset[int] = field(default_factory=frozenset)
    fixed: tuple[int, ...] = ()
    activation_rows: tuple[ActivationRow, ...] = ()
    shares: bool = False
    offloaded_state: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def index(self) -> dict[str, int]:
        """Key -> call."""
        return {key: i for i, key in enumerate(self.keys)}

    @cached_property
    def order(self) -> Order:
        """The submission order, and which calls wait for their turn."""
        rank: Sequence[float] | None = self.rank if self.reorder != "none" else None
        return make_order(self.parents, rank, self.device, self.reorder, self.fixed)

    @cached_property
    def remote(self) -> tuple[bool, ...]:
        """Per call, whether a call on another device depends on it."""
        is_remote = [False] * len(self.keys)
        for op, above in enumerate(self.parents):
            for parent in above:
                is_remote[parent] |= self.device[parent] != self.device[op]
        return tuple(is_remote)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Keys of the calls that will wait in a thread."""
        return tuple(self.keys[i] for i in sorted(self.order.waiting))

    def to_json(self) -> dict[str, object]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**plain, "inplace": sorted(self.inplace)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Plan:
        """Returns the plan that `to_json` described, read from a JSON file or not."""
        return cls(
            **{
                **plain,
                **{key: tuple(plain[key]) for key in ("keys", "device", "devices", "layers")},
                "parents": tuple(tuple(p) for p in plain["parents"]),
                "sends": tuple(tuple((a, b, c) for a, b, c in row) for row in plain["sends"]),
                "rank": None if plain["rank"] is None else tuple(plain["rank"]),
                "inplace": frozenset(plain["inplace"]),
                "fixed": tuple(plain.get("fixed", ())),
                "activation_rows": tuple((a, b, c, d, e) for a, b, c, d, e in plain.get("activation_rows", ())),
                "offloaded_state": tuple(tuple(names) for names in plain.get("offloaded_state", ())),
            }
        )
