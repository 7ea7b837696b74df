"""Algorithm 1 without a GPU: every read is ordered after the write it needs, and every foreign use is recorded.

Tensors are torch's fake CUDA tensors, streams and events are stand-ins that keep vector clocks: a stream's clock says
which work of which stream is known to be done when its next kernel runs.
"""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from fewer import fast

torch = pytest.importorskip("torch")
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_cases import SMALL, Branches, random_placement  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.forward_state import Observer  # noqa: E402
from baechi_lab.torch_runtime.intercept import Interceptor  # noqa: E402
from baechi_lab.torch_runtime.session import Session  # noqa: E402
from baechi_lab.torch_runtime.transport import StreamTransport  # noqa: E402
from baechi_lab.torch_runtime.tree import tensors  # noqa: E402
from baechi_lab.torch_runtime.waiting_calls import WaitingCall  # noqa: E402
from baechi_lab.torch_steps.plan import make_plan  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


class Fan(Branches):
    """`Branches` with views that fake CUDA tensors can make without CUDA (indexing cannot)."""

    def forward(self, x):
        ys = [branch(x) for branch in self.br]
        z = torch.cat([y.view(y.shape[0], 2, 2).transpose(1, 2).reshape(-1, 4) for y in ys], -1)
        return self.o(z) + sum(y.narrow(1, 0, 3) for y in ys)


