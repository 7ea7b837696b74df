"""What a rank computes, sends and keeps: counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from baechi_lab.errors import FormatError, InvalidInput
from baechi_lab.graph.layout import Layout
from baechi_lab.parallel.rank_ops import WEIGHT, Part, Storage, make_block, make_embedding, make_head
from baechi_lab.parallel.transformer import Transformer, read_transformer
from baechi_lab.profilers.work import Product

H, A, S, F, V = 64, 8, 32, 256, 1000
GPT = Transformer(hidden=H, layers=4, heads=A, vocabulary=V, positions=S)
LLAMA = Transformer(
    hidden=H, layers=4, heads=A, kv_heads=4, feed_forward=96, vocabulary=V, gated=True, bias=False, tied=False
)
MIXTRAL = Transformer(
    hidden=H, layers=4, heads=A, feed_forward=96, vocabulary=V, gated=True, bias=False, experts=8, experts_per_token=2
)
EAGER = Storage(flash_attention=False)


def forward_flops(part: Part) -> float:
    return sum(op.kernel.flops for op in part.forward)


def backward_flops(part: Part) -> float:
    return sum(op.kernel.flops for op in part.backward)


def messages(part: Part) -> dict[str, list[int]]:
    """Kind -> bytes of collectives of the forward pass."""
    out: dict[str, list[int]] = {}
    for op in part.forward:
        if op.axis:
            out.setdefault(op.op_type, []).append(op.message_bytes)
    return out


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_block_of_gpt_is_divided_by_tensor_parallelism(tp: int) -> None:
    b = 3
    part = make_block(GPT, Layout(tp=tp, micro_batch=b), S, EAGER, experts=False)
    products = 2 * b * S * H * (3 * H + H + F + F)
    scores = 2 * 2 * b * S * S * H
    assert forward_flops(part) == (products + scores) / tp
    assert backward_flops(part) == 2 * forward_flops(part)
    assert messages(part) == ({"all_reduce": [2 * b * S * H] * 2} if tp > 1 else {})
    weights = (3 * H * H + 3 * H) // tp + H * H // tp + H + (H * F + F) // tp + F * H // tp + H
    assert part.parameters == weights + 4 * H


def test_without_tensor_parallelism_a_block_has_the_parameters_of_the_model() -> None:
    for model in (GPT, LLAMA):
        part = make_block(model, Layout(), S, Storage(), experts=False)
        assert part.parameters == model.dense_layer_parameters
    part = make_block(MIXTRAL, Layout(), S, Storage(), experts=True)
    assert part.parameters + part.expert_parameters == MIXTRAL.expert_layer_parameters


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
    part = make_block(dropped, Layout(), S, EAGER, experts=False)
    expected = S * H * 34 + 5 * A * S * S
    assert part.saved_bytes == expected
    divided = make_block(dropped, Layout(tp=4, sequence_parallel=True), S, EAGER, experts=False)
    assert divided.saved_bytes == expected / 4


def test_sequence_parallelism_gathers_and_scatters_what_was_reduced() -> None:
    part = make_block(GPT, Layout(tp=2, sequence_parallel=True), S, Storage(), experts=False)
    whole = 2 * S * H
    assert messages(part) == {"all_gather": [whole] * 2, "reduce_scatter": [whole] * 2}
    backward = [op.op_type for op in part.backward if op.axis]
    assert backward.count("all_gather") == 4  # of the gradient, and of the input for the gradient of the weight
    assert backward.count("reduce_scatter") == 2
    assert part.output_bytes == whole // 2


def test_gradients_of_weights_overlap_with_the_all_reduce_of_the_input_s_gradient() -> None:
    part = make_block(GPT, Layout(tp=2), S, Storage(), experts=False)
    assert sum(op.op_type == "all_reduce" for op in part.backward) == 2
    for k, op in enumerate(part.backward):
        if op.op_type == "all_reduce":
            assert part.backward[k + 1].phase == WEIGHT


def test_experts_are_reached_by_all_to_all() -> None:
    part = make_block(MIXTRAL, Layout(dp=4, ep=4), S, Storage(), experts=True)
    assert messages(part) == {"all_to_all": [2 * S * 2 * H] * 2}
    assert part.expert_parameters == 2 * 3 * H * 96  # two of eight experts
    products = [op.kernel.products for op in part.forward if "experts_up" in op.name]
    assert products == [(Product(2, S * 2 // 2, 2 * 96, H),)]


def test_context_parallelism_sends_keys_and_values_around_a_ring() -> None:
    part = make_block(LLAMA, Layout(cp=4), S, Storage(), experts=False)
    whole_keys_and_values = 2 * S * 4 * (8 + 8)
    assert messages(part) == {"send_recv": [whole_keys_and_values]}
    attention = next(op for op in part.forward if op.op_type == "flash_attention")
    assert attention.kernel.flops == 2 * A * (S // 4) * S * 16 / 2


def test_embedding_and_loss_are_parallel_over_the_vocabulary() -> None:
    layout = Layout(tp=4)
    embedding = make_embedding(GPT, layout, S)
    assert embedding.parameters == V // 4 * H + S * H
    assert messages(embedding) == {"all_reduce": [2 * S * H]}
    head = make_head(GPT, layout, S, Storage())
    assert forward_flops(head) == 2 * S * H * V / 4
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
    bert = {
        "model_type": "bert",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    }
    assert not read_transformer(bert).causal


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
