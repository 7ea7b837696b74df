"""What a rank computes, sends and keeps: counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baechi_lab.errors import FormatError, InvalidInput
from baechi_lab.graph import Cluster
from baechi_lab.graph.collectives import Collectives
from baechi_lab.graph.hardware import Hardware
from baechi_lab.graph.layout import Layout
from baechi_lab.parallel.configuration import read_transformer
from baechi_lab.parallel.kernel_times import Efficiency, PartTimes, part_times, rank_kernel_us, share_host
from baechi_lab.parallel.rank_costs import RankCosts
from baechi_lab.parallel.rank_ops import INPUT, WEIGHT, Part, RankOp, Storage, make_block, make_embedding, make_head
from baechi_lab.parallel.transformer import Transformer
from baechi_lab.profilers.work import Kernel, Product

H, A, S, F, V = 64, 8, 32, 256, 1000
GPT = Transformer(hidden=H, layers=4, heads=A, vocabulary=V, positions=S)
LLAMA = Transformer(
    hidden=H, layers=4, heads=A, kv_heads=4, feed_forward=96, vocabulary=V, gated=True, bias=False, tied=False
)
MIXTRAL = Transformer(
    hidden=H, layers=4, heads=A, feed_forward=96, vocabulary=V, gated=True, bias=False, experts=8, experts_per_token=2
)
EAGER = Storage(flash_attention=False)


def forward_flops(block: Part) -> float:
    return sum(op.kernel.flops for op in block.forward)


def backward_flops(block: Part) -> float:
    return sum(op.kernel.flops for op in block.backward)


def messages(block: Part) -> dict[str, list[int]]:
    """Kind -> bytes of collectives of the forward pass."""
    out: dict[str, list[int]] = {}
    for op in block.forward:
        if op.axis:
            out.setdefault(op.op_type, []).append(op.message_bytes)
    return out


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_block_of_gpt_is_divided_by_tensor_parallelism(tp: int) -> None:
    b = 3
    block = make_block(GPT, Layout(tp=tp, micro_batch=b), S, EAGER, experts=False)
    products = 2 * b * S * H * (3 * H + H + F + F)
    scores = 2 * 2 * b * S * S * H
    assert forward_flops(block) == (products + scores) / tp
    assert backward_flops(block) == 2 * forward_flops(block)
    assert messages(block) == ({"all_reduce": [2 * b * S * H] * 2} if tp > 1 else {})
    weights = (3 * H * H + 3 * H) // tp + H * H // tp + H + (H * F + F) // tp + F * H // tp + H
    assert block.parameters == weights + 4 * H


def test_without_tensor_parallelism_a_block_has_the_parameters_of_the_model() -> None:
    for model in (GPT, LLAMA):
        block = make_block(model, Layout(), S, Storage(), experts=False)
        assert block.parameters == model.dense_layer_parameters
    block = make_block(MIXTRAL, Layout(), S, Storage(), experts=True)
    assert block.parameters + block.expert_parameters == MIXTRAL.expert_layer_parameters


def test_softmax_is_one_kernel_for_multiples_of_four_heads() -> None:
    """A rank with one head has them with four sequences; with three, float32 scores are kept beside those in half precision."""
    fused, unfused = (make_block(GPT, Layout(tp=8, micro_batch=b), S, EAGER, experts=False) for b in (4, 3))
    assert [sum("softmax" in op.name for op in block.forward) for block in (fused, unfused)] == [1, 5]
    scores = S * S
    assert fused.attention_bytes == 4 * 2 * scores
    assert unfused.attention_bytes == 3 * (2 + 4) * scores
    # PyTorch's: the mask (2 half numbers per score), half to float32 (3), float32 to half (3)
    in_torch = make_block(GPT, Layout(tp=8, micro_batch=3), S, replace(EAGER, torch_softmax=True), experts=False)
    moved_bytes = sum(op.kernel.moved_bytes for op in in_torch.forward if "softmax" in op.name)
    assert (moved_bytes, in_torch.attention_bytes) == (3 * scores * (2 + 3 + 3) * 2, unfused.attention_bytes)


def test_causal_flash_attention_does_half_of_the_work_and_keeps_no_scores() -> None:
    flash = make_block(GPT, Layout(micro_batch=2), S, Storage(), experts=False)
    eager = make_block(GPT, Layout(micro_batch=2), S, EAGER, experts=False)
    scores = 2 * A * S * S
    assert forward_flops(eager) - forward_flops(flash) == 2 * 2 * 2 * S * S * H / 2
    assert eager.saved_bytes - flash.saved_bytes == 2 * scores - 4 * 2 * S * A
    assert eager.attention_bytes == 2 * scores


def test_saved_activations_follow_korthikanti() -> None:
    """34 bytes per token and hidden unit, and 5 per score, with dropout in a block of GPT (arXiv:2205.05198, equation 1)."""
    dropped = Transformer(hidden=H, layers=4, heads=A, vocabulary=V, dropout=True)
    block = make_block(dropped, Layout(micro_batch=2), S, EAGER, experts=False)
    expected = 2 * (S * H * 34 + 5 * A * S * S)
    assert block.saved_bytes == expected
    divided = make_block(dropped, Layout(tp=4, micro_batch=2, sequence_parallel=True), S, EAGER, experts=False)
    assert divided.saved_bytes == expected / 4


def test_sequence_parallelism_gathers_and_scatters_what_was_reduced() -> None:
    block = make_block(GPT, Layout(tp=2, sequence_parallel=True), S, Storage(), experts=False)
    activation_bytes = 2 * S * H
    assert messages(block) == {"all_gather": [activation_bytes] * 2, "reduce_scatter": [activation_bytes] * 2}
    backward = [op.op_type for op in block.backward if op.axis]
    assert backward.count("all_gather") == 4  # of the gradient, and of the input for the gradient of the weight
    assert backward.count("reduce_scatter") == 2
    assert block.output_bytes == activation_bytes // 2


def test_gradients_of_weights_overlap_with_the_all_reduce_of_the_input_s_gradient() -> None:
    block = make_block(GPT, Layout(tp=2), S, Storage(), experts=False)
    assert sum(op.op_type == "all_reduce" for op in block.backward) == 2
    for k, op in enumerate(block.backward):
        if op.op_type == "all_reduce":
            assert block.backward[k + 1].phase == WEIGHT


def test_experts_are_reached_by_all_to_all() -> None:
    block = make_block(MIXTRAL, Layout(dp=4, ep=4), S, Storage(), experts=True)
    assert messages(block) == {"all_to_all": [2 * S * 2 * H] * 2}
    assert block.expert_parameters == 2 * 3 * H * 96  # two of eight experts
    products = [op.kernel.products for op in block.forward if "experts_up" in op.name]
    assert products == [(Product(2, S * 2 // 2, 2 * 96, H),)]


def test_context_parallelism_sends_keys_and_values_around_a_ring() -> None:
    block = make_block(LLAMA, Layout(cp=4), S, Storage(), experts=False)
    whole_keys_and_values = 2 * S * 4 * (8 + 8)
    assert messages(block) == {"send_recv": [whole_keys_and_values]}
    attention = next(op for op in block.forward if op.op_type == "flash_attention")
    assert attention.kernel.flops == 2 * A * (S // 4) * S * 16 / 2


def test_embedding_and_loss_are_parallel_over_the_vocabulary() -> None:
    """Four devices share 1,024 rows, as the 1,000 tokens are padded to a multiple of 4 * 128."""
    layout = Layout(tp=4)
    embedding = make_embedding(GPT, layout, S)
    assert embedding.parameters == 256 * H + S * H
    assert messages(embedding) == {"all_reduce": [2 * S * H]}
    head = make_head(GPT, layout, S, Storage())
    assert forward_flops(head) == 2 * S * H * 256
    assert messages(head) == {"all_reduce": [3 * 4 * S]}  # largest logit, sum of exponentials, the target's logit


def test_sizes_of_configurations_under_their_many_names() -> None:
    gpt2 = read_transformer(
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    )
    assert gpt2.parameters == 124_439_808
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }
    assert read_transformer(llama).parameters == 8_030_261_248
    mixtral = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    assert read_transformer(mixtral).parameters == 46_702_792_704
    dbrx = {
        "model_type": "dbrx",
        "d_model": 6144,
        "n_layers": 40,
        "n_heads": 48,
        "vocab_size": 100352,
        "max_seq_len": 32768,
    }
    dbrx |= {"attn_config": {"model_type": "", "kv_n_heads": 8}, "tie_word_embeddings": False}
    dbrx |= {"ffn_config": {"hidden_size": 2048, "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}
    assert read_transformer(dbrx).parameters == 131_596_523_520
    assert (read_transformer(dbrx).experts_per_token, read_transformer(dbrx).kv_heads) == (4, 8)
    bert = {
        "model_type": "bert",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    }
    assert not read_transformer(bert).causal
    bloom = {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880}
    assert read_transformer(bloom).parameters == pytest.approx(176_247_271_424, rel=1e-4)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.* is a model of several parts")
def test_a_part_of_a_model_has_the_defaults_of_its_class() -> None:
    """Gemma 3 4B: its file says neither heads, nor their size, nor the vocabulary: 8 and 4 heads of 256, 262,208 tokens."""
    pytest.importorskip("transformers")
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    gemma = read_transformer({"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}})
    layer = 2560 * (8 + 2 * 4 + 8) * 256 + 3 * 2560 * 10240 + 2 * 2560
    assert gemma.parameters == 34 * layer + 262208 * 2560 + 2560
    assert (gemma.window, gemma.windowed_layers) == (1024, 29)  # every sixth layer attends to all


def test_distilbert_names_its_sizes_differently() -> None:
    """Tables of 100 tokens and 32 positions, four projections, two layers of 128 columns, and three norms."""
    fields = {"model_type": "distilbert", "dim": 64, "n_layers": 1, "n_heads": 4, "hidden_dim": 128, "vocab_size": 100}
    parameters = 132 * 64 + 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64 + 3 * 2 * 64
    assert read_transformer({**fields, "max_position_embeddings": 32}).parameters == parameters


def test_rows_of_odd_length_slow_a_product_down() -> None:
    """Of 50,257 columns as of no others: the number of tokens is not the length of a row."""
    a100, efficiency = Hardware.named("a100"), Efficiency(misaligned_share=0.5)
    layout = Layout(micro_batch=3)

    def logits_us(vocabulary: int, sequence_length: int) -> list[float]:
        model = Transformer(hidden=1024, layers=1, heads=8, vocabulary=vocabulary)
        head = make_head(model, layout, sequence_length, Storage())
        return [
            rank_kernel_us(op, a100, efficiency) for op in (*head.forward, *head.backward) if op.op_type == "matmul"
        ]

    aligned, odd, odd_tokens = logits_us(50304, 1024), logits_us(50257, 1024), logits_us(50304, 1023)
    assert odd == pytest.approx([2 * us for us in aligned], rel=0.06)  # but for the start of a tile
    assert odd_tokens == pytest.approx(aligned, rel=0.05)


def test_heads_of_odd_size_slow_scores_down() -> None:
    a100, efficiency = Hardware.named("a100"), Efficiency(misaligned_share=0.5)

    def scores_us(head_size: int) -> float:
        model = Transformer(hidden=4096, layers=1, heads=32, head_size=head_size, vocabulary=100)
        block = make_block(model, Layout(micro_batch=4), 2048, EAGER, experts=False)
        return next(rank_kernel_us(op, a100, efficiency) for op in block.forward if op.name == "block/scores")

    assert scores_us(124) > 1.5 * scores_us(128)


def test_checkpoints_of_fsdp_end_with_the_last_input_that_is_needed() -> None:
    """PyTorch computes a block again up to the input of its last product; Megatron-LM all of it."""
    cluster = Cluster.uniform(2, kind="a100")
    efficiency = Efficiency(host_us=0.0, backward_host_us=0.0)
    block = make_block(GPT, Layout(), S, Storage(), experts=False)

    def backward_us(layout: Layout, recompute: str) -> float:
        costs = RankCosts(layout, Hardware.named("a100"), efficiency, Collectives(cluster))
        return costs.costs_of(block, recompute).backward.us

    whole_block, without_last_product = (backward_us(Layout(dp=2, zero=zero), "full") for zero in (1, 3))
    last = next(op for op in block.forward if op.name == "block/down")
    skipped = block.forward[block.forward.index(last) :]
    us = sum(rank_kernel_us(op, Hardware.named("a100"), efficiency) for op in skipped)
    assert whole_block - without_last_product == pytest.approx(us)


def test_configurations_without_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no field 'hidden_size' or 'n_embd'"):
        read_transformer({"model_type": "gpt2"})
    with pytest.raises(InvalidInput, match="heads of the configuration is 'many'"):
        read_transformer({"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": "many", "vocab_size": 8})
    with pytest.raises(FormatError, match="no such file"):
        read_transformer("hf:nothing.json")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(FormatError, match="not JSON"):
        read_transformer(tmp_path)
    with pytest.raises(InvalidInput, match="model is int; it must be a transformer's configuration"):
        read_transformer(3)


def test_a_ring_carries_gradients_of_keys_and_values_back() -> None:
    block = make_block(LLAMA, Layout(cp=4), S, Storage(), experts=False)
    keys_and_values = 2 * S * 4 * (8 + 8)
    gradient_messages = [op.message_bytes for op in block.backward if op.op_type == "send_recv"]
    assert gradient_messages == [2 * keys_and_values]
    assert [op.op_type for op in block.backward if "attention" in op.name] == ["send_recv", "flash_attention_backward"]


def test_attention_that_keeps_its_scores_gathers_keys_and_values() -> None:
    block = make_block(LLAMA, Layout(cp=4), S, EAGER, experts=False)
    keys_and_values = 2 * S * 4 * (8 + 8)
    assert messages(block) == {"all_gather": [keys_and_values]}
    assert [op.message_bytes for op in block.backward if op.axis == "cp"] == [keys_and_values]
    assert [op.op_type for op in block.backward if op.axis == "cp"] == ["reduce_scatter"]


def test_experts_under_tensor_parallelism_alone_add_up_what_every_token_gets() -> None:
    """Every rank has all tokens, two rows for each of them; with sequence parallelism it has a share."""
    rows = 2 * S * 2 * H
    undivided = make_block(MIXTRAL, Layout(tp=2, dp=2, ep=2), S, Storage(), experts=True)
    attention = 2 * S * H
    assert messages(undivided) == {"all_reduce": [attention, rows], "all_to_all": [rows, rows]}
    layout = Layout(tp=2, dp=2, ep=2, sequence_parallel=True)
    divided = make_block(MIXTRAL, layout, S, Storage(), experts=True)
    assert messages(divided) == {
        "all_gather": [attention, rows],
        "reduce_scatter": [attention, rows],
        "all_to_all": [rows // 2, rows // 2],
    }


def _ring_times(ring_us: float) -> PartTimes:
    """Of attention over a ring of four devices, on a device where attention lasts 100 us."""
    ops = [
        RankOp("block/attention/send_recv", "send_recv", axis="cp", message_bytes=1),
        RankOp("block/attention", "flash_attention", kernel=Kernel(moved_bytes=100e-6 * 2.039e12)),
    ]
    free_host = Efficiency(bandwidth_share=1.0, host_us=0.0, collective_host_us=0.0, drift_us=0.0)
    return part_times(ops, Hardware.named("a100"), free_host, lambda op: ring_us, lambda op: 4)


@pytest.mark.parametrize(("ring_us", "exposed_us"), [(60.0, 0.0), (75.0, 0.0), (90.0, 15.0), (300.0, 225.0)])
def test_a_ring_hides_behind_all_rounds_of_attention_but_the_last(ring_us: float, exposed_us: float) -> None:
    """Three transfers arrive while three of four rounds of 25 us compute: 75 us of the ring can be hidden."""
    times = _ring_times(ring_us)
    assert times.us == pytest.approx(100.0 + exposed_us)
    assert times.compute_us == pytest.approx(100.0)
    assert times.collective_us == ring_us


def test_devices_wait_for_the_last_launch_of_an_awaited_collective() -> None:
    """The host takes 40 us, for which the device waits before the 100 us; 0.3 * 40 us are waited for in any case."""
    host = Efficiency(host_us=0.0, collective_host_us=40.0, drift_us=0.0)
    for awaited, us in ((True, 152.0), (False, 112.0)):
        op = RankOp("block/all_reduce", "all_reduce", axis="tp", message_bytes=8, is_awaited=awaited)
        assert part_times([op], Hardware.named("a100"), host, lambda op: 100.0, lambda op: 2).us == pytest.approx(us)


@pytest.mark.parametrize(
    ("axis", "overlap_tensor", "us"), [("tp", False, 220.0), ("tp", True, 160.0), ("ep", True, 220.0)]
)
def test_gradients_of_weights_hide_collectives_of_tensor_parallelism(
    axis: str, overlap_tensor: bool, us: float
) -> None:
    """50 us, a collective of 60, a gradient of 100 and a norm of 10, which waits for both: 50 + 100 + 10 where they overlap."""

    def kernel(phase: str, us: float) -> RankOp:
        return RankOp("block/op", "norm", phase, kernel=Kernel(moved_bytes=us * 2.039e6))

    reduction = RankOp("block/all_reduce", "all_reduce", INPUT, axis=axis, message_bytes=8)
    ops = [kernel(INPUT, 50.0), reduction, kernel(WEIGHT, 100.0), kernel(INPUT, 10.0)]
    host = Efficiency(bandwidth_share=1.0, backward_host_us=0.0, collective_host_us=0.0, drift_us=0.0)
    times = part_times(ops, Hardware.named("a100"), host, lambda op: 60.0, lambda op: 2, overlap_tensor)
    assert times.us == pytest.approx(us)


@pytest.mark.parametrize(
    ("collective", "collective_us", "whole_us", "us"),
    [
        ("all_gather", 60.0, 160.0, 100.0),  # three of four pieces of 25 us hide up to 75 us
        ("all_gather", 90.0, 190.0, 115.0),
        ("reduce_scatter", 60.0, 160.0, 100.0),
        ("reduce_scatter", 90.0, 190.0, 115.0),
        ("all_reduce", 60.0, 160.0, 160.0),  # of the whole tensor, which no piece has
    ],
)
def test_pieces_of_products_hide_collectives_of_sequence_parallelism(
    collective: str, collective_us: float, whole_us: float, us: float
) -> None:
    product = RankOp("block/up", "matmul", kernel=Kernel(moved_bytes=100e-6 * 2.039e12))
    exchange = RankOp(f"block/{collective}", collective, axis="tp", message_bytes=8)
    ops = [exchange, product] if collective == "all_gather" else [product, exchange]
    free_host = Efficiency(bandwidth_share=1.0, host_us=0.0, collective_host_us=0.0, drift_us=0.0)
    for in_pieces, expected_us in ((False, whole_us), (True, us)):
        times = part_times(
            ops, Hardware.named("a100"), free_host, lambda op: collective_us, lambda op: 4, overlap_products=in_pieces
        )
        assert times.us == pytest.approx(expected_us)
        assert (times.compute_us, times.collective_us) == (pytest.approx(100.0), collective_us)


def test_a_norm_hides_no_collective_of_sequence_parallelism() -> None:
    norm = RankOp("block/norm", "norm", kernel=Kernel(moved_bytes=100e-6 * 2.039e12))
    gather = RankOp("block/all_gather", "all_gather", axis="tp", message_bytes=8)
    free_host = Efficiency(bandwidth_share=1.0, host_us=0.0, collective_host_us=0.0, drift_us=0.0)
    times = part_times(
        [gather, norm], Hardware.named("a100"), free_host, lambda op: 60.0, lambda op: 4, overlap_products=True
    )
    assert times.us == pytest.approx(160.0)


def test_a_host_that_gains_time_in_one_pass_spends_it_in_the_other() -> None:
    forward = PartTimes(us=50.0, device_us=10.0, compute_us=10.0, collective_us=0.0, input_us=50.0, host_us=50.0)
    backward = PartTimes(us=90.0, device_us=90.0, compute_us=90.0, collective_us=0.0, input_us=60.0, host_us=0.0)
    shared = share_host(forward, backward)
    assert sum(times.us for times in shared) == pytest.approx(100.0 + 0.3 * 50.0)
    assert shared[1].us == 90.0 and shared[1].input_us == 60.0


@pytest.mark.parametrize("kind", ["t5", "mamba", "jamba", "albert"])
def test_models_that_are_no_stack_of_equal_blocks_are_refused(kind: str) -> None:
    fields = {"model_type": kind, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    with pytest.raises(InvalidInput, match="layouts are for models of one stack of equal layers"):
        read_transformer(fields)


def test_experts_in_every_second_layer_are_refused() -> None:
    fields = {"model_type": "qwen2_moe", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    fields |= {"vocab_size": 8, "intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
    assert read_transformer(fields).experts == 4
    with pytest.raises(InvalidInput, match="decoder_sparse_step of the configuration is 2"):
        read_transformer({**fields, "decoder_sparse_step": 2})
    with pytest.raises(InvalidInput, match=r"mlp_only_layers of the configuration is \[1\]"):
        read_transformer({**fields, "mlp_only_layers": [1]})


def test_shared_experts_have_several_names() -> None:
    fields = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    granite = {"model_type": "granitemoeshared", "num_local_experts": 4, "intermediate_size": 32}
    assert read_transformer({**fields, **granite, "shared_intermediate_size": 48}).shared_feed_forward == 48
    ernie = {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 3, "moe_num_shared_experts": 2}
    ernie |= {"intermediate_size": 128, "moe_intermediate_size": 16, "moe_layer_start_index": 1, "hidden_act": "silu"}
    model = read_transformer({**fields, **ernie, "moe_layer_end_index": 1})
    assert (model.experts, model.experts_per_token, model.shared_feed_forward, model.dense_layers) == (4, 3, 32, 1)
    with pytest.raises(InvalidInput, match="moe_layer_end_index of the configuration is 0"):
        read_transformer({**fields, **ernie, "moe_layer_end_index": 0})


def test_windows_of_attention_leave_work_out() -> None:
    """Of six layers with a window of 8 of 32 tokens, the sixth sees all: 5 times 1/4 * (1 - 1/8), and a half."""
    gemma = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    gemma |= {"intermediate_size": 96, "vocab_size": 100, "sliding_window": 8}
    model, without_window = read_transformer(gemma), read_transformer({**gemma, "sliding_window": None})
    assert (model.window, model.windowed_layers, without_window.windowed_layers) == (8, 5, 0)
    assert model.attended_share(32) == pytest.approx((5 * 0.25 * 0.875 + 0.5) / 6)

    def attention_flops(model: Transformer, length: int) -> float:
        block = make_block(model, Layout(), length, Storage(), experts=False)
        return sum(op.kernel.flops for op in block.forward if op.op_type == "flash_attention")

    assert attention_flops(model, 32) / attention_flops(without_window, 32) == pytest.approx(
        2 * model.attended_share(32)
    )
    assert attention_flops(model, 8) == attention_flops(without_window, 8)
    named = {**gemma, "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 2}
    assert read_transformer(named).windowed_layers == 2
    assert read_transformer({**gemma, "model_type": "exaone4", "sliding_window_pattern": "LLLG"}).windowed_layers == 5
    with pytest.raises(InvalidInput, match="layer_types of the configuration has 'linear_attention'"):
        read_transformer({**gemma, "layer_types": ["full_attention", "linear_attention"]})


def test_gemma_shares_the_table_of_its_embedding() -> None:
    gemma = {"model_type": "gemma", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    gemma |= {"head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000}
    assert read_transformer(gemma).parameters == 8_537_680_896


def test_tables_of_another_width_are_projected() -> None:
    """OPT-350m: tables of 512 for a model of 1024, and two projections without biases."""
    fields = {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    fields |= {"vocab_size": 50272, "ffn_dim": 4096, "max_position_embeddings": 2048, "word_embed_proj_dim": 512}
    opt = read_transformer(fields)
    blocks = 24 * (4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 2 * 2 * 1024)
    assert opt.parameters == 50272 * 512 + 2050 * 1024 + 2 * 512 * 1024 + blocks + 2 * 1024
    embedding, head = make_embedding(opt, Layout(), 64), make_head(opt, Layout(), 64, Storage())
    assert embedding.parameters == 50272 * 512 + 2050 * 1024 + 512 * 1024
    assert forward_flops(embedding) == 2 * 64 * 512 * 1024
    assert forward_flops(head) == 2 * 64 * 512 * (1024 + 50272)
    assert head.parameters == 512 * 1024 + 2 * 1024


def test_falcon_has_one_head_of_keys_and_rotary_models_no_table_of_positions() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    falcon |= {"vocab_size": 100, "num_kv_heads": 4, "multi_query": True, "bias": False}
    assert read_transformer(falcon).kv_heads == 1
    assert read_transformer({**falcon, "new_decoder_architecture": True}).kv_heads == 4
    unknown = {**falcon, "model_type": "gpt2", "max_position_embeddings": 64, "rope_theta": 1e4}
    assert read_transformer(unknown).positions == 0
    with pytest.raises(
        InvalidInput, match="tie_word_embeddings of the configuration is 'false'; it must be True or False"
    ):
        read_transformer({**falcon, "tie_word_embeddings": "false"})
    with pytest.raises(InvalidInput, match="n_shared_experts of the configuration is '2'"):
        read_transformer({**falcon, "n_shared_experts": "2"})


SIZES = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 5000}


def parameters_in_transformers(config: object) -> int:
    """The parameters that transformers' own model of this configuration has."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind = type(config)
    maker = AutoModelForCausalLM if kind in AutoModelForCausalLM._model_mapping else AutoModelForMaskedLM
    with torch.device("meta"):
        return maker.from_config(config).num_parameters()


