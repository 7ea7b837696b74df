"""Ops, collectives and saved bytes of one rank for one micro-batch of a transformer's parts: embedding, blocks, output layer.

Shapes are the rank's. Tensor parallelism divides heads, the inner width of the feed-forward part and the vocabulary (M. Shoeybi
et al., "Megatron-LM", 2019, arXiv:1909.08053). Sequence parallelism divides the remaining tensors along the sequence, and
selective recomputation drops attention's scores (V. Korthikanti et al., 2022, arXiv:2205.05198). Experts are spread over `ep`;
an all-to-all sends tokens to them. Context parallelism passes keys and values around a ring, and in the backward pass also
their gradients (H. Liu et al., "Ring Attention", 2023, arXiv:2310.01889). Each device has an early and a late piece of the
sequence, so that causal attention has equal work in all rounds. Attention with stored scores gathers keys and values instead.

Forward ops are listed by hand. Backward ops follow from them: a product has a gradient of its input and one of its weight, of
the same work; element-wise ops move `backward_elements`; a collective has its dual. No op of the block waits for the gradient
of a weight, so it may run beside collectives of the backward pass (`kernel_times.part_times`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..graph.layout import Layout
from ..profilers.work import Kernel, Product
from .transformer import Transformer

HALF, FULL = 2, 4
"""Bytes of an element in half and in single precision."""

FORWARD, INPUT, WEIGHT = "F", "B", "W"
"""Phases: forward pass, gradients of inputs, gradients of weights."""

DUALS = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_to_all": "all_to_all"}
"""Collectives of the forward pass, and the collective of the gradient for each."""

SOFTMAX_MULTIPLE, LONGEST_SOFTMAX = 4, 16384
"""Megatron-LM has a softmax in one kernel for at most 16384 keys, if the tokens of a sequence, and the heads of a rank in all
sequences of a micro-batch, are multiples of 4."""

LOSS_PASSES = {False: 14.0, True: 5.0}
"""Number of times that the cross entropy reads or writes float32 logits in memory, as separate kernels and fused.

