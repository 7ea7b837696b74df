"""`bl.torch.profile(..., layout=)`: the graph of one rank of a model whose operators are divided over ranks.

PyTorch divides the model itself: `torch.distributed.tensor.parallel.parallelize_module` on a device mesh of a fake process group
turns parameters into `DTensor`, and one step on meta tensors shows what the first rank computes and which collectives it starts.
So what is simulated is what PyTorch would run. The plan of a model names the layers that are divided by columns and by rows:
that of its Hugging Face configuration (`tp_plan`), or one by the names that layers of GPT, BERT, OPT and Llama kinds have.
`sequence_parallel` divides norms and residual sums along the sequence, as in torchtitan's plan of Llama. Mixtures of experts of
Mixtral's kind get their tokens evenly (`rank_experts`), and are divided over `ep` of the `dp` ranks.

A collective is an op of type `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`; `graph.info["collectives"]` has its
axis and bytes. Its duration is that of `Collectives` on devices of the hardware behind its fastest link. Data parallelism is
the pass `passes.data_parallel`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import BaechiLabError, InvalidInput, in_short
from ...graph import Cluster, Link, OpGraph
from ...graph.collectives import Collectives
from ...graph.hardware import Hardware
from ...graph.layout import Layout
from ...graph.link import PCIE
from ...passes.data_parallel import Bucket, divide_data
from ...torch_runtime.storage import storage_key
from ...torch_runtime.tree import Args, Kwargs, as_arguments, map_tensors, tensors
from ...torch_steps.records import UPDATE
from ...torch_steps.step import TorchStep
from ..precision import Precision
from .fake_tensors import types_of_estimate
from .layer_estimate import EstimateOptions
from .layers import LossOf, mode_of, run_once
from .operator_counter import is_model_operator
from .operators import Recorder, add_updates, make_operator_graph
from .rank_experts import RankExperts

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.distributed.tensor.parallel import ParallelStyle

PER_MACHINE = 8
"""Devices of a machine, for links between ranks."""

COLLECTIVE_TYPES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
"""PyTorch's functional collectives -> op types."""

COLUMNS = "colwise"
ROWS = "rowwise"
_BY_NAME = {
    COLUMNS: r"(q_proj|k_proj|v_proj|query|key|value|gate_proj|up_proj|fc1|c_fc|c_attn|intermediate\.dense|dense_h_to_4h)$",
    ROWS: r"(o_proj|out_proj|down_proj|fc2|c_proj|attention\.output\.dense|output\.dense|dense_4h_to_h)$",
}
"""Layers of blocks by name: divided by columns and by rows."""

_UNDIVIDED = (
    r"(pooler|classifier|score|router|gate|lm_head|embed_out|seq_relationship|decoder|transform\.dense|predictions.*)$"
)
"""Linear layers that a plan may leave whole: those at the end of a model, and routers."""

Plan = Mapping[str, str]
"""Pattern of module names (`*` is a number) -> how the layer is divided, in the words of `tp_plan`."""


