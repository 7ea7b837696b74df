"""One process of a pipeline: it runs its stages on `torch.distributed.pipelining`, in the order of a schedule's text.

This file needs torch alone: an exported script has a copy. A schedule has one line per process, with units such as `0F3`:
stage 0, forward of micro-batch 3. B is the whole backward pass of a stage. If the text has W units, B is the gradient of
inputs and W that of weights. Sends and receives are added here, and torch's `_PipelineScheduleRuntime` runs the schedule.

Several processes may share a stage as replicas: micro-batch k goes to the one at k modulo their number. torch assumes one
process per stage in several places; `_Runtime` and `_Stage` override these. When all units are done, replicas add up their
gradients. So do processes whose stages share a parameter (tied weights), each of which has a copy: copies that begin equal
and take the same gradients stay equal.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

try:
    from torch.distributed.pipelining._backward import stage_backward_weight
    from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
    from torch.distributed.pipelining.stage import InferenceMode, PipelineStage
except ImportError as error:
    raise ImportError(
        f"running a PyTorch step needs private names of torch.distributed.pipelining that torch {torch.__version__} lacks: "
        "pip install 'torch>=2.13,<2.14'"
    ) from error

from ...torch_runtime.divisors import Divisors, Replacements, dividing, loss_divisors, replacements
from ...torch_runtime.tree import Args

SECONDS = 300
"""How long a process waits for another before it gives up."""


class UnitRun(NamedTuple):
    """One run of a unit such as `0F3`: stage, kind and micro-batch, and its start and end in seconds (`Pipeline.read_clock`)."""

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


def connect(rank: int, world: int, device: str, file: str | None, seconds: float = SECONDS) -> None:
    """Joins the other processes, through a file on one machine, or as torchrun's environment says.

    With a file, nothing listens beyond the loopback device. Several machines need a network that is closed to others.
    """
    backend = "nccl" if device.startswith("cuda") else "gloo"
    wait = timedelta(seconds=seconds)
    if file is None:
        dist.init_process_group(backend, rank=rank, world_size=world, timeout=wait)
        return
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(backend, store=dist.FileStore(file, world), rank=rank, world_size=world, timeout=wait)


def actions(text: str) -> list[list[str]]:
    """Returns the actions of a schedule's text in torch's notation, per process.

    `B` is the whole backward pass, `I` and `W` are its parts.
    """
    lines = [line.split() for line in text.strip().splitlines()]
    split_backward = any("W" in word for line in lines for word in line)
    return [[word.replace("B", "I") if split_backward else word for word in line] for line in lines]


def with_transfers(lines: Sequence[Sequence[str]], stage_ranks: Sequence[Sequence[int]]) -> list[list[str]]:
    """Adds sends and receives to the actions of each process. `stage_ranks[s]` are the processes of stage s.

    The output of a unit is sent when the unit ends. The other process receives it at that moment of its own order. So no two
    processes wait for each other.

    >>> [" ".join(line) for line in with_transfers(actions("0F0 0B0\\n1F0 1B0"), [[0], [1]])]
    ['0F0 0SEND_F0 0RECV_B0 0B0', '1RECV_F0 1F0 1B0 1SEND_B0']
    """
    actions_of: list[list[str]] = [[] for _ in lines]
    waiting = [deque(line) for line in lines]
    finished_units: set[tuple[int, str, int]] = set()
    while remaining := sum(map(len, waiting)):
        for rank, line in enumerate(waiting):
            if not line:
                continue
            stage, kind, k = _unit(line[0])
            source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            if kind != "W" and 0 <= source < len(stage_ranks) and (source, kind, k) not in finished_units:
                continue
            actions_of[rank].append(line.popleft())
            finished_units.add((stage, kind, k))
            if kind == "W" or not 0 <= target < len(stage_ranks):
                continue
            peer, direction = stage_ranks[target][k % len(stage_ranks[target])], "F" if kind == "F" else "B"
            if peer != rank:
                actions_of[rank].append(f"{stage}SEND_{direction}{k}")
                actions_of[peer].append(f"{target}RECV_{direction}{k}")
        if sum(map(len, waiting)) == remaining:
            raise ValueError("the schedule blocks itself")
    return actions_of


def _unit(word: str) -> tuple[int, str, int]:
    """Returns stage, kind and micro-batch of a word such as 0F3."""
    stage, kind, k = re.fullmatch(r"(\d+)([A-Z])(\d+)", word).groups()  # type: ignore[union-attr]
    return int(stage), kind, int(k)


class Pipeline:
    """The stages of one process, ready to take steps.

    Args:
        stage_modules: stage -> its module and its spec (names of the inputs it reads; shape, type and gradient of what it
            receives and sends).
        text: the schedule.
        micro_batches: per step.
        loss: `(output, *targets) -> scalar`; the last stage's `template` says how its tensors make the output.
        mean: the loss of the batch is the mean of those of its micro-batches, else their sum.
        stage_ranks: the processes of every stage of the pipeline, replicas in the order in which they take micro-batches.
        batch_shapes: shape and type of the model's outputs for the undivided batch, where the loss averages over what counts.
        tied: parameters that stages of different processes share, each as the (stage, name) pairs of its copies; the same,
            in the same order, on all processes.
    """

    def __init__(
        self,
        stage_modules: Mapping[int, tuple[nn.Module, dict[str, Any]]],
        text: str,
        micro_batches: int,
        *,
        loss: Callable[..., torch.Tensor],
        template: object,
        stage_ranks: Sequence[Sequence[int]],
        mean: bool = True,
        device: str = "cpu",
        tied: Sequence[Sequence[tuple[int, str]]] = (),
        batch_shapes: Sequence[Sequence[object]] = (),
    ):
        self.count, self.device = micro_batches, torch.device(device)
        holders = [tuple(sorted({rank for s, _ in copies for rank in stage_ranks[s]})) for copies in tied]
        # A single process has no group. All processes create all groups.
        groups = {
            ranks: dist.new_group(list(ranks))
            for ranks in sorted({*map(tuple, stage_ranks), *holders})
            if len(ranks) > 1
        }
        self.replicas = groups.get(tuple(stage_ranks[next(iter(stage_modules))]))
        self.inputs = {name for _, spec in stage_modules.values() for name in spec["inputs"]}
        self.unit_runs: list[UnitRun] = []
        self.modules = {s: module.to(self.device) for s, (module, _) in stage_modules.items()}
        self.tied: list[tuple[nn.Parameter, object]] = []
        for copies, ranks in zip(tied, holders, strict=True):
            local_copies = [self.modules[s].get_parameter(name) for s, name in copies if s in self.modules]
            if local_copies and local_copies[0].requires_grad:
                self.tied.append((local_copies[0], groups[ranks]))
        stage_objects = []
        for s, (module, spec) in sorted(stage_modules.items()):
            module.device = self.device  # type: ignore[assignment]
            metas = [tuple(_meta(*value) for value in spec[key]) for key in ("receives", "sends")]
            stage = _Stage(_Sending(module, spec["inputs"]), s, stage_ranks, self.device, metas[0], metas[1])
            stage.pipeline = self
            stage_objects.append(stage)
        self.schedule = _Runtime(stage_objects, micro_batches, loss_fn=self._loss, scale_grads=False)
        orders = with_transfers(actions(text), stage_ranks)
        self.schedule.pipeline_order_with_comms = {
            rank: list(map(_Action.from_str, line)) for rank, line in enumerate(orders)
        }
        self.loss, self.template, self.mean = loss, template, mean
        self.divisors: Sequence[Replacements] = [{} for _ in range(micro_batches)]
        self.batch_shapes, self.sends = batch_shapes, {s: spec["sends"] for s, (_, spec) in stage_modules.items()}
        self.observed = True

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all stages of this process, each once."""
        return list(dict.fromkeys(p for module in self.modules.values() for p in module.parameters()))

    def step(self, batches: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]) -> float | None:
        """Runs forward and backward of one batch, given as (inputs, targets) of its micro-batches. Gradients add up.

        Returns the batch's loss on the process of the last stage, None on the others.
        """
        stages: list[PipelineStage] = self.schedule._stages
        for stage in stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        self.unit_runs = []
        stage_inputs = [
            {name: t.to(self.device) for i, t in enumerate(inputs) if (name := f"input_{i}") in self.inputs}
            for inputs, _ in batches
        ]
        last = any(stage.is_last for stage in stages)
        targets = [tuple(t.to(self.device) for t in micro_targets) for _, micro_targets in batches] if last else None
        if last and self.batch_shapes:
            self.divisors = self._divisors([micro_targets for _, micro_targets in batches])
        self.schedule.losses.clear()
        self.schedule._step_microbatches([()] * self.count, stage_inputs, targets, None, return_outputs=False)
        tied_ids = {id(p) for p, _ in self.tied}
        self._share([p.grad for p in self.parameters if p.grad is not None and id(p) not in tied_ids], self.replicas)
        for parameter, group in self.tied:
            # Every copy gets the sum of all copies' gradients, or none if no process has one.
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            has_gradient = gradient.new_tensor([float(parameter.grad is not None)])
            dist.all_reduce(has_gradient, group=group)
            if has_gradient.item() > 0:
                self._share([gradient], group)
                parameter.grad = gradient
        if not last:
            return None
        total = torch.stack([loss.detach() for loss in self.schedule.losses.values()]).sum()
        self._share([total], self.replicas)
        return float(total)

    def _share(self, sums: list[torch.Tensor], group: object) -> None:
        """Adds up tensors among the processes of a group, each dtype by itself, and divides sums into means, in place."""
        for dtype in dict.fromkeys(t.dtype for t in sums if group is not None):
            same_dtype = [t for t in sums if t.dtype == dtype]
            together = torch.cat([t.reshape(-1) for t in same_dtype])
            dist.all_reduce(together, group=group)
            for tensor, values in zip(same_dtype, together.split([t.numel() for t in same_dtype]), strict=True):
                tensor.copy_(values.view(tensor.shape))
        for tensor in sums:
            if self.mean and self.count > 1:
                tensor.div_(self.count)

    def _divisors(self, targets: Sequence[Sequence[torch.Tensor]]) -> list[Replacements]:
        """Returns the divisors of the means in the loss of each micro-batch, from the targets of each."""

        def divisors(shapes: Sequence[Sequence[object]], micro_targets: Sequence[torch.Tensor]) -> Divisors:
            cpu_targets = [t.cpu() for t in micro_targets]
            return loss_divisors(
                lambda outputs: self.loss(rebuild_output(self.template, outputs), *cpu_targets), shapes
            )

        batch = [torch.cat(tuple(micro_tensors)) for micro_tensors in zip(*targets, strict=True)]
        sends = self.sends[max(self.sends)]
        tables = replacements(
            divisors(self.batch_shapes, batch), [divisors(sends, micro_targets) for micro_targets in targets]
        )
        if tables is None:
            raise ValueError("the loss of a micro-batch has other means than that of the batch")
        return tables

    def _loss(self, outputs: torch.Tensor | tuple[torch.Tensor, ...], targets: Sequence[torch.Tensor]) -> torch.Tensor:
        output_tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        forward = self.unit_runs.pop()  # the loss belongs to the forward unit of the outputs
        with dividing(self.divisors[forward.micro_batch]):
            loss = self.loss(rebuild_output(self.template, output_tensors), *targets)
        self.unit_runs.append(forward._replace(end=self.read_clock()))
        return loss

    def read_clock(self) -> float:
        """Returns seconds of the machine's monotonic clock. While units are observed, the GPU's work is finished first."""
        if self.observed and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class _Runtime(_PipelineScheduleRuntime):
    """torch's runtime, for processes that may run only some of the micro-batches. Losses are stored by micro-batch."""

    def __init__(self, stages: list[PipelineStage], *args: object, **options: object):
        super().__init__(stages, *args, **options)
        self.losses: dict[int, torch.Tensor] = {}

    def _warmup_p2p(self, stages: list[PipelineStage], has_backward: bool, p2p_done: bool) -> None:
        """Shapes and types are given, so neighbours need not ask each other."""
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    def _maybe_compute_loss(
        self, stage: PipelineStage, output: object, target_mbs: Any, mb_index: int, loss_kwargs: object = None
    ) -> None:
        if stage.is_last:
            self.losses[mb_index] = self._compute_loss(output, target_mbs[mb_index], loss_kwargs)

    def _maybe_get_loss(self, stage: PipelineStage, mb_index: int) -> torch.Tensor | None:
        return self.losses[mb_index] if stage.is_last else None