class Written(torch.nn.Module):
    """Writes in place into what another layer reads, and into a constant."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.a(x)
        z = self.b(y)
        self.relu(y)
        total = torch.zeros(6, 4, device=x.device)
        total.add_(z)
        return self.c(total) + self.b(y)


class Stream:
    """A clock: stream -> how many of its kernels are done before what this stream runs next."""

    def __init__(self, device=None):
        self.device, self.clock = torch.device(device), {}

    def run(self):
        """One kernel; returns when it is done, as `(stream, count)`."""
        self.clock[self] = self.clock.get(self, 0) + 1
        return self, self.clock[self]

    def sees(self, stamp):
        return self.clock.get(stamp[0], 0) >= stamp[1]

    def merge(self, clock):
        for stream, count in clock.items():
            self.clock[stream] = max(count, self.clock.get(stream, 0))

    def wait_event(self, event):
        self.merge(event.clock)

    def wait_stream(self, stream):
        self.merge(stream.clock)


class Event:
    def __init__(self, enable_timing=False):
        self.clock = None

    def record(self, stream):
        self.clock = dict(stream.clock)


class Gpus(Observer):
    """The fakes, and the two checks."""

    def __init__(self, monkeypatch):
        self.local, self.default = threading.local(), {}
        self.stamp, self.owner, self.used, self.recorded, self.kept = {}, {}, {}, {}, []
        self.faults, self.copies, self.written_back = [], 0, 0
        self.copied = {}  # data -> when the copies that were made of it are done
        for name, fake in (
            ("Stream", Stream),
            ("Event", Event),
            ("stream", self.entered),
            ("current_stream", self.current),
        ):
            monkeypatch.setattr(torch.cuda, name, fake)
        # Without CUDA, another write into fake CUDA memory stands for a copy.
        monkeypatch.setattr(torch.Tensor, "copy_", lambda t, source: t.mul_(1))
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda t, s: self.recorded.setdefault(self.data(t), set()).add(s)
        )

    @staticmethod
    def data(tensor):
        return tensor.untyped_storage()._cdata

    @contextlib.contextmanager
    def entered(self, stream):
        stack = self.local.__dict__.setdefault("stack", [])
        stack.append(stream)
        yield
        stack.pop()

    def current(self, device):
        stack = self.local.__dict__.get("stack", [])
        device = torch.device(device)
        stream_of_device = next((s for s in reversed(stack) if s.device == device), None)
        return stream_of_device or self.default.setdefault(device, Stream(device))

    def read(self, tensor, stream, reader):
        data = self.data(tensor)
        if data in self.stamp and not stream.sees(self.stamp[data]):
            self.faults.append(f"{reader} may run before its input is there")
        if data in self.owner and self.owner[data] is not stream:
            self.used.setdefault(data, set()).add(stream)

    def write(self, tensor, stream):
        self.kept.append(tensor)
        if not all(map(stream.sees, self.copied.pop(self.data(tensor), ()))):
            self.faults.append("a tensor may be overwritten while it is copied")
        self.stamp[self.data(tensor)] = stream.run()
        self.owner.setdefault(self.data(tensor), stream)

    # the observer
    def start(self, op, arguments):
        self.local.taken = list(tensors(arguments))
        return set()

    def stop(self, op, nodes, outputs):
        for tensor in self.local.taken:
            self.read(tensor, self.current(tensor.device), f"call {op}")
        for tensor in tensors(outputs):
            self.write(tensor, self.current(tensor.device))

    def unrecorded(self):
        return [data for data, streams in self.used.items() if streams - self.recorded.get(data, set())]


class Checked(StreamTransport):
    """Copies are work too."""

    def copy_on_streams(self, tensor, target, tx, rx):
        self.gpus.copies += 1
        self.gpus.read(tensor, tx, "a copy")
        copy = super().copy_on_streams(tensor, target, tx, rx)
        rx.merge(tx.clock)
        self.gpus.write(copy, rx)
        self.gpus.copied.setdefault(self.gpus.data(tensor), []).append(self.gpus.stamp[self.gpus.data(copy)])
        return copy

    def write_back(self, state, original, copy, device):
        super().write_back(state, original, copy, device)
        owner = self.compute(state, original._baechi_tag.device)
        self.gpus.read(copy, owner, "writing back")
        self.gpus.write(original, owner)
        self.gpus.written_back += 1


def fake_gpus(model, homes):
    """Parameters and buffers as fake tensors on their devices, shared ones still shared."""
    memo = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        owner, _, key = name.rpartition(".")
        module = model.get_submodule(owner)
        first = memo.setdefault(id(tensor), name)
        fake = memo.get((id(tensor), "made"))
        if fake is None:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=homes[first])
            fake = torch.nn.Parameter(fake) if isinstance(tensor, torch.nn.Parameter) else fake
            memo[id(tensor), "made"] = fake
        setattr(module, key, fake)


def run(
    monkeypatch, name, devices, seed, *, transport=Checked, reorder=True, steps=2, mode=torch.no_grad, placement=None
):
    """Two forwards of a model placed at random (unless a placement is given) on fake GPUs; returns what was seen."""
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        model, inputs = step.model().eval(), step.inputs
    else:
        model, inputs = {"written": Written, "data": WrittenData}.get(name, Fan)().eval(), (torch.randn(6, 4),)
    traced = trace(model, inputs)
    placement = placement or random_placement(traced, len(devices), np.random.default_rng(seed), reorder=reorder)
    plan = make_plan(traced, placement, tuple(devices))
    with FakeTensorMode() as fake, mode():
        gpus = Gpus(monkeypatch)
        names = [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
        fake_gpus(model, {n: devices[plan.parameters.get(n, 0)] for n in names})
        session = Session(model, plan, transport=transport(devices))
        session.transport.gpus, session.observer = gpus, gpus

        def in_fake_mode(*work):  # modes are per thread
            with fake:
                MAKE(*work)

        submit, one_at_a_time = session.submit, threading.Lock()

        def submit_alone(*work):  # the fake mode is not made for several threads
            with one_at_a_time:
                return submit(*work)

        monkeypatch.setattr(WaitingCall, "make", in_fake_mode)
        session.submit = submit_alone
        Interceptor(model, plan.layers, session).install()
        device_inputs = tuple(torch.empty(t.shape, dtype=t.dtype, device=devices[0]) for t in inputs)
        for tensor in device_inputs:
            gpus.write(tensor, gpus.current(tensor.device))
        for _ in range(steps):
            outputs = list(tensors(model(*device_inputs)))
            for tensor in outputs:
                gpus.read(tensor, gpus.current(tensor.device), "the caller")
    session.close()
    return gpus, session


MAKE = WaitingCall.make

CLUSTERS = {
    "two GPUs": ["cuda:0", "cuda:1"],
    "stream groups": ["cuda:0", "cuda:0", "cuda:0"],
    "both": ["cuda:0", "cuda:1", "cuda:0", "cuda:1"],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", fast(["branches", "gnmt", "resnet50"], 1))
def test_every_read_comes_after_its_write_and_foreign_uses_are_recorded(monkeypatch, name, cluster):
    for seed in range(2):
        gpus, _ = run(monkeypatch, name, CLUSTERS[cluster], seed, reorder=bool(seed % 2))
        assert gpus.copies > 0
        assert not gpus.faults and not gpus.unrecorded()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_bug_tensors_were_overwritten_while_they_were_sent_and_constants_were_not_written(monkeypatch, cluster):
    written_back = 0
    for seed in range(8):
        gpus, _ = run(monkeypatch, "written", CLUSTERS[cluster], seed, reorder=bool(seed % 2))
        assert not gpus.faults and not gpus.unrecorded()
        written_back += gpus.written_back
    assert written_back > 0


def test_bug_a_tensor_was_sent_before_it_was_overwritten_in_inference_mode(monkeypatch):
    for seed in range(8):
        gpus, _ = run(monkeypatch, "written", ["cuda:0", "cuda:1"], seed, mode=torch.inference_mode)
        assert not gpus.faults and not gpus.unrecorded()


class WrittenData(torch.nn.Module):
    """Reads a buffer on its device and on another one, writes into it through `.data`, and reads it there again."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(6, 4))

    def forward(self, x):
        y = self.a(x) * self.mean + self.mean
        self.mean.data.mul_(0.5)
        return self.b(y + self.mean)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_bug_a_buffer_that_was_written_through_data_was_not_sent_again(monkeypatch, mode):
    """The buffer's own count of writes does not grow, so that the device went on with its first copy."""
    traced = trace(WrittenData().eval(), torch.randn(6, 4))
    adding = [k for k, call in enumerate(traced.calls) if call.module is None and call.key.startswith("add")]
    device = np.zeros(len(traced.calls), dtype=np.int64)
    device[adding] = 1
    gpus, _ = run(
        monkeypatch, "data", ["cuda:0", "cuda:1"], 0, mode=mode, steps=1, placement=bl.Placement(device=device)
    )
    # The first sum needs the product and the buffer, the second one the buffer, and `b` the second sum.
    assert len(adding) == 2 and gpus.copies == 4 and not gpus.faults and not gpus.unrecorded()


