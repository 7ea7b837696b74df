"""Scratch memory of operators on a CPU in an estimate, beside the events of PyTorch's allocator."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import linalg
from torch.nn import functional
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode

from baechi_lab.profilers.torch.memory import read_marked_changes
from baechi_lab.profilers.torch.operator_counter import Counter
from baechi_lab.profilers.work import Kernel
from baechi_lab.torch_runtime.storage import storage_bytes
from baechi_lab.torch_runtime.tree import tensors

torch.manual_seed(1)


def trained(*shape):
    return torch.randn(*shape, requires_grad=True)


def pictures(samples=2):
    return trained(samples, 8, 16, 16)


def bags(mode):
    return functional.embedding_bag(torch.arange(120).view(30, 4) % 50, trained(50, 16), mode=mode)


def symmetric(n):
    x = trained(n, n)
    return x @ x.T + n * torch.eye(n)


def double_convolution(transposed):
    """In double precision, which oneDNN does not compute."""
    convolution = functional.conv_transpose2d if transposed else functional.conv2d
    return convolution(pictures().double(), trained(8, 8, 3, 3).double())


def transposed(samples, inputs, outputs, kernel, **options):
    weight = trained(inputs, outputs, kernel, kernel)
    return functional.conv_transpose2d(trained(samples, inputs, 8, 8), weight, **options)


def convolution(sizes, weight, dtype=torch.float32, order=torch.contiguous_format, **options):
    x = trained(*sizes).to(dtype, memory_format=order)
    return functional.conv2d(x, trained(*weight).to(dtype), **options)


def transposed_bfloat16(sizes, weight, **options):
    return functional.conv_transpose2d(trained(*sizes).bfloat16(), trained(*weight).bfloat16(), **options)


CASES = {
    "svdvals": lambda: linalg.svdvals(trained(70, 60)),
    "eigvalsh": lambda: linalg.eigvalsh(symmetric(40)),
    "eig": lambda: linalg.eigvals(trained(40, 40)).abs(),
    "qr": lambda: linalg.qr(trained(80, 40))[1],
    "inverse": lambda: linalg.inv(trained(40, 40)),
    "determinant": lambda: linalg.det(trained(8, 40, 40)),
    "lu": lambda: linalg.lu(trained(70, 60))[2],
    "least squares": lambda: linalg.lstsq(trained(80, 40), trained(80, 40))[0],
    "pseudo-inverse": lambda: linalg.pinv(trained(80, 40)),
    "cholesky": lambda: torch.cholesky_solve(trained(40, 40), linalg.cholesky(symmetric(40))),
    "median": lambda: trained(60, 70).median(),
    "median of columns": lambda: trained(60, 70).median(dim=0)[0],
    "order": lambda: trained(4000).sort()[0],
    "k-th value": lambda: trained(10, 400).kthvalue(3)[0],
    "quantile": lambda: torch.quantile(trained(4000), 0.3),
    "sum of an expanded product": lambda: trained(40, 30) @ trained(30, 20),
    "batched products": lambda: trained(4, 40, 30) @ trained(4, 30, 20),
    "attention": lambda: functional.scaled_dot_product_attention(*(trained(1, 2, 48, 16) for _ in range(3))),
    "long attention": lambda: functional.scaled_dot_product_attention(*(trained(1, 1, 600, 4) for _ in range(3))),
    "masked attention": lambda: functional.scaled_dot_product_attention(
        *(trained(2, 2, 32, 16) for _ in range(3)), attn_mask=trained(32, 32)
    ),
    "ctc": lambda: functional.ctc_loss(
        trained(40, 4, 8).log_softmax(-1), torch.ones(4, 16, dtype=torch.long), (40,) * 4, (16,) * 4
    ),
    "bags, sum": lambda: bags("sum"),
    "bags, mean": lambda: bags("mean"),
    "bags, max": lambda: bags("max"),
    "embedding": lambda: functional.embedding(torch.arange(100) % 50, trained(50, 16)),
    "scattered mean": lambda: trained(40, 30).scatter_reduce(
        0, torch.zeros(40, 30, dtype=torch.long), trained(40, 30), "mean"
    ),
    "fourier": lambda: torch.fft.fft(trained(40, 30), dim=0).abs(),
    "fourier of pictures": lambda: torch.fft.irfft2(torch.fft.rfft2(trained(2, 40, 30))),
    "distances": lambda: torch.cdist(trained(40, 8), trained(30, 8)),
    "rolled": lambda: trained(40, 30).roll((3, 4), (0, 1)),
    "grid": lambda: functional.grid_sample(
        pictures(), functional.affine_grid(trained(2, 2, 3), [2, 8, 16, 16]), align_corners=False
    ),
    "bicubic": lambda: functional.interpolate(pictures(), scale_factor=2, mode="bicubic"),
    "bilinear": lambda: functional.interpolate(pictures(), scale_factor=2, mode="bilinear"),
    "smooth": lambda: functional.interpolate(pictures(), scale_factor=0.5, mode="bilinear", antialias=True),
    "upsampled lines": lambda: functional.interpolate(trained(2, 4, 64), scale_factor=2, mode="linear"),
    "upsampled volumes": lambda: functional.interpolate(trained(1, 2, 4, 8, 8), scale_factor=2),
    "pooled, channels last": lambda: functional.max_pool2d(pictures().to(memory_format=torch.channels_last), 2),
    "softmax, channels last": lambda: pictures().to(memory_format=torch.channels_last).softmax(1),
    "double convolution": lambda: double_convolution(transposed=False),
    "double transposed": lambda: double_convolution(transposed=True),
    "few channels": lambda: functional.conv2d(trained(4, 3, 28, 28), trained(2, 3, 5, 5)),
    "few channels of a volume": lambda: functional.conv3d(trained(4, 1, 8, 12, 12), trained(2, 1, 1, 3, 3)),
    "few channels of results": lambda: functional.conv1d(trained(4, 24, 28), trained(4, 24, 3)),
    "depthwise": lambda: functional.conv2d(pictures(), trained(8, 1, 3, 3), padding=1, groups=8),
    "dilated transposed": lambda: functional.conv_transpose2d(pictures(), trained(8, 8, 3, 3), dilation=2),
    "one dilated transposed": lambda: functional.conv_transpose2d(pictures(1), trained(8, 8, 3, 3), dilation=2),
    "few channels of a transposed": lambda: transposed(2, 16, 1, kernel=4, stride=2, padding=1),
    "uneven transposed": lambda: transposed(2, 16, 3, kernel=3, stride=2, padding=1),
    "transposed without strides": lambda: transposed(2, 16, 3, kernel=3, padding=1),
    "one small transposed": lambda: transposed(1, 16, 12, kernel=2, stride=2),
    "five channels of a transposed": lambda: transposed(2, 16, 5, kernel=2, stride=2),
    "wide margins of a transposed": lambda: transposed(2, 32, 2, kernel=8, stride=2, padding=3),
    "strided": lambda: convolution((4, 16, 32, 32), (32, 16, 3, 3), stride=2, padding=1),
    "strided, few channels": lambda: convolution((4, 8, 16, 16), (8, 8, 3, 3), stride=2, padding=1),
    "strided patches": lambda: convolution((8, 64, 16, 16), (64, 64, 4, 4), stride=4),
    "strided windows of one": lambda: convolution((2, 64, 14, 14), (128, 64, 1, 1), stride=2),
    "groups of a transposed": lambda: functional.conv_transpose2d(
        trained(2, 64, 16, 16), trained(64, 32, 5, 5), groups=2, padding=2
    ),
    "bfloat16": lambda: convolution((2, 16, 16, 16), (16, 16, 3, 3), torch.bfloat16, padding=1),
    "bfloat16, channels last": lambda: convolution(
        (2, 16, 16, 16), (32, 16, 3, 3), torch.bfloat16, torch.channels_last, padding=1
    ),
    "bfloat16, few channels": lambda: convolution((2, 3, 16, 16), (16, 3, 3, 3), torch.bfloat16, padding=1),
    "bfloat16, strided": lambda: convolution((2, 64, 14, 14), (128, 64, 3, 3), torch.bfloat16, stride=2, padding=1),
    "bfloat16, windows of one": lambda: convolution((2, 64, 7, 7), (32, 64, 1, 1), torch.bfloat16),
    "bfloat16, groups": lambda: convolution((2, 64, 16, 16), (64, 32, 5, 5), torch.bfloat16, padding=2, groups=2),
    "bfloat16, transposed": lambda: transposed_bfloat16((2, 32, 16, 16), (32, 16, 4, 4), stride=2, padding=1),
    "bfloat16, transposed to few channels": lambda: transposed_bfloat16(
        (2, 16, 16, 16), (16, 3, 4, 4), stride=2, padding=1
    ),
    "bfloat16, transposed windows of one": lambda: transposed_bfloat16((2, 32, 16, 16), (32, 64, 1, 1)),
    "product in bfloat16": lambda: trained(32, 64).bfloat16() @ trained(64, 48).bfloat16(),
    "products in bfloat16": lambda: trained(3, 16, 40).bfloat16() @ trained(3, 40, 24).bfloat16(),
    "compared types": lambda: trained(40, 30) * (torch.ones(40, 30) > torch.ones(40, 1, dtype=torch.double)),
}

LABEL = "scratch of "


class Observer(TorchDispatchMode):
    """Estimates the scratch memory of each operator, and marks it among the events of the allocator."""

    def __init__(self):
        super().__init__()
        self.counter, self.rows = Counter(on_cpu=True), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch.profiler.record_function(f"{LABEL}{len(self.rows)}"):
            out = func(*args, **(kwargs or {}))
        moved_bytes = sum(map(storage_bytes, tensors((args, kwargs, out))))
        self.rows.append((str(func), self.counter.scratch_bytes(func, args, out, Kernel()), moved_bytes))
        return out


@pytest.fixture(scope="module")
def scratch():
    """Returns case -> operators with estimated scratch memory, measured scratch memory, and bytes of their tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    observer, starts = Observer(), {}
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, compute in CASES.items():
            starts[name] = len(observer.rows)
            with observer:
                compute().sum().backward()
    torch.set_num_threads(threads)
    changes, marks = read_marked_changes(profiler, LABEL)
    measured = {}
    for label, start, end in marks:
        levels = list(accumulate(changes[start:end], initial=0))
        measured[int(label)] = max(levels) - max(levels[-1], 0)
    last_rows = [*list(starts.values())[1:], len(observer.rows)]
    return {
        name: [(*observer.rows[k][:2], measured[k], observer.rows[k][2]) for k in range(start, end)]
        for (name, start), end in zip(starts.items(), last_rows, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_bug_estimates_left_out_the_scratch_memory_of_operators(name, scratch):
    """Work arrays, copies in order, masks and counts were missing: estimates of small models were up to 17 % too low.

    At most a hundredth of the operator's tensors and a few numbers may be missing.
    """
    low = [row for row in scratch[name] if row[1] < row[2] - 0.01 * row[3] - 32]
    assert not low
    largest_share = max(row[2] / row[3] for row in scratch[name])
    assert largest_share > 0.03  # the case has scratch memory