class _Stage(PipelineStage):
    """A stage that records when its units start and end, and whose neighbours may have replicas."""

    pipeline: Pipeline

    def __init__(
        self,
        module: nn.Module,
        index: int,
        stage_ranks: Sequence[Sequence[int]],
        device: torch.device,
        receives: object,
        sends: object,
    ):
        # torch rejects more processes than stages, and assigns stages to processes itself.
        max_stages = max(len(stage_ranks), dist.get_world_size())
        super().__init__(module, index, max_stages, device, input_args=receives, output_args=sends)
        self.num_stages, self.stage_ranks, self.micro_batch = len(stage_ranks), stage_ranks, 0

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        ranks = self.stage_ranks[stage_idx]
        return ranks[self.micro_batch % len(ranks)]

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[object]:
        self.micro_batch = fwd_chunk_id
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[object]:
        self.micro_batch = bwd_chunk_id
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[object]:
        self.micro_batch = fwd_chunk_id
        return super().get_fwd_send_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[object]:
        self.micro_batch = bwd_chunk_id
        return super().get_bwd_send_ops(bwd_chunk_id)

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: Args, kwargs: Any = None, save_forward_output: bool = True
    ) -> Any:
        stage_inputs = {name: kwargs[name] for name in self.submod.inputs}  # type: ignore[union-attr]
        return self._run_unit(
            "F", fwd_chunk_id, super().forward_one_chunk, fwd_chunk_id, args, stage_inputs, save_forward_output
        )

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: object = None, full_backward: bool = True, last_backward: bool = False
    ) -> object:
        run = super().backward_one_chunk

        def backward() -> None:
            run(bwd_chunk_id, loss, full_backward, last_backward)
            gradients = self.bwd_cache.get(bwd_chunk_id, ())
            self.bwd_cache[bwd_chunk_id] = tuple(None if g is None else g.contiguous() for g in gradients)

        return self._run_unit("B", bwd_chunk_id, backward)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if backward_type == "weight":
            groups = joined_groups(bwd_kwargs["param_groups"])
            # The path from several nodes leads through nodes of other groups, which must not be freed yet.
            retain_graph = any(len(group["intermediates"]) > 1 for group in groups)
            return stage_backward_weight(self.submod.parameters(), groups, retain_graph=retain_graph), None
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> object:
        return self._run_unit("W", bwd_chunk_id, super().backward_weight_one_chunk, bwd_chunk_id, last_backward)

    def _run_unit(self, kind: str, k: int, run: Callable[..., object], *args: object) -> object:
        start = self.pipeline.read_clock()
        result = run(*args)
        end = self.pipeline.read_clock()
        self.pipeline.unit_runs.append(UnitRun(self.stage_index, kind, k, start, end))
        return result


