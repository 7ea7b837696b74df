"""`bl.torch.measure_collective`: measures a collective among running processes, as a table for `bl.layouts(measured=)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from ...checks import check_text, check_whole
from ...errors import InvalidInput
from ...graph.collectives import MeasuredCollective

ELEMENT_BYTES = 4
"""Of a float32 number."""

Calls = dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]
CALLS: Calls = {
    "all_reduce": lambda gathered, _exchanged, _shard: dist.all_reduce(gathered),
    "all_gather": lambda gathered, _exchanged, shard: dist.all_gather_into_tensor(gathered, shard),
    "reduce_scatter": lambda gathered, _exchanged, shard: dist.reduce_scatter_tensor(shard, gathered),
    "all_to_all": lambda gathered, exchanged, _shard: dist.all_to_all_single(exchanged, gathered),
}
"""Kind -> its call, with two tensors of the gathered size and one of a process's share."""


def measure_collective(
    kind: str = "all_reduce",
    *,
    size_bytes: Sequence[int] = (2**12, 2**16, 2**20, 2**24, 2**26),
    repeats: int = 5,
    device: str | torch.device = "cpu",
) -> MeasuredCollective:
    """Times a collective among all processes of the default process group.

    Every process calls it, as a program that `torchrun` started and that has called `torch.distributed.init_process_group`
    does. Of every size one run is not timed; then the slowest process counts, and of all repeats the median.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        size_bytes: of the gathered tensor, rounded up to float32 numbers that the processes share equally.
        repeats: timed runs per size.
        device: of the tensors: "cpu" for gloo; "cuda" for NCCL, which is the process's current GPU (`torch.cuda.set_device`).

    Returns:
        The same table in all processes.

    Raises:
        InvalidInput: no process group, or one of a single process; an unknown kind; a collective that its back end lacks.

    >>> import baechi_lab as bl
    >>> bl.torch.measure_collective()
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: this process has no process group; call torch.distributed.init_process_group first
    """
    check_text("kind", kind, CALLS)
    check_whole("repeats", repeats)
    if not dist.is_initialized():
        raise InvalidInput("this process has no process group; call torch.distributed.init_process_group first")
    count = dist.get_world_size()
    if count < 2:
        raise InvalidInput("the process group has 1 process; a collective needs at least 2")
    shares = {-(-check_whole("size_bytes", size) // (ELEMENT_BYTES * count)) for size in size_bytes}
    if not shares:
        raise InvalidInput("size_bytes is empty; give at least one size")
    sizes, times = [], []
    for share in sorted(shares):
        full_tensor, shard = torch.zeros(share * count, device=device), torch.zeros(share, device=device)
        sizes.append(float(ELEMENT_BYTES * share * count))
        exchange = torch.empty_like(full_tensor)
        runs_us = []
        for _ in range(repeats + 1):
            dist.barrier()
            start = perf_counter()
            try:
                CALLS[kind](full_tensor, exchange, shard)
            except (RuntimeError, NotImplementedError) as error:
                raise InvalidInput(f"the back end {dist.get_backend()!r} runs no {kind}: {error}") from error
            if full_tensor.is_cuda:
                torch.cuda.synchronize(full_tensor.device)
            seconds = torch.tensor([perf_counter() - start], device=full_tensor.device)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            runs_us.append(float(seconds) * 1e6)
        times.append(median(runs_us[1:]))
    return MeasuredCollective(count, sizes, times, kind)
