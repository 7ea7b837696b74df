"""Plans for other runtimes in Export: the library's text, what it cannot express, and refusals in the panel."""

import html

import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.exporters.plans import FORMATS
from baechi_lab.widgets.panels.plan_form import RUNTIMES


@pytest.fixture
def bench():
    """Four layers on two devices, in a line."""
    names = ["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"]
    graph = bl.OpGraph.from_edges([1, 4, 4, 4, 4, 1], [(k, k + 1, 8) for k in range(5)], names=names)
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    bench = bl.Workbench(graph, cluster, placer="single", passes=(), moves=tuple((name, "gpu:1") for name in names[3:]))
    bench.model.inline = True
    return bench


def test_every_format_is_offered_and_explained():
    assert set(RUNTIMES) == set(FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("name", fast(FORMATS, 4))
def test_each_plan_is_the_library_s_or_its_refusal(bench, name):
    form, outcome = bench.export.plans, bench.outcome
    form.format.value = name
    form.show.click()
    timeline = {"timeline": outcome.once} if name == "chakra" else {}
    try:
        plan = bl.write_plan(outcome.graph, outcome.placement, name, cluster=outcome.setting.cluster, **timeline)
    except bl.BaechiLabError as error:
        assert html.escape(str(error))[:40] in form.state.value and form.copy.text == "" and form.save.disabled
        assert bench.model.problem is None
        return
    assert form.copy.text == plan.text and not form.save.disabled
    assert all(html.escape(sentence) in form.unsupported.value for sentence in plan.unsupported)


def test_a_plan_is_saved_once_and_goes_with_its_placement(bench, tmp_path):
    form = bench.export.plans
    form.format.value = "vllm"
    form.show.click()
    assert form.copy.text.strip()
    form.folder.value = str(tmp_path / "plans")
    form.save.click()
    assert (tmp_path / "plans" / "vllm.txt").read_text() == form.plan.text
    form.save.click()
    assert "exists; choose another folder" in bench.model.problem.sentence
    form.folder.value = str(tmp_path / "plans" / "vllm.txt")  # no folder
    form.save.click()
    assert bench.model.problem.sentence.endswith("vllm.txt: cannot be written: File exists") and not form.state.value
    bench.model.change(moves=())
    assert form.plan is None and form.text.value == "" and form.save.disabled


def test_the_binary_files_of_a_plan_are_saved_beside_its_text(bench, tmp_path):
    form = bench.export.plans
    form.format.value = "chakra"
    form.show.click()
    if form.plan is None:
        pytest.skip(form.state.value)
    form.folder.value = str(tmp_path / "plans")
    form.save.click()
    saved = {path.name: path.read_bytes() for path in (tmp_path / "plans").iterdir()}
    assert saved == {"chakra.txt": form.plan.text.encode(), **{f"chakra{key}": x for key, x in form.plan.files.items()}}
    assert len(form.plan.files) == 2


def test_there_is_no_plan_of_an_outdated_placement(bench):
    bench.model.change(cluster=bench.model.setting.cluster.with_memory(1))  # nothing fits: the last result stays
    form = bench.export.plans
    form.format.value = "dot"
    form.show.click()
    assert form.plan is None and "no placement of the setting yet" in bench.header.problem.value