Both are set by hand, neither is fitted. For comparison, Megatron-LM's separate kernels make 13 such passes: half a pass for
half-precision numbers, one each for the maximum and the sum, and two for every kernel that reads and writes (conversion to
float32 1.5, difference 2, exponential 2, quotient 2; backward: product 2, conversion to half precision 1.5)."""


@dataclass(frozen=True)
class RankOp:
    """One kernel or collective of a rank.

    Args:
        name, op_type: name and type of the op in a graph; the type of a collective is its name.
        phase: `FORWARD`, `INPUT` or `WEIGHT`.
        kernel: the work of the kernel; empty for a collective.
        axis: for a collective, the axis of the layout whose devices take part.
        message_bytes: for a collective, the bytes of the whole tensor, before a reduction or after a gathering.
        is_awaited: whether the next op of its chain waits for it.
    """

    name: str
    op_type: str
    phase: str = FORWARD
    kernel: Kernel = field(default_factory=Kernel)
    axis: str = ""
    message_bytes: int = 0
    is_awaited: bool = True


@dataclass(frozen=True)
class Part:
    """An embedding, a block or an output layer on one rank: its ops for one micro-batch, and its bytes.

    Args:
        name: "embedding", "block" or "head".
        forward, backward: ops in the order in which a rank starts them.
        parameters: parameters on this rank, without those of experts.
        expert_parameters: parameters of experts on this rank; data parallelism divides them over fewer devices.
        saved_bytes: activations that the backward pass reads, without those that are computed again.
        input_bytes: the activation that the part reads.
        output_bytes: the activation that the next part reads.
        transient_bytes: the highest level of other bytes of the forward and the backward pass, on top of `saved_bytes`.
        attention_bytes: the part of `saved_bytes` that selective recomputation drops.
    """

    name: str
    forward: tuple[RankOp, ...]
    backward: tuple[RankOp, ...]
    parameters: int
    expert_parameters: int
    saved_bytes: int
    input_bytes: int
    output_bytes: int
    transient_bytes: int
    attention_bytes: int = 0


@dataclass(frozen=True)
class Storage:
    """Storage of numbers, and kernels of attention and loss.

    Args:
        flash_attention: whether attention is one kernel that stores no scores.
        torch_softmax: whether a softmax that is not one kernel is PyTorch's, which reads half precision and writes float32, or
            Megatron-LM's, all of whose steps are in float32.
        fused_loss: whether cross entropy is one kernel that keeps half-precision logits.
        gradient_bytes: bytes of a parameter's gradient between micro-batches: 2, or 4 if they are added up in float32.
        reduced_bytes: bytes of a parameter's gradient while data parallelism reduces it; None: `gradient_bytes`.
        state_bytes: bytes of a parameter's optimizer states, including its float32 copy.
        extra_gradient_bytes: bytes of a second copy of a parameter's gradient besides the reduced one.
        products: "fp16" (bfloat16 as well) or "fp8": the operands of linear layers inside blocks.
    """

    flash_attention: bool = True
    torch_softmax: bool = False
    fused_loss: bool = False
    gradient_bytes: int = 4
    reduced_bytes: int | None = None
    state_bytes: int = 12
    extra_gradient_bytes: int = 0
    products: str = "fp16"


class _PartWriter:
    """Collects the forward ops of a part, and makes its backward ops."""

    def __init__(self, name: str, layout: Layout, tokens: int, hidden: int, products: str = "fp16") -> None:
        self.name, self.layout, self.products = name, layout, products
        self.tokens, self.hidden = tokens, hidden
        self.rows: list[tuple[RankOp, tuple[RankOp, ...]]] = []
        self.parameters = self.expert_parameters = 0
        self.saved_bytes = 0
        self.attention_saved = 0

    def product(
        self,
        label: str,
        rows: int,
        depth: int,
        columns: int,
        *,
        batch: int = 1,
        saved_bytes: int | None = None,
        bias: bool = False,
        expert: bool = False,
        weights: bool = True,
    ) -> None:
        """Adds a linear layer: `batch` products of rows x depth by depth x columns.

        Its input is saved unless `saved_bytes` says less.

        With `weights=False` its parameters are counted elsewhere, such as those of a table that the embedding also has.
        """
        parameters = (batch * depth * columns + bias * columns) * weights
        if expert:
            self.expert_parameters += parameters
        else:
            self.parameters += parameters
        self.saved_bytes += HALF * batch * rows * depth if saved_bytes is None else saved_bytes
        forward = _product(f"{self.name}/{label}", FORWARD, batch, rows, columns, depth, precision=self.products)
        data = _product(f"{self.name}/{label}/backward", INPUT, batch, rows, depth, columns, precision=self.products)
        weight = _product(f"{self.name}/{label}/weight", WEIGHT, batch, depth, columns, rows, FULL, self.products)
        self.rows.append((forward, (data, weight)))

    def scores(self, label: str, batch: int, rows: int, columns: int, depth: int) -> None:
        """Adds a product of two activations, such as queries and keys, which both have gradients."""
        forward = _product(f"{self.name}/{label}", FORWARD, batch, rows, columns, depth)
        first = _product(f"{self.name}/{label}/backward", INPUT, batch, rows, depth, columns)
        second = _product(f"{self.name}/{label}/backward2", INPUT, batch, columns, depth, rows)
        self.rows.append((forward, (first, second)))

    def move(self, label: str, elements: float, backward_elements: float | None = None, saved_bytes: int = 0) -> None:
        """Adds an element-wise op or a normalisation, which moves `elements` half-precision numbers."""
        self.saved_bytes += saved_bytes
        moved_elements = elements if backward_elements is None else backward_elements
        forward = RankOp(f"{self.name}/{label}", label, kernel=Kernel(moved_bytes=HALF * elements))
        backward_kernel = Kernel(moved_bytes=HALF * moved_elements)
        backward = RankOp(f"{self.name}/{label}/backward", f"{label}_backward", INPUT, backward_kernel)
        self.rows.append((forward, (backward,)))

    def norm(self, label: str, elements: int, parameters: int) -> None:
        """Adds a normalisation with its parameters, whose backward pass reads its input again."""
        self.parameters += parameters
        self.move(label, 2 * elements, 3 * elements, saved_bytes=HALF * elements)

    def residual(self, label: str, elements: int, *, has_dropout: bool) -> None:
        """Adds the sum with the residual, after a dropout that saves a byte per element as its mask."""
        mask = elements if has_dropout else 0
        self.move(label, 3 * elements + mask / 2, (elements + mask / 2) * (2 if mask else 1), saved_bytes=mask)

    def flash(self, batch: int, queries: int, keys: int, width: int, heads: int, kv_heads: int, share: float) -> None:
        """Adds attention in one kernel.

        `width` is the size of a key plus that of a value. `share` is the share of the keys that a query attends to. Under
        context parallelism it has one round per device, between which keys and values are passed around the ring.
        """
        flops = 2.0 * batch * heads * queries * keys * width * share
        moved_bytes = HALF * batch * (heads * queries + kv_heads * keys) * width
        name = f"{self.name}/attention"
        forward = RankOp(name, "flash_attention", kernel=_attention_kernel(flops, moved_bytes))
        backward_kernel = _attention_kernel(2.5 * flops, 2.0 * moved_bytes)
        backward = RankOp(f"{name}/backward", "flash_attention_backward", INPUT, backward_kernel)
        if self.layout.cp == 1:
            self.rows.append((forward, (backward,)))
            return
        message = HALF * batch * keys * kv_heads * width
        ring = RankOp(f"{name}/send_recv", "send_recv", axis="cp", message_bytes=message)
        gradient_ring = RankOp(f"{name}/send_recv/backward", "send_recv", INPUT, axis="cp", message_bytes=2 * message)
        self.rows += [(ring, ()), (forward, (gradient_ring, backward))]

    def collective(self, kind: str, axis: str, message: int, label: str) -> None:
        """Adds a collective of the forward pass, and its dual in the backward pass, unless its axis has one device."""
        if getattr(self.layout, axis) == 1:
            return
        forward = RankOp(f"{self.name}/{label}", kind, axis=axis, message_bytes=message)
        dual = RankOp(f"{self.name}/{label}/backward", DUALS[kind], INPUT, axis=axis, message_bytes=message)
        self.rows.append((forward, (dual,)))

    def enter_tensor_parallel(self, label: str, copies: int = 1) -> None:
        """Adds the collective before a layer divided by columns: gather the sequence, or (backward) add up input gradients.

        `copies`: rows per token, if every token is sent to several experts.
        """
        if self.layout.tp == 1:
            return
        message = HALF * self.tokens * copies * self.hidden
        if self.layout.sequence_parallel:
            self.collective("all_gather", "tp", message, f"{label}/all_gather")
            return
        reduction = RankOp(f"{self.name}/{label}/all_reduce", "all_reduce", INPUT, axis="tp", message_bytes=message)
        self.rows.append((_NO_OP, (reduction,)))

    def leave_tensor_parallel(self, label: str, copies: int = 1) -> None:
        """Adds the collective after a layer divided by rows: add up its outputs, with a share of the sequence per device."""
        if self.layout.tp == 1:
            return
        message = HALF * self.tokens * copies * self.hidden
        if self.layout.sequence_parallel:
            self.collective("reduce_scatter", "tp", message, f"{label}/reduce_scatter")
            return
        reduction = RankOp(f"{self.name}/{label}/all_reduce", "all_reduce", axis="tp", message_bytes=message)
        self.rows.append((reduction, ()))

    def part(self, input_bytes: int, output_bytes: int, transient_bytes: int) -> Part:
        """Returns the part with its forward and backward ops in the order in which they run."""
        backward: list[RankOp] = []
        for forward, gradients in reversed(self.rows):
            backward += gradients
            gathers_sequence = (
                self.layout.sequence_parallel and forward.op_type == "all_gather" and forward.axis == "tp"
            )
            if gathers_sequence:  # the gathered input is not kept; the gradient of the weight needs it again
                second_gather = replace(forward, name=f"{forward.name}/again", phase=WEIGHT, is_awaited=False)
                products = [k for k, op in enumerate(backward) if op.phase == INPUT and op.op_type == "matmul"]
                backward.insert(max(products, default=0), second_gather)
        # Gradients of weights move behind the collective after the gradient of the input, so that both overlap.
        ops: list[RankOp] = []
        weights: list[RankOp] = []
        for op in backward:
            if op.phase == WEIGHT and op.op_type == "matmul":
                weights.append(op)
                continue
            if not op.axis:
                ops += weights
                weights = []
            ops.append(op)
        return Part(
            name=self.name,
            forward=tuple(forward for forward, _ in self.rows if forward is not _NO_OP),
            backward=tuple(ops + weights),
            parameters=self.parameters,
            expert_parameters=self.expert_parameters,
            saved_bytes=int(self.saved_bytes),
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            transient_bytes=int(transient_bytes),
            attention_bytes=int(self.attention_saved),
        )


_NO_OP = RankOp("", "")
"""Stands for the forward op of a collective that only the backward pass has."""


def _attention_kernel(flops: float, moved_bytes: float) -> Kernel:
    """Returns the work of attention in one kernel."""
    return Kernel(flops=flops, moved_bytes=moved_bytes, precision="fp16", matrix=True, batched=True)


def _product(
    name: str,
    phase: str,
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    out_bytes: int = HALF,
    precision: str = "fp16",
) -> RankOp:
    """Returns the op of `batch` products of rows x depth by depth x columns; float32 results are added to existing ones."""
    accumulated_bytes = 2 * out_bytes if out_bytes == FULL else out_bytes
    moved_bytes = float(batch * (HALF * (rows * depth + depth * columns) + accumulated_bytes * rows * columns))
    product = Product(batch, rows, columns, depth)
    kernel = Kernel(product.flops, moved_bytes, precision, matrix=True, batched=batch > 1, products=(product,))
    return RankOp(name, "matmul", phase, kernel)


# -- the parts of a transformer ------------------------------------------------------------------------------------------


def make_block(model: Transformer, layout: Layout, sequence_length: int, storage: Storage, experts: bool) -> Part:
    """Makes a block of the model on one rank, with or without experts."""
    batch, length = layout.micro_batch, sequence_length // layout.cp
    tokens, hidden, tp = batch * length, model.hidden, layout.tp
    writer = _PartWriter("block", layout, tokens, hidden, storage.products)
    # Tokens that a rank holds of tensors between the layers that tensor parallelism divides.
    rank_tokens = tokens // tp if layout.sequence_parallel else tokens
    writer.norm("norm", rank_tokens * hidden, hidden * (1 + model.bias))
    _attention(writer, model, layout, batch, length, sequence_length, storage, rank_tokens)
    writer.residual("add", rank_tokens * hidden, has_dropout=bool(model.dropout))
    writer.norm("norm2", rank_tokens * hidden, hidden * (1 + model.bias))
    if experts:
        _experts(writer, model, layout, tokens, rank_tokens)
    else:
        writer.enter_tensor_parallel("up")
        _feed_forward(writer, model, tokens, -(-model.feed_forward // tp), "", saved_input=HALF * rank_tokens * hidden)
        writer.leave_tensor_parallel("down")
    writer.residual("add2", rank_tokens * hidden, has_dropout=bool(model.dropout))
    edge = HALF * rank_tokens * hidden
    width = max(2 * model.feed_forward // tp, 3 * model.heads * model.head_size // tp)
    transient = HALF * tokens * (width + 2 * hidden)
    if not storage.flash_attention:
        transient += 2 * HALF * batch * (model.heads // tp) * length * sequence_length
    elif layout.cp > 1:  # of two rounds of the ring: keys and values, and their gradients
        key_and_value = model.head_size + model.rope_size + model.value_size
        transient += 4 * HALF * tokens * max(model.kv_heads // tp, 1) * key_and_value
    return writer.part(edge, edge, transient)


def _attention(
    writer: _PartWriter,
    model: Transformer,
    layout: Layout,
    batch: int,
    length: int,
    keys: int,
    storage: Storage,
    rank_tokens: int,
) -> None:
    """Adds the ops of a rank's share of an attention: projections, scores over `keys` positions, and the output's product."""
    tokens, hidden, tp = batch * length, model.hidden, layout.tp
    heads, kv_heads = model.heads // tp, max(model.kv_heads // tp, 1)
    size = model.head_size + model.rope_size
    writer.enter_tensor_parallel("qkv")
    saved_input = HALF * rank_tokens * hidden
    if model.key_rank:
        rank = model.key_rank + model.rope_size
        if model.query_rank:
            writer.product("query_down", tokens, hidden, model.query_rank, saved_bytes=saved_input)
            writer.move("query_norm", 2 * tokens * model.query_rank, saved_bytes=HALF * tokens * model.query_rank)
            writer.product("query_up", tokens, model.query_rank, heads * size)
        else:
            writer.product("query", tokens, hidden, heads * size, saved_bytes=saved_input)
        writer.product("key_down", tokens, hidden, rank, saved_bytes=0)
        writer.move("key_norm", 2 * tokens * rank, saved_bytes=HALF * tokens * rank)
        writer.product("key_up", tokens, model.key_rank, heads * (model.head_size + model.value_size))
        writer.move("rotary", 4 * tokens * heads * size)
        saved_elements = tokens * heads * (2 * size + model.value_size)
    else:
        width = (heads + 2 * kv_heads) * size
        writer.product("qkv", tokens, hidden, width, bias=model.bias, saved_bytes=saved_input)
        writer.move("split", 2 * tokens * width)
        saved_elements = tokens * width
    writer.saved_bytes += HALF * saved_elements
    saved_before = writer.saved_bytes
    if storage.flash_attention:
        writer.flash(batch, length, keys, size + model.value_size, heads, kv_heads, model.attended_share(keys))
        writer.saved_bytes += FULL * tokens * heads
    else:
        gathered_bytes = HALF * batch * keys * kv_heads * (size + model.value_size)
        writer.collective("all_gather", "cp", gathered_bytes, "attention/all_gather")
        writer.saved_bytes += gathered_bytes - gathered_bytes // layout.cp
        scores = batch * heads * length * keys
        writer.scores("scores", batch * heads, length, keys, size)
        _softmax(writer, batch * heads, length, keys, storage.torch_softmax)
        if model.dropout:
            writer.move("dropout", 2.5 * scores, 2.5 * scores, saved_bytes=(HALF + 1) * scores)
        writer.scores("context", batch * heads, length, model.value_size, keys)
        writer.move("merge_heads", 2 * tokens * heads * model.value_size)
    writer.attention_saved = writer.saved_bytes - saved_before
    writer.product("out", tokens, heads * model.value_size, hidden, bias=model.bias)
    writer.leave_tensor_parallel("out")


def _softmax(writer: _PartWriter, heads: int, length: int, keys: int, in_torch: bool) -> None:
    """Adds the softmax of scores: one kernel where Megatron-LM has one for these sizes, else one per step."""
    scores = heads * length * keys
    if heads % SOFTMAX_MULTIPLE == 0 and length % SOFTMAX_MULTIPLE == 0 and keys <= LONGEST_SOFTMAX:
        writer.move("softmax", 2 * scores, 3 * scores, saved_bytes=HALF * scores)
        return
    # elements of half precision, where those in float32 count twice
    if in_torch:
        writer.move("softmax/mask", 2 * scores)
        writer.move("softmax/exp", 3 * scores, 5 * scores)
    else:
        writer.move("softmax/float", 3 * scores)
        writer.move("softmax/scale", 4 * scores)
        writer.move("softmax/mask", 4 * scores)
        writer.move("softmax/exp", 4 * scores, 6 * scores)
    writer.move("softmax/half", 3 * scores, saved_bytes=(HALF + FULL) * scores)


def _feed_forward(
    writer: _PartWriter, model: Transformer, rows: int, width: int, label: str, *, saved_input: int
) -> None:
    """Adds the layers of a feed-forward part of inner `width`: up (two of them if gated), activation, and down."""
    up = 2 if model.gated else 1
    writer.product(f"{label}up", rows, model.hidden, up * width, saved_bytes=saved_input, bias=model.bias)
    writer.move(
        f"{label}activation", (up + 1) * rows * width, (2 * up + 1) * rows * width, saved_bytes=HALF * up * rows * width
    )
    writer.product(f"{label}down", rows, width, model.hidden, bias=model.bias)


def _experts(writer: _PartWriter, model: Transformer, layout: Layout, tokens: int, rank_tokens: int) -> None:
    """Adds router, all-to-all, the experts' feed-forward parts, and the all-to-all back; tokens are spread evenly."""
    hidden, ep, tp = model.hidden, layout.ep, layout.tp
    local_experts = max(model.experts // ep, 1)
    # Rows of a rank before its tensor-parallel ranks gather their tokens, and after.
    routed_tokens, gathered_tokens = rank_tokens * model.experts_per_token, tokens * model.experts_per_token
    if model.shared_feed_forward:
        writer.enter_tensor_parallel("shared")
        _feed_forward(
            writer,
            model,
            tokens,
            -(-model.shared_feed_forward // tp),
            "shared_",
            saved_input=HALF * rank_tokens * hidden,
        )
        writer.leave_tensor_parallel("shared_down")
    writer.product("router", rank_tokens, hidden, model.experts, saved_bytes=FULL * rank_tokens * hidden)
    writer.move("top_k", 4 * rank_tokens * model.experts, saved_bytes=FULL * rank_tokens * model.experts)
    writer.move("dispatch", 2 * routed_tokens * hidden)
    writer.collective("all_to_all", "ep", HALF * routed_tokens * hidden, "dispatch/all_to_all")
    writer.enter_tensor_parallel("experts", model.experts_per_token)
    rows, width = -(-gathered_tokens // local_experts), -(-model.expert_feed_forward // tp)
    up = 2 if model.gated else 1
    writer.move("permute", 2 * gathered_tokens * hidden)
    writer.product("experts_up", rows, hidden, up * width, batch=local_experts, expert=True)
    writer.move(
        "experts_activation",
        (up + 1) * gathered_tokens * width,
        (2 * up + 1) * gathered_tokens * width,
        saved_bytes=HALF * up * gathered_tokens * width,
    )
    writer.product("experts_down", rows, width, hidden, batch=local_experts, expert=True)
    writer.move("unpermute", 2 * gathered_tokens * hidden)
    writer.leave_tensor_parallel("experts", model.experts_per_token)
    writer.collective("all_to_all", "ep", HALF * routed_tokens * hidden, "combine/all_to_all")
    writer.move("combine", (routed_tokens + rank_tokens) * hidden)


def make_embedding(model: Transformer, layout: Layout, sequence_length: int) -> Part:
    """Makes the embedding: looking up tokens in a rank's part of the vocabulary."""
    tokens, hidden, tp = layout.micro_batch * sequence_length // layout.cp, model.hidden, layout.tp
    width = model.embedding_size
    writer = _PartWriter("embedding", layout, tokens, width)
    rows = model.vocabulary_share(tp)
    rank_tokens = tokens // tp if layout.sequence_parallel else tokens
    writer.parameters += rows * width + model.positions * hidden
    writer.move("lookup", 2 * tokens * width, 2 * tokens * width + 2 * rows * width, saved_bytes=8 * tokens)
    writer.leave_tensor_parallel("lookup")
    if model.projection_parameters:
        writer.product("project", rank_tokens, width, hidden)
    if model.positions or model.dropout:
        writer.move(
            "positions",
            3 * rank_tokens * hidden,
            2 * rank_tokens * hidden,
            saved_bytes=rank_tokens * hidden if model.dropout else 0,
        )
    edge = HALF * rank_tokens * hidden
    return writer.part(0, edge, HALF * tokens * hidden)


def make_head(model: Transformer, layout: Layout, sequence_length: int, storage: Storage) -> Part:
    """Makes the output layer: last normalisation, logits of a rank's part of the vocabulary, and their cross entropy."""
    tokens, hidden, tp = layout.micro_batch * sequence_length // layout.cp, model.hidden, layout.tp
    width = model.embedding_size
    writer = _PartWriter("head", layout, tokens, width)
    columns = model.vocabulary_share(tp)
    rank_tokens = tokens // tp if layout.sequence_parallel else tokens
    writer.norm("norm", rank_tokens * hidden, hidden * (1 + model.bias))
    if model.projection_parameters:
        writer.product("project", rank_tokens, hidden, width)
    writer.enter_tensor_parallel("logits")
    writer.product("logits", tokens, width, columns, saved_bytes=HALF * rank_tokens * width, weights=False)
    passes = LOSS_PASSES[storage.fused_loss] * FULL / HALF * tokens * columns
    logits = tokens * columns
    writer.move("loss", passes * 0.6, passes * 0.4, saved_bytes=HALF * logits if storage.fused_loss else FULL * logits)
    if tp > 1:
        reduction = RankOp("head/loss/all_reduce", "all_reduce", axis="tp", message_bytes=3 * FULL * tokens)
        writer.rows.append((reduction, ()))
    transient = (HALF if storage.fused_loss else HALF + FULL) * logits
    return writer.part(HALF * rank_tokens * hidden, 0, transient)