@pytest.mark.torch
@pytest.mark.slow
def test_parameters_are_those_of_transformers() -> None:
    """Of all fields of a configuration, and of its sizes alone: the type says whether layers are gated and tables are shared."""
    from transformers import CONFIG_MAPPING

    inner = {"intermediate_size": 1500, "num_key_value_heads": 8}
    for kind, sizes in {
        **dict.fromkeys(("arcee", "apertus", "stablelm", "phi", "ernie4_5", "qwen2", "jais2"), inner),
        "vaultgemma": {**inner, "head_dim": 64},
        "bitnet": inner,
        "falcon": {"multi_query": True},
        "gptj": {},
        "codegen": {},
        "ctrl": {"dff": 1500},
        "electra": {"intermediate_size": 1500, "embedding_size": 128},
        "opt": {"ffn_dim": 1500, "word_embed_proj_dim": 128},
        "ernie4_5_moe": {
            **inner,
            "moe_intermediate_size": 256,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_layer_end_index": 1,
        },
    }.items():
        fields = {**SIZES, "max_position_embeddings": 64, **sizes}
        config = CONFIG_MAPPING[kind](**fields)
        expected = pytest.approx(parameters_in_transformers(config), rel=0.01)
        assert read_transformer(config.to_dict()).parameters == expected, kind
        if kind != "ernie4_5_moe":  # whose numbers of shared experts and of first layers are defaults
            assert read_transformer({"model_type": kind, **fields}).parameters == expected, kind


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "experts"),
    [
        ("exaone_moe", {"num_experts": 8, "moe_intermediate_size": 128}),
        ("aria_text", {"moe_num_experts": 8}),
        ("hy_v3", {"num_experts": 8, "moe_intermediate_size": 128}),
        ("glm4_moe_lite", {"n_routed_experts": 8, "moe_intermediate_size": 128}),
    ],
)
def test_types_that_were_not_checked_are_compared_with_transformers(kind: str, experts: dict[str, int]) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind](**SIZES, intermediate_size=1024, num_key_value_heads=8, **experts)
    model = read_transformer(config)  # a warning is an error
    assert model.parameters == pytest.approx(parameters_in_transformers(config), rel=0.01)
    assert (model.experts, model.shared_feed_forward > 0) == (8, True)


