"""A micro-batch of GPT training as Megatron-DeepSpeed runs it on one pipeline of GPUs: work per op, and its graph.

Mixed precision, activation checkpointing (what is kept of a layer is its input; its forward pass runs again before its
backward pass), Adam. FLOPs of a product are counted from its shapes; bytes are what its kernels read and write, 2 per
element. Weight gradients are added into a sum by the kernels that make them, so that accumulating costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from baechi_lab.graph import CONTROL_BYTES, Cluster, Link, OpGraph, Placement
from baechi_lab.graph.hardware import Hardware
from baechi_lab.passes.all_reduce import ring_us
from baechi_lab.profilers.kernel_model import estimated_us
from baechi_lab.profilers.work import Kernel, work_of

HALF, FULL = 2, 4
"""Bytes of an element."""
ADAM_BYTES = 28
"""Read and written per parameter by an update: the gradient, master weight and two moments in float32, the half copy."""
KEPT_BYTES = 18
"""Held per parameter: half weight and gradient, and the three in float32, with a float32 gradient's half left out."""
LOSS_PASSES = 14
"""Times that the float32 logits go to or from memory in the cross entropy of a vocabulary, in each direction."""
ENGINE_LAUNCHES = 12
"""Kernels and calls that the pipeline engine itself starts per micro-batch and direction on every stage."""
NVLINK = Link(0.0, 1e6 / 150e9)
"""About 150 GB/s."""

Row = tuple[float, float, bool, bool]
"""FLOPs, bytes, is it a matrix product, is it one of many small matrices."""


@dataclass(frozen=True)
class GPT:
    """The shape of a model."""

    layers: int
    hidden: int
    heads: int
    sequence_length: int
    vocabulary: int = 50257

    @property
    def layer_parameters(self) -> int:
        """Of one layer: four square matrices' worth in attention, eight in the feed-forward part."""
        return 12 * self.hidden**2

    @property
    def embedding_parameters(self) -> int:
        return (self.vocabulary + self.sequence_length) * self.hidden


def layer_rows(gpt: GPT, batch: int) -> list[Row]:
    """Kernels of a layer's forward pass, `batch` sequences."""
    t, h, s, half = batch * gpt.sequence_length, gpt.hidden, gpt.sequence_length, HALF
    scores = batch * gpt.heads * s * s

    def product(k: int, n: int) -> Row:
        return 2.0 * t * k * n, half * (t * k + k * n + t * n), True, False

    def moved(elements: float) -> Row:
        return 0.0, half * elements, False, False

    attention: Row = (2.0 * batch * s * s * h, half * (2 * t * h + scores), True, True)
    return [
        moved(2 * t * h),
        product(h, 3 * h),
        moved(6 * t * h),  # normalise, queries and keys and values, bias
        attention,
        moved(2 * scores),
        moved(2.5 * scores),
        attention,  # scores, softmax, dropout with its mask, context
        moved(2 * t * h),
        product(h, h),
        moved(3.5 * t * h),  # transpose, projection, bias and dropout and add
        moved(2 * t * h),
        product(h, 4 * h),
        moved(8 * t * h),  # normalise, widen, bias and gelu
        product(4 * h, h),
        moved(3.5 * t * h),  # narrow, bias and dropout and add
    ]


def head_rows(gpt: GPT, batch: int) -> list[Row]:
    """Logits and their cross entropy."""
    t, h, v = batch * gpt.sequence_length, gpt.hidden, gpt.vocabulary
    logits: Row = (2.0 * t * h * v, HALF * (t * h + h * v + t * v), True, False)
    return [logits, (0.0, float(LOSS_PASSES * FULL * t * v), False, False)]


def embedding_rows(gpt: GPT, batch: int, table: bool) -> list[Row]:
    """Looking tokens up, or (`table`) adding their gradients into the table."""
    t, h = batch * gpt.sequence_length, gpt.hidden
    rows: list[Row] = [(0.0, float(HALF * 4 * t * h), False, False)]
    return [*rows, (0.0, float(HALF * 2 * gpt.vocabulary * h), False, False)] if table else rows


def microseconds(rows: list[Row], hardware: Hardware, times: float = 1.0) -> float:
    """Of kernels in half precision; a backward pass does the work of two forward passes (`times=2`)."""
    work = work_of(
        1, [(0, Kernel(flops, moved_bytes, "fp16", matrix, batched)) for flops, moved_bytes, matrix, batched in rows]
    )
    return times * float(estimated_us(work, hardware)[0])


