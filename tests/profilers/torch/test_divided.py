"""`bl.torch.profile(..., layout=)`: what PyTorch's DTensor does on one rank, against shapes by hand and `bl.layouts`' blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from fewer import fast
from torch import nn

import baechi_lab as bl
from baechi_lab.parallel.configuration import read_transformer
from baechi_lab.parallel.rank_ops import Storage, make_block
from baechi_lab.profilers.torch.hugging_face import hugging_face

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 256,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 4, **SIZES}
GPT = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 8,
    "vocab_size": 256,
    "n_positions": 64,
}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES}
OPT = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "ffn_dim": 96, "word_embed_proj_dim": 64, **SIZES}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
BATCH, LENGTH = 2, 16


class FeedForward(nn.Module):
    """Two layers, in names that a plan may give."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class OtherExperts(nn.Module):
    """Experts of one matrix each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 8, 8))


def rank_graph(fields: dict[str, Any], layout: bl.Layout, **options: Any) -> bl.OpGraph:
    model, inputs = hugging_face(fields, batch_size=BATCH, sequence_length=LENGTH)
    return bl.torch.profile(
        model, inputs, hardware="a100", layout=layout, precision="mixed-bf16", optimizer="adam", **options
    )


def collectives(graph: bl.OpGraph) -> list[tuple[str, int]]:
    """Type and bytes of every collective over `tp`, in order."""
    kinds = dict(zip(graph.names, graph.op_types, strict=True))
    return [(kinds[name], entry["bytes"]) for name, entry in graph.info["collectives"].items()]


def test_a_feed_forward_part_is_divided_by_columns_and_rows() -> None:
    plan = {"first": "colwise", "second": "rowwise"}
    with torch.device("meta"):
        model = FeedForward()
    inputs = torch.empty(4, 8, device="meta", requires_grad=True)
    graph = bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(tp=4), plan=plan)
    kinds = Counter(graph.op_types)
    assert kinds["all_reduce"] == 1  # of the output; nobody asks for the gradient of the input
    assert collectives(graph) == [("all_reduce", 4 * 8 * 4)]
    # It may run beside a product, whose workspace is there once.
    assert graph.temp_bytes[graph.op_types.index("all_reduce")] == 0
    # two weights of 8 x 32 numbers of 4 bytes, a quarter of each, and their gradients
    assert graph.persistent_bytes.sum() == 2 * 2 * 8 * 32 * 4 // 4


def test_bug_the_loss_and_optimizer_of_a_step_were_left_out() -> None:
    """Neither a rank of a layout nor the graph of operators had the loss; a rank had no states and no updates."""
    scores = bl.torch.TorchStep(
        "scores", FeedForward, torch.ones(4, 8), nn.functional.cross_entropy, torch.arange(4), torch.optim.Adam
    )
    plan = {"first": "colwise", "second": "rowwise"}
    rank = bl.torch.profile(scores, hardware="a100", layout=bl.Layout(tp=4), plan=plan)
    operators = bl.torch.profile(scores, hardware="a100", granularity="operator")
    for graph, share in ((rank, 4), (operators, 1)):
        loss = [name.rpartition("/")[2] for name in graph.names if name.startswith("loss/")]
        assert [kind for kind in loss if kind != "ones_like"] == [
            "_log_softmax",
            "nll_loss_forward",
            "nll_loss_backward",
            "_log_softmax_backward_data",
        ]
        assert Counter(graph.op_types)["Update"] == 2
        assert graph.persistent_bytes.sum() == 4 * 2 * 8 * 32 * 4 // share  # weights, gradients and two states


@pytest.mark.slow
def test_llama_as_pytorch_divides_it_agrees_with_the_blocks_of_layouts() -> None:
    """Collectives of the forward pass: of every block, of the embedding, and of the logits."""
    layout = bl.Layout(tp=4, micro_batch=BATCH)
    block = make_block(read_transformer(LLAMA), layout, LENGTH, Storage(), experts=False)
    of_block = [(op.op_type, op.message_bytes) for op in block.forward if op.axis]
    activation_bytes = 2 * BATCH * LENGTH * 64
    logits = [("all_gather", 2 * BATCH * LENGTH * 256)]
    graph = rank_graph(LLAMA, layout)
    assert collectives(graph)[:6] == [("all_reduce", activation_bytes), *of_block, *of_block, *logits]
    parameters = sum(_matrix_bytes(graph, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    assert parameters == 2 * 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64) // 4


def _matrix_bytes(graph: bl.OpGraph, layer: str) -> int:
    """Bytes of half-precision weights of all layers of that name on one rank."""
    ops = [k for k, name in enumerate(graph.names) if f".{layer}/" in name and "backward" not in name]
    return int(graph.persistent_bytes[ops].sum())


@pytest.mark.parametrize("fields", fast([GPT, LLAMA, BERT, OPT], 1), ids=["gpt", "llama", "bert", "opt"])
def test_sequence_parallelism_gathers_and_scatters(fields: dict[str, Any]) -> None:
    """Positions from a rotation, or from a table, of which each rank adds the rows of its share."""
    layout = bl.Layout(tp=4, sequence_parallel=True, micro_batch=BATCH)
    block = make_block(read_transformer(fields), layout, LENGTH, Storage(), experts=False)
    of_block = [(op.op_type, op.message_bytes) for op in block.forward if op.axis]
    graph = rank_graph(fields, layout)
    assert collectives(graph)[0] == ("reduce_scatter", 2 * BATCH * LENGTH * 64)
    assert collectives(graph)[1:9] == of_block * 2
    assert "all_reduce" not in {kind for kind, _ in collectives(graph)}


@pytest.mark.slow
@pytest.mark.parametrize("fields", fast([GPT, BERT], 1), ids=["gpt", "bert"])
def test_other_kinds_have_plans(fields: dict[str, Any]) -> None:
    graph = rank_graph(fields, bl.Layout(tp=2))
    forward = [entry for entry in graph.info["collectives"] if "backward" not in entry]
    assert len(forward) == 1 + 2 * 2  # of the embedding, and two per block
    undivided = rank_graph(fields, bl.Layout())
    assert not undivided.info["collectives"]
    products = ("c_attn", "c_fc", "query", "intermediate.dense")
    assert all(_matrix_bytes(graph, layer) < 0.6 * _matrix_bytes(undivided, layer) + 1 for layer in products)


def test_the_graph_of_a_rank_simulates_and_its_collectives_overlap() -> None:
    graph = rank_graph(LLAMA, bl.Layout(tp=2, dp=2, zero=1))
    cluster, placement = bl.Cluster.uniform(1, kind="a100"), bl.Placement(device=[0] * graph.n)
    timeline = bl.simulate(graph, cluster, placement)
    assert bl.check(graph, cluster, placement, timeline) == ()
    assert bl.bounds(graph, cluster).best <= timeline.makespan_us
    assert timeline.makespan_us < graph.duration_us.sum()
    kinds = Counter(graph.op_types)
    assert kinds["reduce_scatter"] > 0 and kinds["all_gather"] > 1


@pytest.mark.slow
def test_zero_divides_what_copies_hold() -> None:
    undivided = rank_graph(LLAMA, bl.Layout(tp=2)).persistent_bytes.sum()
    one = rank_graph(LLAMA, bl.Layout(tp=2, dp=4, zero=1)).persistent_bytes.sum()
    three = rank_graph(LLAMA, bl.Layout(tp=2, dp=4, zero=3)).persistent_bytes.sum()
    # 2 (weights) + 4 (gradients) + 12 (states) bytes per parameter, buffers aside
    assert one / undivided == pytest.approx((2 + 4 + 12 / 4) / 18, rel=0.06)
    assert three / undivided == pytest.approx(1 / 4, rel=0.2)


def test_what_cannot_be_divided_is_named() -> None:
    with torch.device("meta"):
        model = FeedForward()
    inputs = torch.empty(4, 8, device="meta")
    with pytest.raises(bl.InvalidInput, match="the plan of FeedForward lacks layer 'first'"):
        bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(tp=2))
    with pytest.raises(bl.InvalidInput, match="tp is 3; it must divide layer 'first', which has 32 outputs"):
        plan = {"first": "colwise", "second": "rowwise"}
        bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(tp=3), plan=plan)
    with pytest.raises(bl.InvalidInput, match="plan has 'diagonal'; it must be"):
        plan = {"first": "diagonal", "second": "rowwise"}
        bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(tp=2), plan=plan)
    with pytest.raises(bl.InvalidInput, match="layout is for estimates"):
        bl.torch.profile(model, inputs, layout=bl.Layout(tp=2))
    with pytest.raises(bl.InvalidInput, match="pp of layout is 2"):
        bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(pp=2))
    with pytest.raises(bl.InvalidInput, match="recompute of layout is 'full'"):
        bl.torch.profile(model, inputs, hardware="a100", layout=bl.Layout(recompute="full"))
    with pytest.raises(bl.InvalidInput, match="dp of layout is 2 and optimizer is not given"):
        bl.torch.profile(model.train(), inputs, hardware="a100", layout=bl.Layout(dp=2))
    with pytest.raises(bl.InvalidInput, match="tp is 8; it must divide the model's num_key_value_heads, which is 4"):
        rank_graph(LLAMA, bl.Layout(tp=8))


@pytest.mark.slow
def test_experts_are_divided_over_the_ranks_that_share_them() -> None:
    """Four experts over two ranks, each of half a width: all-to-all of every token's two rows, there and back."""
    graph = rank_graph(MIXTRAL, bl.Layout(tp=2, dp=4, ep=2, zero=1))
    rows = 2 * BATCH * LENGTH * 2 * 64
    of_experts = [
        (name.rsplit("/", 1)[1].partition("#")[0], entry["axis"], entry["bytes"])
        for name, entry in graph.info["collectives"].items()
        if name.startswith("model.layers.0.mlp.experts/") and "backward" not in name
    ]
    exchange = ("all_to_all_single", "ep", rows)
    assert of_experts == [exchange, exchange, ("all_reduce", "tp", rows // 2)]
    experts = [k for k, name in enumerate(graph.names) if name.startswith("model.layers.0.mlp.experts/bmm")]
    # three weights of 64 x 96 per expert in half precision
    assert graph.persistent_bytes[experts].sum() == 3 * 64 * 96 * 2 * 4 // 2 // 2
    undivided = rank_graph(MIXTRAL, bl.Layout())
    assert not undivided.info["collectives"]


def test_experts_that_cannot_be_divided_are_named() -> None:
    with pytest.raises(
        bl.InvalidInput, match=r"ep is 3; it must divide the experts of layer 'model.layers.0.mlp.experts'"
    ):
        rank_graph(MIXTRAL, bl.Layout(dp=3, ep=3))
    with pytest.raises(bl.InvalidInput, match="ep of layout is 2 and LlamaForCausalLM has no experts"):
        rank_graph(LLAMA, bl.Layout(dp=2, ep=2))
    with pytest.raises(bl.InvalidInput, match="sequence_parallel of layout is True and MixtralForCausalLM has experts"):
        rank_graph(MIXTRAL, bl.Layout(tp=2, sequence_parallel=True))
    model = nn.ModuleDict({"first": OtherExperts()})
    with pytest.raises(bl.InvalidInput, match="layer 'first' is a mixture of experts, but not one of Mixtral's kind"):
        bl.torch.profile(model, torch.empty(2, 8, device="meta"), hardware="a100", layout=bl.Layout())
