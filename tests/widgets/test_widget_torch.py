"""A PyTorch step in the workbench: the library's graph, run, script, plans and sweep, each against the library."""

import html
import json
import threading
from dataclasses import replace
from functools import partial

import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.exporters.plans import FORMATS
from baechi_lab.graph.link import FREE
from baechi_lab.graph.units import format_us
from baechi_lab.identity import Unidentified, content_digest
from baechi_lab.widgets.panels.run_panel import foreign
from tests.helpers.messages import shown_text

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


def make_step(**changes):
    fields = {
        "name": "net",
        "build": Net,
        "inputs": (torch.ones(12, 8),),
        "loss": nn.functional.cross_entropy,
        "targets": torch.zeros(12, dtype=torch.long),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
    }
    return bl.torch.TorchStep(**{**fields, **changes})


def opened(step, devices=2, **setting):
    bench = bl.Workbench(step, bl.Cluster.uniform(devices), **{"placer": "m-topo", "passes": (), **setting})
    bench.model.inline = True
    return bench


def code_names(bench, step):
    names = {"step": step}
    exec(bench.code, names)
    return names


def test_the_graph_is_the_library_s_and_the_code_gives_the_same_step():
    step = make_step()
    bench = opened(step)
    outcome = bench.outcome
    assert outcome.graph.names == bl.profile(step, hardware="rtx2080").names and outcome.samples == 12
    assert code_names(bench, step)["timeline"].makespan_us == outcome.timeline.makespan_us
    assert "net has its own batch of 12" in bench.setting.source_note.value
    assert bench.setting.hardware.layout.display == "flex" and bench.setting.batch.layout.display == "none"


@pytest.mark.slow
def test_micro_batches_cut_the_batch_and_the_code_is_read_back():
    step = make_step()
    bench = opened(step, placer="contiguous", micro_batches=4, schedule="1f1b")
    outcome = bench.outcome
    micro_batch_graph = bl.profile(step.micro_batches(4)[0], hardware="rtx2080")
    assert (outcome.graph.duration_us == micro_batch_graph.duration_us).all()
    assert outcome.executed_graph.n > outcome.graph.n and outcome.samples == 12
    names = code_names(bench, step)
    assert names["timeline"].makespan_us == outcome.timeline.makespan_us
    setting = bench.model.setting
    bench.load_code(bench.code)
    assert bench.model.setting == setting and bench.model.problem is None
    with pytest.raises(bl.InvalidInput, match="micro_batches is 4; the profile is of one of 3 micro-batches"):
        bench.load_code(bench.code.replace("micro_batches(4)[0]", "micro_batches(3)[0]"))
    # A number that does not divide the batch never becomes the setting.
    bench.setting.micro.value = "5"
    assert (
        "12 rows; it must be a multiple of micro-batches, which is 5; the setting stays" in bench.model.problem.sentence
    )
    assert bench.setting.micro.value == "4" and bench.model.setting == setting and not bench.model.stale


@pytest.mark.parametrize(
    ("subject", "setting", "words"),
    [
        (make_step(), {"batch_size": 13}, "step 'net' has its own batch of 12"),
        (nn.Linear(2, 2), {}, "bl.torch.TorchStep makes the step"),
        (make_step(inputs=(torch.ones(3, 4), torch.ones(5, 4))), {"micro_batches": 2}, "shapes"),
    ],
    ids=["batch", "module", "no common batch"],
)
def test_what_cannot_be_opened_is_refused(subject, setting, words):
    with pytest.raises(bl.InvalidInput, match=words):
        opened(subject, **setting)


@pytest.mark.slow
def test_a_step_without_a_digest_is_profiled_once():
    """A model's code may read files, so that nothing identifies it by its content."""

    def build():
        return Net() if open else None

    step = make_step(build=build)
    with pytest.raises(Unidentified):
        content_digest(step)
    bench = opened(step)
    graph = bench.outcome.graph
    bench.model.change(placer="single")
    bench.model.change(passes=("fusion",))
    assert bench.outcome.graph is graph