@pytest.mark.torch
@pytest.mark.slow
def test_models_with_other_layers_than_their_sizes_say_are_refused() -> None:
    """JetMoE has experts of attention, too; XLNet has a third table per layer."""
    from transformers import CONFIG_MAPPING

    jetmoe = CONFIG_MAPPING["jetmoe"](hidden_size=512, num_hidden_layers=2, num_key_value_heads=4, vocab_size=500)
    count = parameters_in_transformers(jetmoe)
    with pytest.raises(
        InvalidInput, match=rf"the model has {count:,} parameters, and the sizes in its configuration make"
    ):
        read_transformer(jetmoe)
    xlnet = CONFIG_MAPPING["xlnet"](d_model=512, n_layer=2, n_head=8, d_inner=2048, vocab_size=5000)
    count = parameters_in_transformers(xlnet)
    with pytest.warns(
        UserWarning, match=rf"the model has {count:,} parameters, and the sizes in its configuration make"
    ):
        read_transformer(xlnet)
    incomplete = {**SIZES, "model_type": "qwen3_moe", "intermediate_size": 64}
    with pytest.raises(
        InvalidInput, match=r"has no field .num_local_experts. or .*, which models of type 'qwen3_moe' have"
    ):
        read_transformer(incomplete)
    with pytest.warns(UserWarning, match="no field 'num_experts_per_tok'; 2 experts per token are assumed"):
        assert read_transformer({**incomplete, "num_experts": 8}).experts_per_token == 2
    layers = ["dense", "sparse", "dense"]
    with pytest.raises(InvalidInput, match="mlp_layer_types of the configuration has 'dense' behind 'sparse'"):
        read_transformer({**SIZES, "intermediate_size": 64, "num_experts": 4, "mlp_layer_types": layers})


def test_sizes_that_nobody_checked_come_with_a_warning() -> None:
    fields = {
        "model_type": "shire",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 8,
    }
    with pytest.warns(UserWarning, match="'shire' of the configuration is not among those whose sizes were checked"):
        read_transformer(fields)
    with pytest.warns(UserWarning, match="the layouts are those of its text part alone"):
        read_transformer({"model_type": "llava", "text_config": {**fields, "model_type": "gpt2"}})

    class Model:
        config = {**fields, "model_type": "gpt2"}
        share = 1.05

        def num_parameters(self) -> int:
            return int(self.share * read_transformer(self.config).parameters)

    model = Model()
    with pytest.warns(UserWarning, match="the model has .* parameters, and the sizes in its configuration make"):
        read_transformer(model)
    model.share = 2
    with pytest.raises(InvalidInput, match="in a stack of equal layers; layouts are for such stacks"):
        read_transformer(model)
