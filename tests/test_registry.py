"""The registry that placers, passes, schedulers and models share."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import baechi_lab as bl
from baechi_lab import registry
from baechi_lab.models.registry import MODELS
from baechi_lab.passes.base import Pass
from baechi_lab.passes.fusion import Fusion
from baechi_lab.passes.registry import PASSES
from baechi_lab.placers.registry import PLACERS
from baechi_lab.simulator.schedulers import SCHEDULERS


@pytest.mark.parametrize("kind", [PLACERS, PASSES, MODELS, SCHEDULERS], ids=lambda kind: kind.kind)
def test_every_name_has_a_class_of_its_kind_with_one_line(kind):
    for name in kind.names():
        assert kind.find(name).name == name and isinstance(kind.find(name)(), kind.base)
    assert all(line.endswith(".") for line in kind.lines().values())
    with pytest.raises(bl.UnknownNameError, match=f"unknown {kind.kind} '{kind.names()[0]}x'; did you mean"):
        kind.find(kind.names()[0] + "x")


def test_other_packages_add_names_but_replace_none(monkeypatch):
    point = EntryPoint("glue", "baechi_lab.passes.fusion:Fusion", "some.group")
    thief = EntryPoint("colocation", "baechi_lab.passes.fusion:Fusion", "some.group")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point, thief] if group == "some.group" else [])
    kinds = registry.Registry("pass", Pass, PASSES.built_in, "baechi_lab.passes", group="some.group")
    assert kinds.names() == [*PASSES.names(), "glue"]
    assert kinds.find("glue") is Fusion
    assert kinds.find("colocation") is PASSES.find("colocation") is not Fusion


def test_parameters_are_for_names_only_and_must_be_known():
    assert PASSES.make("coplacement", {"backward": False}) == PASSES.find("coplacement")(backward=False)
    assert PASSES.make(Fusion()) == Fusion()
    with pytest.raises(bl.InvalidInput, match=r"parameters \['x'\] given beside a pass object"):
        PASSES.make(Fusion(), {"x": 1})
    with pytest.raises(
        bl.UnknownNameError, match=r"parameter of pass 'coplacement':.*'backwards'; did you mean 'backward'"
    ):
        PASSES.make("coplacement", {"backwards": False})
    with pytest.raises(bl.UnknownNameError, match="unknown pass 5"):
        PASSES.make(5)


def test_a_function_or_a_class_of_ones_own_is_told_what_to_inherit_from():
    class ForeignPlacer:
        def assign(self, graph, cluster):
            return bl.Placement(device=[0])

    for placer in (lambda graph, cluster: bl.Placement(device=[0]), ForeignPlacer(), PLACERS.find("single")):
        with pytest.raises(
            bl.InvalidInput, match=r"must be a name, or an object .* from baechi_lab\.placers\.base\.Placer"
        ):
            PLACERS.make(placer)


def test_the_nearest_name_does_not_depend_on_case():
    with pytest.raises(bl.UnknownNameError, match="unknown hardware 'A1000'; did you mean 'a100'"):
        raise bl.UnknownNameError.of("hardware", "A1000", ["v100", "a100", "h100"])
    with pytest.raises(bl.UnknownNameError, match=r"\(known: a100, h100\)$"):
        raise bl.UnknownNameError.of("hardware", "x", ["h100", "a100", "a100"])
    with pytest.raises(bl.UnknownNameError, match=r"unknown placer 'nothing' \(known: "):  # none is near
        PLACERS.find("nothing")
