"""Warnings that one part of the package takes from another stay in their thread."""

import threading
import warnings

import pytest

import baechi_lab as bl
from baechi_lab.internal_warnings import collected_warnings, warn

CHAIN = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (1, 2, 8)], forward_of=[-1, -1, 0], names=["x", "y", "x_grad"])


def test_a_thread_that_collects_takes_nothing_from_others():
    """`fit` in a workbench's thread had replaced the filters of the process: the cell that ran meanwhile warned of nothing."""
    collecting, end, collected = threading.Event(), threading.Event(), []

    def collect():
        with collected_warnings() as messages:
            bl.recompute(CHAIN, drop=["y"])
            collecting.set()
            end.wait(60)
        collected.extend(messages)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        assert collecting.wait(60)
        with pytest.warns(UserWarning, match="recomputing saves nothing here"):
            bl.recompute(CHAIN, drop=["y"])
    finally:
        end.set()
        thread.join()
    assert [message.partition(":")[0] for message in collected] == ["recomputing saves nothing here"]


def test_filters_stay_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        with collected_warnings() as outer:
            warn("first")
            with collected_warnings() as inner:
                warn("second")
            assert warnings.filters == filters
        assert (outer, inner) == (["first"], ["second"])
        with pytest.raises(UserWarning, match="third"):
            warn("third")


def test_bug_warnings_named_lines_of_this_package_or_of_pytorch():
    """A fixed number of calls is right for one public function only, and within a model's code for none."""
    torch = pytest.importorskip("torch")
    from baechi_lab.torch_steps.step import TorchStep

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x) + torch.linalg.matrix_exp(self.b(x))

    class Clipped(Layers):
        def forward(self, x):
            self.b.weight.data.clamp_(-0.1, 0.1)
            return self.a(x) + self.b(x)

    class Sampled(Layers):
        def forward(self, x):
            return self.a(x) if torch.rand(()) < 2 else self.b(x)

    x, cluster = torch.ones(4, 4), bl.Cluster.uniform(2, kind="cpu")
    clipped = TorchStep("clipped", Clipped, (x,))
    placed = Layers()  # its calls are a, b, the exponential and the sum
    placement = bl.Placement(device=[0, 1, 1, 0], order=[1, 0, 2, 3])
    bl.torch.distribute(placed, x, cluster, placement, reorder="global")
    placed.b.register_forward_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bl.recompute(CHAIN, drop=["y"])
        bl.torch.profile(Layers(), x, hardware="a100")
        bl.profile(TorchStep("sampled", Sampled, (x,)))
        graph = bl.torch.profile(clipped.micro_batches(2)[0], warmup=0, runs=1)
        bl.execute(clipped, bl.Placement(device=[0] * graph.n), 1, warmup=0, graph=graph, micro_batches=2)
        placed(x)
    library_warnings = [
        w for w in caught if w.category.__module__ == "baechi_lab.errors" and w.category.__name__ != "BusyMachine"
    ]
    assert {w.category.__name__ for w in library_warnings} == {
        "StepWarning",
        "UncountedWork",
        "RandomLayers",
        "CodeOrderKept",
    }
    assert {w.filename for w in library_warnings} == {__file__}