def test_a_run_measures_and_is_shown_beside_the_simulated_step():
    bench = opened(make_step())
    bench.run.steps.value = 2
    bench.run.start.click()
    assert bench.tasks.worker.wait(60)
    ((outcome, run),) = bench.tasks.measured_runs
    assert run.status == "ok" and len(run.step_seconds) == 2 and list(run.native) == ["eager"]
    shown = shown_text(bench.run.numbers)
    for text in (format_us(run.median_seconds * 1e6), format_us(outcome.timeline.makespan_us), "native (eager)"):
        assert text in shown
    assert "measured / simulated" not in shown and "estimate for rtx2080" in bench.run.likeness.value
    assert bench.timelines() == [outcome.timeline, run.timeline]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is attached")
def test_gpus_that_are_not_attached_are_no_run_on_a_processor():
    bench = opened(make_step())
    bench.run.kind.value = "gpu"
    bench.run.start.click()
    assert bench.tasks.worker.wait(60)
    assert "torch sees 0" in bench.model.problem.sentence and not bench.tasks.measured_runs


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is attached")
def test_processors_of_one_process_copy_nothing():
    """The measured profile is comparable once transfers are free; there is no link to measure."""
    bench = opened(make_step(), moves=(("layers.2", "gpu:1"),))
    panel, outcome = bench.run, bench.outcome
    measured = replace(outcome, setting=outcome.setting.replace(profile="measured"))
    bench.model.take_outcome((measured, ()))
    assert len(measured.timeline.transfers) and "before they have no cost" in panel.likeness.value
    assert panel.link.layout.display == "none" and panel.free.layout.display == "inline-flex"
    panel.free.click()
    cluster = bench.model.setting.cluster
    assert cluster.link == FREE
    assert foreign(replace(measured, setting=measured.setting.replace(cluster=cluster))) == ""


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", fast([None, 3], 1))
def test_the_script_is_shown_and_written_for_the_devices_of_the_setting(tmp_path, micro_batches):
    pipeline = {} if micro_batches is None else {"micro_batches": micro_batches, "schedule": "1f1b"}
    step = bl.torch.models.build("gnmt", batch_size=6, length=2, vocabulary=7, width=4, layers=2)
    bench = opened(step, placer="contiguous", **pipeline)
    panel = bench.export
    panel.folder.value = str(tmp_path / "placed")
    panel.preview.click()
    panel.write.click()
    assert bench.model.problem is None
    assert html.escape((tmp_path / "placed" / "train.py").read_text()) in panel.script.value
    assert ("torchrun" in panel.state.value) == (micro_batches is not None)
    assert "devices=['cuda:0', 'cuda:1']" in panel.code.value.splitlines()[-1]
    if micro_batches is None:
        plan = json.loads((tmp_path / "placed" / "placed_plan.json").read_text())
        assert plan["devices"] == ["cuda:0", "cuda:1"]
    bench.model.change(placer="single")
    assert panel.script.value == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", fast(FORMATS, 4))
def test_each_plan_is_the_library_s_or_its_refusal(name):
    step = make_step()
    bench = opened(step, placer="contiguous")
    form, outcome = bench.export.plans, bench.outcome
    form.format.value = name
    assert (form.onnx_file.layout.display == "none") == (name != "onnx")
    form.show.click()
    options = {"chakra": {"timeline": outcome.once}, "device_map": {"model": step.model()}}.get(name, {})
    try:
        plan = bl.write_plan(outcome.graph, outcome.placement, name, cluster=outcome.setting.cluster, **options)
    except bl.BaechiLabError as error:
        assert html.escape(str(error)) in form.state.value and form.copy.text == ""
        return
    assert form.copy.text == plan.text
    assert all(html.escape(sentence) in form.unsupported.value for sentence in plan.unsupported)