def pipeline(
    gpt: GPT, batch: int, stages: int, replicas: int, hardware: Hardware
) -> tuple[OpGraph, Cluster, Placement]:
    """One of `replicas` equal pipelines: a micro-batch of `batch` sequences, its devices, and where everything runs.

    Every replica does the same at the same time, so one stands for all; adding up their gradients over NVLink is part
    of the update, as is adding up those of the embedding that first and last stage share.
    """
    cluster = Cluster.uniform(stages, memory_bytes=hardware.memory_bytes, link=NVLINK, comm="parallel")
    layer, hidden = layer_rows(gpt, batch), HALF * batch * gpt.sequence_length * gpt.hidden
    engine = ENGINE_LAUNCHES * hardware.launch_us
    ahead = microseconds(layer, hardware)
    blocks = [
        (
            "embedding",
            microseconds(embedding_rows(gpt, batch, False), hardware),
            microseconds(embedding_rows(gpt, batch, False) + embedding_rows(gpt, batch, True), hardware),
            gpt.embedding_parameters,
            0,
        )
    ]
    for k in range(gpt.layers):
        stage = k * stages // gpt.layers
        blocks.append((f"layer{k}", ahead, ahead + microseconds(layer, hardware, 2.0), gpt.layer_parameters, stage))
    head = head_rows(gpt, batch)
    shared = gpt.embedding_parameters if stages > 1 else 0
    products, loss = microseconds(head[:1], hardware), microseconds(head[1:], hardware)
    blocks.append(("head", products + loss, 2 * products + loss, shared, stages - 1))
    return (
        _graph(blocks, stages, replicas, hidden, engine, hardware, HALF * shared),
        cluster,
        _placement(blocks, stages),
    )


Block = tuple[str, float, float, int, int]
"""Name, forward and backward microseconds, parameters, stage."""


def _graph(
    blocks: list[Block], stages: int, replicas: int, hidden: int, engine: float, hardware: Hardware, shared: int
) -> OpGraph:
    n, stage = len(blocks), [block[4] for block in blocks]
    first = [k == 0 or stage[k] != stage[k - 1] for k in range(n)]
    last = [k == n - 1 or stage[k] != stage[k + 1] for k in range(n)]
    forward = [block[1] + engine * first[k] for k, block in enumerate(blocks)]
    backward = [block[2] + engine * last[k] for k, block in enumerate(blocks)]
    edges = [(k, k + 1, hidden) for k in range(n - 1)]
    edges += [(max(k - 1, 0), n + k, hidden) for k in range(n)]  # what is kept of a layer is its input
    edges += [(n + k + 1, n + k, hidden) for k in range(n - 1)]
    edges += [(n + k, 2 * n + stage[k], CONTROL_BYTES) for k in range(n)]
    parameters_of_stage = [sum(block[3] for block in blocks if block[4] == s) for s in range(stages)]
    end_stages = (0, stages - 1)
    update = [
        _update_us(parameters_of_stage[s], replicas, hardware, shared if s in end_stages else 0) for s in range(stages)
    ]
    return OpGraph.from_edges(
        forward + backward + update,
        edges,
        names=[b[0] for b in blocks]
        + [f"{b[0]}/backward" for b in blocks]
        + [f"stage{s}/update" for s in range(stages)],
        op_types=["Layer"] * n + ["LayerGrad"] * n + ["Update"] * stages,
        persistent_bytes=[KEPT_BYTES * block[3] for block in blocks] + [0] * (n + stages),
        forward_of=np.array([-1] * n + list(range(n)) + [-1] * stages, dtype=np.int32),
        name=f"gpt-{n - 2}x{hidden}",
    )


def _update_us(parameters: int, replicas: int, hardware: Hardware, shared: int) -> float:
    """Adding up half-precision gradients among replicas (and of the shared embedding among two stages), then Adam."""
    ring = Cluster.uniform(max(replicas, 2), link=NVLINK)
    added = ring_us(ring, range(replicas), HALF * parameters) + ring_us(ring, range(2), shared)
    return added + microseconds([(0.0, float(ADAM_BYTES * parameters), False, False)], hardware)


def _placement(blocks: list[Block], stages: int) -> Placement:
    stage = [block[4] for block in blocks]
    return Placement(device=np.array(stage + stage + list(range(stages)), dtype=np.int32))
