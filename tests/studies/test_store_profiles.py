"""The stored profiles under data/: what is there is what the command makes."""

from pathlib import Path

import pytest
from fewer import slow

import baechi_lab as bl
from studies import store_profiles
from studies.store_profiles import PROFILES, Stored

DATA = Path(__file__).parents[2] / "data"


GNMT = [profile for profile in PROFILES if profile.model == "gnmt"]


@pytest.mark.parametrize("profile", slow(PROFILES, *GNMT[1:]), ids=lambda profile: profile.name)
def test_stored_profile_loads_small_and_whole(profile):
    path = DATA / f"{profile.name}.json.gz"
    assert path.stat().st_size < 1_500_000
    graph = bl.load_graph(path)
    assert graph.name == profile.name and bl.models.model_of(graph) == profile.model
    assert graph.duration_us.sum() > 1e4 and graph.persistent_bytes.sum() > 1e8
    assert (graph.forward_of >= 0).mean() > 0.4
    assert path.name in (DATA / "README.md").read_text()


def test_command_makes_the_same_graph_twice(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    tiny = (Stored("mlp-tiny", "mlp", {"units": 4}, "a test"),)
    monkeypatch.setattr(store_profiles, "PROFILES", tiny)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        store_profiles.main([str(folder)])
    one, two = (bl.load_graph(folder / "mlp-tiny.json.gz") for folder in folders)
    assert one == two and one.name == "mlp-tiny"
    assert "bl.models.build('mlp', units=4)" in (folders[0] / "README.md").read_text()


def test_unknown_profile_and_missing_folder(tmp_path):
    with pytest.raises(bl.UnknownNameError, match="unknown profile 'gnmt-50'"):
        store_profiles.store(tmp_path, ["gnmt-50"])
    with pytest.raises(bl.InvalidInput, match="must be an existing folder"):
        store_profiles.store(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