def test_the_checks_can_fail(monkeypatch):
    """Without `record_stream` the second check fails; without waiting for the copy, or for the sender, the first."""
    gpus, _ = run(monkeypatch, "branches", CLUSTERS["both"], 1, transport=lambda d: Checked(d, record=False))
    assert gpus.unrecorded() and not gpus.faults

    class Hasty(Checked):
        def send_copy(self, state, tensor, tag, target):
            copy, _ = super().send_copy(state, tensor, tag, target)
            empty = Event()
            empty.clock = {}
            return copy, empty

    gpus, _ = run(monkeypatch, "branches", CLUSTERS["two GPUs"], 1, transport=Hasty)
    assert any("call" in fault for fault in gpus.faults)

    class NoWait(Checked):
        def stream_pair(self, op, source, target):
            tx, rx = super().stream_pair(op, source, target)
            monkeypatch.setattr(tx, "wait_event", lambda event: None, raising=False)
            return tx, rx

    gpus, _ = run(monkeypatch, "branches", CLUSTERS["two GPUs"], 1, transport=NoWait)
    assert any("copy" in fault for fault in gpus.faults)


def test_a_tensor_goes_to_a_device_once(monkeypatch):
    """Several readers on one device share one copy: as many copies per step as (tensor, device) pairs."""
    gpus, session = run(monkeypatch, "branches", CLUSTERS["two GPUs"], 5, reorder=False, steps=1)
    traced = trace(Fan().eval(), torch.randn(6, 4))
    pairs = {
        (v, session.plan.device[i])
        for i, call in enumerate(traced.calls)
        for v in call.reads
        if session.plan.device[traced.values[v].producer] != session.plan.device[i]
    }
    readers_of_input = {i for i, call in enumerate(traced.calls) if not call.reads and session.plan.device[i] == 1}
    home = int(
        session.plan.device[traced.results[0]] == 1
    )  # the output is brought to where the input is, by torch itself
    assert gpus.copies == len(pairs) + bool(readers_of_input) and home in (0, 1)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
def test_one_stream_pair_per_layer_and_child_device(monkeypatch):
    _, session = run(monkeypatch, "gnmt", CLUSTERS["both"], 2, reorder=False)
    for op, source, target in session.transport.pairs:
        assert source != target and (op < 0 or session.plan.device[op] == source)
    assert len(set(map(id, (tx for tx, _ in session.transport.pairs.values())))) == len(session.transport.pairs)