def profile_divided(
    model: nn.Module,
    sample_inputs: object,
    kinds: Mapping[str, Hardware],
    layout: Layout,
    options: EstimateOptions,
    plan: Plan | None = None,
    step: TorchStep | None = None,
) -> OpGraph:
    """Builds the graph of one rank of a layout; arguments as in `bl.torch.profile`. `step` provides the loss and its targets.

    Raises:
        InvalidInput: a layout with a pipeline, context parallelism or recomputation; degrees that do not divide; a layer that
            the plan lacks, by name; a process group that this process has initialised.
    """
    if not isinstance(layout, Layout):
        raise InvalidInput(f"layout is {in_short(layout)}; it must be a bl.Layout")
    for axis in ("pp", "cp"):
        if getattr(layout, axis) > 1:
            raise InvalidInput(
                f"{axis} of layout is {getattr(layout, axis)}; bl.torch.profile divides operators over tp, experts over ep and "
                "gradients over dp, so it must be 1 (bl.layouts simulates the others)"
            )
    if layout.recompute != "none":
        raise InvalidInput(
            f"recompute of layout is {layout.recompute!r}; bl.torch.profile runs the model's own checkpoints, so it must be "
            "'none' (bl.layouts simulates the others)"
        )
    if options.autocast is not None:
        raise InvalidInput("autocast is given and layout too; give precision or dtype in its place")
    training, precision, states = mode_of(model, options.mode), options.precision, options.states
    types = types_of_estimate(precision, options.dtype, None)
    rank_model = copy.deepcopy(model).to("meta").train(training)
    if types["dtype"] is not None:
        rank_model = rank_model.to(types["dtype"])
    args, kwargs = as_arguments(sample_inputs, model)
    args, kwargs = map_tensors((args, kwargs), lambda t: _on_meta(t, types["dtype"]))
    if step is not None:
        step = replace(step, targets=tuple(_on_meta(t, types["dtype"]) for t in step.targets))
    recorder = RankRecorder()
    with ExitStack() as stack:
        mixtures = [name for name, module in rank_model.named_modules() if _is_mixture(module)]
        if layout.ep > 1 and not mixtures:
            raise InvalidInput(f"ep of layout is {layout.ep} and {type(model).__name__} has no experts; it must be 1")
        if layout.tp > 1 or layout.ep > 1:
            stack.enter_context(fake_ranks(layout.tp * layout.ep))
            recorder.axes = _divide(rank_model, layout, plan, mixtures)
            tokens = kwargs.get("input_ids")
            if layout.sequence_parallel and isinstance(tokens, torch.Tensor) and "position_ids" not in kwargs:
                # A model would take the positions from its share of the sequence.
                positions = torch.empty((1, tokens.shape[1]), dtype=torch.int64, device="meta")
                kwargs = {**kwargs, "position_ids": positions}
        else:
            _replace_experts(rank_model, layout, mixtures, {})
        recorder.experts = frozenset(mixtures)
        recorder.register_states(rank_model)
        for name, module in rank_model.named_modules():
            recorder.watch(name, module)
        recorder.recording = True
        with _RankMode(recorder):
            try:
                run_once(rank_model, args, kwargs, training, keep=True, loss=recorder.record_loss(step))
            except BaechiLabError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                raise InvalidInput(f"{type(model).__name__} does not run divided by {layout!r}: {error}") from error
        recorder.recording = False
    if options.optimizer is not None:
        add_updates(recorder, precision.update_share(states))
    name = type(model).__name__.lower()
    graph = make_operator_graph(recorder, kinds, states, name, precision)
    columns = {kind: us.copy() for kind, us in graph.duration_by_kind.items()}
    for kind, hardware in kinds.items():
        collectives = Collectives(_rank_cluster(hardware, layout.tp * layout.ep))
        for op, (collective, axis, size) in recorder.messages.items():
            columns[kind][op] = collectives.us(collective, size, layout.axis_devices(axis))
    descriptions = {graph.names[op]: {"axis": axis, "bytes": size} for op, (_, axis, size) in recorder.messages.items()}
    info = {**graph.info, "layout": repr(layout), "collectives": descriptions}
    temporary = graph.temp_bytes.copy()
    # The workspace of products, which every other operator has: a collective may run beside one of them.
    temporary[list(recorder.messages)] -= max(hardware.workspace_bytes for hardware in kinds.values())
    graph = graph.replace(
        duration_us=next(iter(columns.values())), duration_by_kind=columns, temp_bytes=temporary, info=info
    )
    return _divide_gradients(graph, recorder, states, kinds, layout, precision)