@pytest.mark.slow
def test_a_sweep_cuts_the_batch():
    step = make_step()
    bench = opened(step)
    bench.tasks.sweep({"devices": [2], "memory_bytes": ["8GiB"], "placer": ["m-topo"], "micro_batches": [1, 3, 5]})
    rows = bench.tasks.rows
    assert rows["batch_size"].tolist() == [12, 12, 12] and "multiple" in rows["error"][2]
    for row, count in ((0, 1), (1, 3)):
        graph = bl.profile(step.micro_batches(count)[0], hardware="rtx2080")
        cluster = bench.model.setting.cluster
        placement = bl.place(graph, cluster, "m-topo")
        expected_us = bl.simulate(graph, cluster, placement, micro_batches=count).makespan_us
        assert rows["makespan_us"][row] == pytest.approx(expected_us, rel=1e-12)
    bench.explore.open_row(1)
    assert bench.model.problem is None
    assert bench.outcome.timeline.makespan_us == pytest.approx(rows["makespan_us"][1], rel=1e-12)


@pytest.mark.slow
def test_a_batch_that_cannot_be_cut_is_swept_whole():
    bench = opened(make_step(inputs=([torch.ones(3, 8, 8), torch.ones(3, 8, 8)],), build=Joined, loss=None, targets=()))
    grid = {"devices": [1], "memory_bytes": ["8GiB"], "placer": ["single"]}
    bench.tasks.sweep(grid)
    assert bench.tasks.rows["makespan_us"][0] == pytest.approx(bench.outcome.one_device_us)
    with pytest.raises(bl.InvalidInput, match="may be images"):
        bench.tasks.sweep({**grid, "micro_batches": [1, 3]})


class Joined(Net):
    def forward(self, tensors):
        return self.layers(torch.cat(list(tensors)))


@pytest.mark.slow
def test_fit_is_asked_about_the_whole_batch():
    step = make_step()
    bench = opened(step, placer="contiguous", micro_batches=3, schedule="1f1b")
    bench.fit.ask.click()
    first = bench.fit.answer.options[0]
    assert first.timeline.makespan_us == pytest.approx(
        bl.simulate(bl.profile(step, hardware="rtx2080"), bench.model.setting.cluster, first.placement).makespan_us
    )


def test_threads_estimate_one_after_another_and_others_train_with_dropout(no_job_of_an_earlier_test):
    """An estimate patches PyTorch; the workbench estimates on several threads, and may train on another."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    dropout = nn.functional.dropout
    step = make_step(build=lambda: layer, loss=None, targets=())
    inside, trained = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            inside.set()
            assert trained.wait(60)
            return nn.functional.dropout(x, 0.5)

    names: list[tuple[str, ...]] = []
    waiting = replace(step, build=Waiting)
    threads = [
        threading.Thread(target=lambda: names.append(bl.profile(waiting, hardware="rtx2080").names)),
        threading.Thread(target=lambda: names.append(bl.profile(step, hardware="rtx2080").names)),
    ]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    during = nn.functional.dropout(torch.ones(64), 0.5)
    trained.set()
    for thread in threads:
        thread.join(60)
    assert set(during.tolist()) == {0.0, 2.0}
    assert len(names) == 2 and nn.functional.dropout is dropout


def test_bug_a_sweep_measured_the_batch_on_the_screen_anew():
    """The header said 1.25 s and Explore 77 ms for the same setting: the profile of the whole batch is that of the header."""
    bench = opened(make_step(), devices=1, placer="single", profile="measured")
    panel = bench.explore
    panel.devices.value, panel.memory.value, panel.placers.value = "1", "8GB", "single"
    panel.start.click()
    assert bench.tasks.rows["makespan_us"].tolist() == [pytest.approx(bench.outcome.timeline.makespan_us, rel=1e-12)]


def test_bug_fit_told_who_opened_a_step_to_open_one():
    bench = opened(make_step(), devices=1, placer="single")
    bench.fit.ask.click()
    texts = [text for row in bench.fit.rows.rows for text in row["cells"]]
    assert "a given training step has its own batch: choose a model in Setting for others" in texts
    assert not any("open the workbench" in text for text in texts)