def joined_groups(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins those of torch's groups that share parameters or nodes of the graph. Nodes that no gradient has reached are dropped.

    If groups overlap (a weight used in two places, branches that do not read what the stage receives), torch may keep them
    apart and count a gradient twice.

    >>> groups = [{"params": {1}, "intermediates": ["a"], "grads": [5]}, {"params": {2}, "intermediates": ["b"], "grads": [6]}]
    >>> both = {"params": {3}, "intermediates": ["b", "a"], "grads": [6, 5]}
    >>> joined_groups([*groups, both])
    [{'params': {1, 2, 3}, 'intermediates': ['b', 'a'], 'grads': [6, 5]}]
    """
    separate_groups: list[tuple[set[Any], dict[Any, Any]]] = []
    for group in groups:
        pairs = zip(group["intermediates"], group.get("grads") or (), strict=False)
        params, grads = set(group["params"]), {node: grad for node, grad in pairs if grad is not None}
        separate = []
        for other_params, other_grads in separate_groups:
            if params & other_params or grads.keys() & other_grads.keys():
                params, grads = params | other_params, {**other_grads, **grads}
            else:
                separate.append((other_params, other_grads))
        separate_groups = [*separate, (params, grads)]
    return [{"params": p, "intermediates": list(g), "grads": list(g.values())} for p, g in separate_groups if g]


class _Sending(nn.Module):
    """A stage whose outputs are ready to be sent: contiguous, and safe for torch to detach afterwards."""

    def __init__(self, module: nn.Module, inputs: Sequence[str]):
        super().__init__()
        self.module, self.inputs = module, tuple(inputs)

    def forward(self, *activations: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_DetachedCopy.apply(tensor.contiguous()) for tensor in self.module(*activations, **inputs))


class _DetachedCopy(torch.autograd.Function):
    """The same data with an autograd node of its own.

    torch detaches what a stage has sent in place. This must not reach tensors that the stage itself has saved, and cannot be
    done to views.
    """

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class StageBase(nn.Module):
    """A module with the attributes of another. Stages that are written as classes get the model's layers from it."""

    def __init__(self, source: nn.Module):
        super().__init__()
        for kind in ("_modules", "_parameters", "_buffers"):
            getattr(self, kind).update(getattr(source, kind))


def select_layers(model: nn.Module, names: Sequence[str], constants: Mapping[str, torch.Tensor]) -> nn.Module:
    """Returns the layers, parameters and buffers with those names, nested as in the model; shared, not copied.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> [name for name, _ in select_layers(model, ["1"], {}).named_parameters()]
    ['1.weight', '1.bias']
    """
    root = nn.Module()
    for name in names:
        target, source = root, model
        *outer, last = name.split(".")
        for step in outer:
            if step not in target._modules:
                target.add_module(step, nn.Module())
            target, source = target._modules[step], source._modules[step]  # type: ignore[assignment]
        if name in constants:
            root.register_buffer(name, constants[name])
        else:
            kind = next(k for k in ("_modules", "_parameters", "_buffers") if last in getattr(source, k))
            getattr(target, kind)[last] = getattr(source, kind)[last]
    return root


class Output(dict):  # type: ignore[type-arg]
    """Named outputs, read by name, attribute or position, as those of transformers are."""

    def __getattr__(self, name: str) -> object:
        if name in self:
            return super().__getitem__(name)
        raise AttributeError(f"the output of the pipeline has no {name!r}; it has {', '.join(map(str, self))}")

    def __getitem__(self, key: object) -> object:
        return self.to_tuple()[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def to_tuple(self) -> tuple[object, ...]:
        """Returns the outputs in their order, those that are None left out."""
        return tuple(value for value in self.values() if value is not None)


def rebuild_output(template: object, tensors: Sequence[torch.Tensor]) -> object:
    """Returns the output that `template` describes: `{"slot": i}` is tensor i, `{"is": kind, "of": entries}` is a container.

    >>> output = rebuild_output({"is": "output", "of": [["loss", {"slot": 1}], ["logits", {"slot": 0}]]}, ["a", "b"])
    >>> output.loss, output["logits"], output[0], output[:2]
    ('b', 'a', 'b', ('b', 'a'))
    """
    if not isinstance(template, dict):
        return template
    if "slot" in template:
        return tensors[template["slot"]]
    if template["is"] in ("dict", "output"):
        items = {key: rebuild_output(entry, tensors) for key, entry in template["of"]}
        return items if template["is"] == "dict" else Output(items)
    entries = [rebuild_output(entry, tensors) for entry in template["of"]]
    return tuple(entries) if template["is"] == "tuple" else entries


def _meta(shape: Sequence[int], dtype: str, grad: bool) -> torch.Tensor:
    placeholder = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="meta")
    return placeholder.requires_grad_(grad)