def _on_meta(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return torch.empty_like(tensor, device="meta", dtype=kind)


@contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """Makes a process group of `count` ranks, of which this process is the first and the others do not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise InvalidInput(
            "this process has initialised torch.distributed; profile with layout= in a process that has not"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


# -- dividing the model -------------------------------------------------------------------------------------------------


def _replace_experts(model: nn.Module, layout: Layout, mixtures: Sequence[str], axes: Mapping[str, str]) -> None:
    """Puts a rank's share of its experts in the place of every mixture; `axes` has the axis of every process group."""
    groups = {axis: group for group, axis in axes.items()}
    for name in mixtures:
        experts = RankExperts(
            name,
            model.get_submodule(name),
            layout.tp,
            layout.ep,
            groups["tp"] if layout.tp > 1 else "",
            groups["ep"] if layout.ep > 1 else "",
        )
        model.set_submodule(name, experts)


def _divide(model: nn.Module, layout: Layout, plan: Plan | None, mixtures: Sequence[str]) -> dict[str, str]:
    """Divides the layers of a model over `tp` ranks, in place, and its mixtures over `ep` ranks too.

    Returns the axis of every process group by name.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleOutput, parallelize_module

    if mixtures and layout.sequence_parallel:
        raise InvalidInput(
            f"sequence_parallel of layout is True and {type(model).__name__} has experts; bl.torch.profile divides them "
            "without it (bl.layouts simulates both)"
        )
    rank_mesh = init_device_mesh("cpu", (layout.ep, layout.tp), mesh_dim_names=("ep", "tp"))
    mesh = rank_mesh["tp"]
    axes = {rank_mesh.get_group(axis).group_name: axis for axis in ("ep", "tp")}
    _replace_experts(model, layout, mixtures, axes)
    if layout.tp == 1:
        return axes
    # GPT-2's transposed layers become linear ones, and the size by which it splits their output is divided.
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "Conv1D" and hasattr(child, "nf"):
                inputs, outputs = child.weight.shape
                linear = nn.Linear(inputs, outputs, device="meta", dtype=child.weight.dtype)
                setattr(module, name, linear)
                if isinstance(getattr(module, "split_size", None), int) and name == "c_attn":
                    module.split_size = module.split_size // layout.tp
    kinds = make_plan(model, layout, plan)
    styles = {name: _style(kind, layout.sequence_parallel) for name, kind in kinds.items()}
    if layout.sequence_parallel:
        styles |= _sequence_styles(model, styles, kinds)
    parallelize_module(model, mesh, styles)
    if layout.sequence_parallel:
        last_norms = [name for name, _ in model.named_modules() if re.search(_LAST_NORM, name)]
        gather_output = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
        parallelize_module(model, mesh, dict.fromkeys(last_norms, gather_output))
    return axes


def make_plan(model: nn.Module, layout: Layout, plan: Plan | None = None) -> dict[str, str]:
    """Returns how each linear layer and embedding is divided: the user's plan, that of the model, or by the layers' names.

    Raises:
        InvalidInput: a linear layer of a block that no plan names; sizes that `tp` does not divide.
    """
    rules = plan if plan is not None else getattr(model, "_tp_plan", None) or {}
    patterns = [(re.compile("^" + re.escape(k).replace(r"\*", r"\d+") + "$"), kind) for k, kind in rules.items()]
    plan_of_layers: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            continue
        kind = next((kind for pattern, kind in patterns if pattern.match(name)), None)
        if kind is None and plan is None:
            kind = next((kind for kind, pattern in _BY_NAME.items() if re.search(pattern, name)), None)
            kind = kind if isinstance(module, nn.Linear) else _embedding_kind(name, model)
        if kind is None:
            if isinstance(module, nn.Linear) and not re.search(_UNDIVIDED, name):
                raise InvalidInput(
                    f"the plan of {type(model).__name__} lacks layer {name!r}; give bl.torch.profile a plan= "
                    f"that names it, such as "
                    f"{{{name!r}: 'colwise'}}"
                )
            continue
        size = int(module.weight.shape[1 if kind.startswith(ROWS) and isinstance(module, nn.Linear) else 0])
        if size % layout.tp and not isinstance(module, nn.Embedding) and "gather" not in kind and "rep" not in kind:
            raise InvalidInput(
                f"tp is {layout.tp}; it must divide layer {name!r}, which has {size} {'inputs' if kind == ROWS else 'outputs'}"
            )
        plan_of_layers[name] = kind
    if not plan_of_layers:
        raise InvalidInput(
            f"the plan of {type(model).__name__} names none of its layers; tp must be 1, or give a plan="
        )
    config = getattr(model, "config", None)
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, key, None)
        if isinstance(heads, int) and heads % layout.tp:
            raise InvalidInput(f"tp is {layout.tp}; it must divide the model's {key}, which is {heads}")
    return plan_of_layers


def _is_mixture(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Experts") and any(p.dim() == 3 for p in module.parameters(recurse=False))


def _embedding_kind(name: str, model: nn.Module) -> str | None:
    """Divides the table of the tokens along the vocabulary; tables of positions and kinds stay whole."""
    tokens = getattr(model, "get_input_embeddings", lambda: None)()
    return "embedding_rowwise" if tokens is not None and model.get_submodule(name) is tokens else None


def _style(kind: str, sequence: bool) -> ParallelStyle:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    gathers_output = "gather_output" in kind or kind.endswith("_rep")
    if kind.startswith("embedding"):
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1) if sequence else Replicate())
    if kind.startswith((COLUMNS, "local_" + COLUMNS)):
        if gathers_output:
            return ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate())
        return ColwiseParallel()
    if kind.startswith((ROWS, "local_" + ROWS)):
        return RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    raise InvalidInput(
        f"plan has {in_short(kind, 40)}; it must be 'colwise', 'rowwise', 'colwise_gather_output' or 'embedding_rowwise'"
    )


_GATHERING = {r"(^|\.)self_attn$": "kwarg", r"(^|\.)(attn|attention\.self|mlp)$": "argument"}
"""Parts of blocks by name, which gather the sequence: how they take it, as the keyword `hidden_states` or first argument."""

_LOGITS = r"(^|\.)predictions\.decoder$"
"""Whole output layers by name, which gather the sequence."""

_JOINED_TOKENS = r"(^|\.)decoder\.layers\.\d+\.(fc[12]|final_layer_norm)$"
"""Layers by name (OPT) whose inputs have batch and sequence joined into one dimension."""

_LAST_NORM = r"(^|\.)(ln_f|decoder\.final_layer_norm)$"
"""Norms behind the last block of models that give what follows the shape of the whole sequence: there it is gathered."""


def _token_dimension(name: str) -> int:
    """Returns the dimension of a layer's input that sequence parallelism divides."""
    return 0 if re.search(_JOINED_TOKENS, name) else 1


def _sequence_styles(
    model: nn.Module, styles: Mapping[str, ParallelStyle], plan: Mapping[str, str]
) -> dict[str, ParallelStyle]:
    """Norms work on a share of the sequence, and whole tables of positions give one; what follows gathers it."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
    )

    first = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    keyword = {
        "input_kwarg_layouts": {"hidden_states": Shard(1)},
        "desired_input_kwarg_layouts": {"hidden_states": Replicate()},
    }
    extra: dict[str, ParallelStyle] = {}
    gathering: list[str] = []
    for name, module in model.named_modules():
        is_norm = isinstance(module, nn.LayerNorm) or "norm" in name.rsplit(".", 1)[-1].lower()
        passed_as = next((kind for pattern, kind in _GATHERING.items() if re.search(pattern, name)), "")
        if is_norm and not list(module.children()) and list(module.parameters()):
            extra[name] = SequenceParallel(sequence_dim=_token_dimension(name), use_local_output=True)
        elif isinstance(module, nn.Embedding) and name not in styles:
            extra[name] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        elif passed_as and any(key.startswith(f"{name}.") for key in styles):
            gathering.append(f"{name}.")
            extra[name] = PrepareModuleInput(**(keyword if passed_as == "kwarg" else first))
        elif re.search(_LOGITS, name) and name not in styles:
            extra[name] = PrepareModuleInput(**first, use_local_output=True)
        elif plan.get(name) == COLUMNS and not name.startswith(tuple(gathering)):
            extra[name] = ColwiseParallel(input_layouts=Shard(_token_dimension(name)))
        elif plan.get(name) == ROWS and _token_dimension(name) == 0:
            extra[name] = RowwiseParallel(output_layouts=Shard(0))
    return extra


# -- recording one rank -------------------------------------------------------------------------------------------------


class RankRecorder(Recorder):
    """Records the operators and collectives of one rank; ops are named after the module that was running."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[str] = []
        self.module_of_op: list[str] = []
        self.messages: dict[int, tuple[str, str, int]] = {}  # type, axis and bytes of a collective
        self.axes: dict[str, str] = {}
        self.experts: frozenset[str] = frozenset()
        self.alive: list[torch.Tensor] = []  # type: ignore[assignment]

    def watch(self, name: str, module: nn.Module) -> None:
        """Names ops after `module` while it runs."""

        def leave(*_: object) -> None:
            self.modules.pop()

        module.register_forward_pre_hook(lambda *_: self.modules.append(name), prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def record_loss(self, step: TorchStep | None) -> LossOf | None:
        """Returns the loss of a step, whose operators are named as those of a module `loss`."""
        if step is None:
            return None

        def loss_of(outputs: object) -> torch.Tensor:
            self.modules.append("loss")
            loss = step.loss_of(outputs)
            self.modules.pop()
            return loss

        return loss_of

    def record(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        self.alive += [*tensors((args, kwargs)), *tensors(out)]  # keys of memory are unique while it lives
        kind = func.overloadpacket.__name__
        if "c10d" in func.namespace:
            if kind not in COLLECTIVE_TYPES:
                # A wait, or a wrapper of a collective's result: the same tensor.
                source = next((storage_key(t) for t in tensors((args, kwargs))), None)
                for tensor in tensors(out):
                    if source in self.memory:
                        self.memory.setdefault(storage_key(tensor), self.memory[source])
                return
            inputs, outputs = (sum(t.nbytes for t in tensors(x)) for x in ((args, kwargs), out))
            index = len(self.ops)
            self._record(func, args, kwargs, out)
            if len(self.ops) > index:
                self.ops[index].op_type = COLLECTIVE_TYPES[kind]
                axis = next((self.axes[a] for a in args if isinstance(a, str) and a in self.axes), "tp")
                self.messages[index] = COLLECTIVE_TYPES[kind], axis, max(inputs, outputs)
        elif is_model_operator(func):
            self._record(func, args, kwargs, out)

    def _name(self, kind: str) -> str:
        node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        forward = self._forward_op(node)
        backward = node is not None
        module = self.module_of_op[forward] if forward >= 0 else (self.modules[-1] if self.modules else "")
        self.module_of_op.append(module)
        scope = f"{module}/backward/" if backward else f"{module}/" if module else ""
        name = f"{scope.lstrip('/')}{kind}"
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return f"{name}#{count}" if count else name


_ITEM = torch.ops.aten._local_scalar_dense.default


class _RankMode(TorchDispatchMode):
    """Sees what runs on the rank's own tensors, below `DTensor`."""

    def __init__(self, recorder: RankRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # DTensor runs it on local tensors, which come back here
        if func is _ITEM and args[0].is_meta:
            # Attention masks hold no padding, but a number could be any.
            if args[0].dtype is torch.bool:
                return True
            raise InvalidInput(
                "the model reads values of its tensors; with layout= it must decide by their shapes alone"
            )
        out = func(*args, **(kwargs or {}))
        shapes_only = any(type(t).__name__ == "FakeTensor" for t in (*tensors((args, kwargs)), *tensors(out)))
        if not shapes_only:  # DTensor asks for shapes of whole tensors on fake ones
            self.recorder.record(func, args, kwargs or {}, out)
        return out


# -- costs ---------------------------------------------------------------------------------------------------------------


def _rank_cluster(hardware: Hardware, devices: int) -> Cluster:
    link: Link | str = hardware.links[0] if hardware.links else PCIE
    if devices <= PER_MACHINE:
        return Cluster.uniform(devices, kind=hardware.name, link=link)
    return Cluster.machines(devices, PER_MACHINE, kind=hardware.name, link=link)


def _divide_gradients(
    graph: OpGraph,
    recorder: RankRecorder,
    states: int,
    kinds: Mapping[str, Hardware],
    layout: Layout,
    precision: Precision,
) -> OpGraph:
    """Adds what data parallelism exchanges, one bucket per parameter."""
    if layout.dp == 1 or not recorder.gradients:
        return graph
    if not any(op.op_type == UPDATE for op in recorder.ops):
        raise InvalidInput(
            f"dp of layout is {layout.dp} and optimizer is not given; name it, as what is exchanged depends on it"
        )
    hardware = next(iter(kinds.values()))
    collectives = Collectives(_rank_cluster(hardware, layout.devices))
    buckets = []
    shared_bytes: list[
        tuple[int, int, int]
    ] = []  # ops, bytes that ZeRO divides, and the ranks that it divides them over
    for name, gradient in sorted(recorder.gradients.items(), key=lambda entry: recorder.users[entry[0]][0]):
        users = recorder.users[name]
        gradient_bytes = gradient.size * precision.gradient_share
        readers = [op for op in users[:-1] if recorder.ops[op].forward_of >= 0]
        producer = gradient.maker if gradient.maker >= 0 else users[0]
        backward = tuple(dict.fromkeys([*(op for op in readers if op != producer), producer]))
        # Of the `dp` ranks, `dp / ep` hold a parameter of experts.
        copies = layout.dp // layout.ep if name.rpartition(".")[0] in recorder.experts else layout.dp
        axis = "dp+cp" if copies == layout.dp else "edp"
        size = recorder.size[name]
        if layout.zero >= 1:
            shared_bytes.append((users[-1], size * precision.state_share(states), copies))
        if layout.zero >= 2:
            shared_bytes.append((producer, gradient_bytes, copies))
        buckets.append(Bucket(f"{name}/data", users[0], backward, users[-1], size, gradient_bytes, 0, 0, copies, axis))
    divided_graph = divide_data(
        graph,
        buckets,
        lambda kind, axis, nbytes: collectives.us(kind, nbytes, layout.axis_devices(axis)),
        zero=layout.zero,
    )
    persistent = divided_graph.persistent_bytes.copy()  # parameters are divided by the pass
    for op, nbytes, copies in shared_bytes:
        persistent[op] -= nbytes - -(-nbytes // copies)
    return divided_graph.replace(persistent_bytes=persistent)
