"""`bl.Layout`: degrees, groups of devices, and what it refuses."""

from __future__ import annotations

import pytest

import baechi_lab as bl


def test_degrees_multiply_to_the_devices() -> None:
    assert bl.Layout(tp=4, pp=2, dp=8, micro_batch=2).devices == 64
    assert bl.Layout(tp=2, cp=3, dp=5, pp=7).devices == 2 * 3 * 5 * 7


def test_axes_are_mapped_from_the_innermost_tp_cp_dp_pp() -> None:
    layout = bl.Layout(tp=2, cp=2, dp=2, pp=2)
    assert layout.axis_devices("tp") == (0, 1)
    assert layout.axis_devices("cp") == (0, 2)
    assert layout.axis_devices("dp") == (0, 4)
    assert layout.axis_devices("pp") == (0, 8)
    assert layout.axis_devices("tp", first=11) == (10, 11)
    assert layout.axis_devices("dp+cp", first=9) == (9, 11, 13, 15)


def test_experts_are_spread_over_neighbours_of_dp_and_cp() -> None:
    layout = bl.Layout(tp=2, dp=4, ep=2)
    assert layout.axis_devices("ep") == (0, 2)
    assert layout.axis_devices("ep", first=5) == (5, 7)
    assert layout.axis_devices("edp", first=2) == (2, 6)  # devices with the same experts


def test_every_device_is_in_one_group_of_every_axis() -> None:
    layout = bl.Layout(tp=2, cp=3, dp=4, pp=2, ep=6)
    for axis in ("tp", "cp", "dp", "pp", "ep", "dp+cp", "edp"):
        groups = {layout.axis_devices(axis, device) for device in range(layout.devices)}
        assert sorted(device for group in groups for device in group) == list(range(layout.devices))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tp": 0}, "tp is 0; it must be a whole number of at least 1"),
        ({"dp": True}, "dp is True; it must be"),
        ({"zero": 4}, "zero is 4; it must be 0, 1, 2 or 3"),
        ({"schedule": "1f2b"}, "schedule is '1f2b'; it must be one of"),
        ({"recompute": "some"}, "recompute is 'some'; it must be one of none, selective, full"),
        ({"dp": 4, "ep": 3}, "ep is 3; it must divide dp [*] cp, which is 4 [*] 1"),
        ({"sequence_parallel": True}, "sequence_parallel is True and tp is 1"),
        ({"pp": 2, "zero": 3}, "zero is 3 and pp is 2; with a pipeline zero must be 0 or 1"),
        ({"pp": 2, "stage_layers": (4,)}, "stage_layers is .* it must be 2 numbers"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused_in_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(bl.InvalidInput, match=sentence):
        bl.Layout(**fields)  # type: ignore[arg-type]


def test_the_repr_is_code() -> None:
    layout = bl.Layout(tp=4, sequence_parallel=True, zero=1, dp=2)
    assert repr(layout) == "Layout(tp=4, dp=2, zero=1, sequence_parallel=True)"
