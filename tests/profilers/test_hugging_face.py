"""Hugging Face models by configuration: six architectures written by hand, a large one, and bad configurations."""

import importlib.util
import json
import os
import socket
import sys
import threading
import warnings
from itertools import product
from math import prod

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from fewer import fast, slow  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.cli import main  # noqa: E402
from baechi_lab.profilers.torch.kernels import kernel_of  # noqa: E402
from baechi_lab.profilers.torch.layer_estimate import estimate_layers  # noqa: E402
from baechi_lab.profilers.torch.network_guard import offline  # noqa: E402
from baechi_lab.profilers.torch.quantization import stored_bytes  # noqa: E402
from baechi_lab.profilers.torch.unused_parameters import UnusedParameters  # noqa: E402

H, FF, N, HEADS, V, B, S = 64, 128, 2, 4, 300, 3, 16
ROTARY = {
    "hidden_size": H,
    "intermediate_size": FF,
    "num_hidden_layers": N,
    "num_attention_heads": HEADS,
    "vocab_size": V,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
}
BASE = {**ROTARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **ROTARY},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8, **ROTARY},
    "mixtral": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, **ROTARY},
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": H,
        "n_layer": N,
        "n_head": HEADS,
        "vocab_size": V,
        "n_positions": 64,
    },
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "hidden_size": H,
        "intermediate_size": FF,
        "num_hidden_layers": N,
        "num_attention_heads": HEADS,
        "vocab_size": V,
        "max_position_embeddings": 64,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": H,
        "d_ff": FF,
        "d_kv": 16,
        "num_layers": N,
        "num_heads": HEADS,
        "vocab_size": V,
    },
}
ATTENTION = 2 * 2 * B * S * S * H
"""FLOPs of scores and values of one layer, forward."""


def forward_flops(name, layers):
    """Two FLOPs per weight of a product and token, and attention; hand arithmetic per architecture."""
    gated = (
        2 * H * H + 2 * H * H // 2 + 3 * H * FF
    )  # queries and output, two of four key and value heads, gate, up, down
    plain = 4 * H * H + 2 * H * FF
    tokens = 2 * B * S
    return {
        "llama": tokens * (layers * gated + H * V) + layers * ATTENTION,
        "mixtral": tokens * (layers * (gated + 3 * H * FF + 4 * H) + H * V)
        + layers * ATTENTION,  # two experts per token, router
        "gpt2": tokens * (layers * 12 * H * H + H * V) + layers * ATTENTION,
        "bert": tokens * layers * plain + 2 * B * (H * H + 2 * H) + layers * ATTENTION,
        "t5": tokens * (layers * plain + layers * (plain + 4 * H * H) + H * V) + 3 * layers * ATTENTION,
    }[name]


@pytest.mark.parametrize("name", slow([c for c in CONFIGS if c != "mistral"], "llama", "mixtral", "bert", "t5"))
def test_architectures_have_the_flops_and_bytes_of_hand_arithmetic(name):
    """FLOPs within 1 % of hand arithmetic, bytes exact: bf16 weights and gradients, two states of Adam."""
    layers = N if name == "gpt2" else 1
    config = CONFIGS[name] | {
        "n_layer" if name == "gpt2" else "num_layers" if name == "t5" else "num_hidden_layers": layers
    }
    model, inputs = bl.torch.hugging_face(config, batch_size=B, sequence_length=S)
    assert all(p.is_meta for p in model.parameters()) and model.training
    forward = {key: value for key, value in inputs.items() if key != "labels"}
    assert estimate_layers(model, forward, mode="inference").flops == pytest.approx(
        forward_flops(name, layers), rel=0.01
    )
    estimate = estimate_layers(model, inputs, dtype="bf16")
    attention = {"t5": 3}.get(name, 1) * layers * ATTENTION
    fused = 0 if name == "t5" else 1 / 2  # T5 adds a bias to its scores, in products of their own
    expected_flops = 3 * (forward_flops(name, layers) - attention) + attention * (3 + fused)
    assert estimate.flops == pytest.approx(expected_flops, rel=0.01)
    graph = bl.torch.profile(model, inputs, hardware=["h100", "a100"], dtype="bf16", optimizer="adamw")
    parameters = sum(p.numel() for p in model.parameters())
    saved_bytes = sum(
        b.numel() * (2 if b.is_floating_point() else 8) for b in model.buffers()
    )  # those read through a view too
    assert graph.persistent_bytes.sum() == parameters * 2 * 4 + saved_bytes
    cluster = bl.Cluster.uniform(2, kind="H100", link="nvlink")
    assert bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf")).makespan_us > 0


@pytest.mark.slow
def test_operators_of_a_model():
    model, inputs = bl.torch.hugging_face(CONFIGS["llama"], batch_size=B, sequence_length=S)
    graph = bl.torch.profile(model, inputs, hardware="h100", granularity="operator", optimizer="sgd")
    assert graph.n > 200 and sum(t == "Update" for t in graph.op_types) == len(list(model.parameters()))


@pytest.mark.slow
def test_a_model_of_images_has_the_flops_of_hand_arithmetic():
    config = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": H,
        "intermediate_size": FF,
        "num_hidden_layers": N,
        "num_attention_heads": HEADS,
        "image_size": 32,
        "patch_size": 8,
        "num_channels": 3,
    }
    model, inputs = bl.torch.hugging_face(config, batch_size=2)
    assert tuple(inputs["pixel_values"].shape) == (2, 3, 32, 32)
    assert bl.torch.profile(model, inputs, hardware="l4").n > 20


TEXT = {**ROTARY, "model_type": "llama", "num_hidden_layers": 1}
VISION = {
    "hidden_size": H,
    "intermediate_size": FF,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 8,
}
ENCODER = {"encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": FF}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": FF}
SEVERAL = {
    "llava": (
        {
            "model_type": "llava",
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": TEXT,
            "vision_config": {**VISION, "model_type": "clip_vision_model"},
            "image_token_index": V - 1,
        },
        {"input_ids": (2, S), "labels": (2, S), "pixel_values": (2, 3, 32, 32)},
        "vision_tower",
    ),
    "clip": (
        {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "text_config": {**TEXT, "model_type": "clip_text_model"},
            "vision_config": VISION,
        },
        {"input_ids": (2, S), "pixel_values": (2, 3, 32, 32)},
        "vision_model",
    ),
    "whisper": (
        {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "d_model": H,
            **ENCODER,
            **DECODER,
            "vocab_size": V,
            "max_source_positions": 10,
            "max_target_positions": 64,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "num_hidden_layers": 1,
        },
        {"input_features": (2, 8, 20), "decoder_input_ids": (2, S), "labels": (2, S)},
        "encoder",
    ),
    "wav2vec2": (
        {
            "model_type": "wav2vec2",
            "architectures": ["Wav2Vec2ForCTC"],
            **ROTARY,
            "conv_dim": [32, 32],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        {"input_values": (2, 5 * 2 * (S - 1) + 5 * 2 + 10)},
        "feature_extractor",
    ),
}


@pytest.mark.parametrize("name", fast(SEVERAL, 0))
def test_inputs_of_images_and_sound(name):
    """All that a model takes is given: Llava was estimated without its images, Whisper was refused."""
    config, shapes, module_name = SEVERAL[name]
    model, inputs = bl.torch.hugging_face(config, batch_size=2, sequence_length=S)
    assert {k: tuple(v.shape) for k, v in inputs.items() if k != "use_cache"} == shapes
    graph = bl.torch.profile(model, inputs, hardware="h100", optimizer="sgd")
    assert any(module_name in op for op in graph.names)


@pytest.mark.slow
def test_a_part_that_does_not_run_is_named():
    """Llava with text only: its vision tower had been left out silently. Experts without tokens are no such part."""
    model, inputs = bl.torch.hugging_face(SEVERAL["llava"][0], sequence_length=S)
    unread = sum(p.numel() for n, p in model.named_parameters() if "vision_tower" in n or "projector" in n)
    share = unread / sum(p.numel() for p in model.parameters())
    text = {k: v for k, v in inputs.items() if k != "pixel_values"}
    for granularity in ("layer", "operator"):
        with pytest.warns(
            UnusedParameters, match=f"^{share:.0%} of the parameters of Llava.* 'model.vision_tower', which"
        ):
            bl.torch.profile(model, text, hardware="h100", granularity=granularity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bl.torch.profile(model, inputs, hardware="h100")
        model, inputs = bl.torch.hugging_face(CONFIGS["mixtral"] | {"num_hidden_layers": 1}, sequence_length=1)
        bl.torch.profile(model, inputs, hardware="h100")
    experts = torch.nn.ModuleDict({"experts": torch.nn.Linear(9, 9), "router": torch.nn.Linear(9, 1)})
    experts.forward = lambda x: experts["router"](x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bl.torch.profile(experts, torch.ones(1, 9), hardware="h100")


def test_fewer_tokens_than_experts():
    """Two tokens read the weights of two experts, not of all eight."""
    rows, weights = torch.empty(2, H, device="meta"), torch.empty(8, H, FF, device="meta")
    group_ends, out = torch.empty(8, dtype=torch.int32, device="meta"), torch.empty(2, FF, device="meta")
    kernel = kernel_of(torch.ops.aten._grouped_mm.default, (rows, weights, group_ends), {}, out)
    assert kernel.moved_bytes == 4 * (2 * H + 2 * H * FF + 8 + 2 * FF) and kernel.flops == 2 * 2 * H * FF


FIT = {
    "internvl": (
        {
            "model_type": "internvl",
            "architectures": ["InternVLForConditionalGeneration"],
            "image_token_id": V - 1,
            "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": {**VISION, "model_type": "internvl_vision"},
        },
        {"input_ids": (2, S), "labels": (2, S), "pixel_values": (2, 3, 32, 32)},
    ),
    "choices": (
        {**CONFIGS["bert"], "architectures": ["BertForMultipleChoice"]},
        {"input_ids": (2, 2, S), "labels": (2,)},
    ),
    "video": (
        {
            **VISION,
            "model_type": "videomae",
            "architectures": ["VideoMAEForVideoClassification"],
            "num_frames": 4,
            "tubelet_size": 2,
        },
        {"pixel_values": (2, 4, 3, 32, 32), "labels": (2,)},
    ),
}


@pytest.mark.parametrize("name", fast(FIT, 0))
def test_models_that_were_refused(name):
    config, shapes = FIT[name]
    model, inputs = bl.torch.hugging_face(config, batch_size=2, sequence_length=S)
    assert {k: tuple(v.shape) for k, v in inputs.items() if k != "use_cache"} == shapes
    assert bl.torch.profile(model, inputs, hardware="h100").n > 20


SMALL = {
    "hidden_size": H,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": FF,
    "vocab_size": V,
    "attn_implementation": "eager",
}
TWO_SIDES = {
    "d_model": H,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "vocab_size": V,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FF,
    "decoder_ffn_dim": FF,
    "attn_implementation": "eager",
}
LOOK = {
    "longformer": {"architectures": ["LongformerForMaskedLM"], "attention_window": [8], **SMALL},
    "led": {"architectures": ["LEDForConditionalGeneration"], "attention_window": [8], **TWO_SIDES},
    "vilt": {"architectures": ["ViltForMaskedLM"], "image_size": 32, "patch_size": 8, **SMALL},
    "flaubert": {
        "architectures": ["FlaubertWithLMHeadModel"],
        "emb_dim": H,
        "n_layers": 1,
        "n_heads": HEADS,
        "vocab_size": V,
        "n_words": V,
    },
    "data2vec-audio": {
        "architectures": ["Data2VecAudioForCTC"],
        **SMALL,
        "conv_dim": [32] * 7,
        "num_conv_pos_embedding_groups": 4,
    },
    "bart": {"architectures": ["BartForSequenceClassification"], **TWO_SIDES},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"), [*product(LOOK, ["training"]), ("longformer", "inference"), ("bart", "inference")]
)
def test_models_that_look_at_masks_and_tokens(kind, mode):
    """As many FLOPs of matrix products as PyTorch counts of a real run; all six were refused."""
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs = bl.torch.hugging_face({"model_type": kind, **LOOK[kind]}, batch_size=2, sequence_length=24)
    inputs = {k: v for k, v in inputs.items() if k != "labels" or mode == "training"}
    real = type(model)(model.config).train(mode == "training")
    data = {k: torch.zeros_like(v, device="cpu") if getattr(v, "is_meta", False) else v for k, v in inputs.items()}
    rules = {torch.ops.aten.convolution_backward: _gradients_of_convolution}
    with FlopCounterMode(display=False, custom_mapping=rules) as counted:
        out = real(**data)
        if mode == "training":
            next(iter(out.values())).sum().backward()
    assert estimate_layers(model, inputs, mode=mode).flops == counted.get_total_flops()


def _gradients_of_convolution(gradient, inputs, weight, *options, out_shape=None):
    """As many FLOPs per gradient as the convolution; PyTorch's own rule counts every group as large as all together."""
    return sum(options[-1][:2]) * 2 * prod(gradient) * prod(weight[1:])


EXPERTS = {
    "switch": {
        "model_type": "switch_transformers",
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "d_model": H,
        "d_ff": FF,
        "d_kv": 16,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": HEADS,
        "vocab_size": V,
        "num_experts": 4,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "router_dtype": "float32",
    },
    "nllb": {
        "model_type": "nllb-moe",
        "architectures": ["NllbMoeForConditionalGeneration"],
        **TWO_SIDES,
        "num_experts": 4,
        "encoder_sparse_step": 1,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 64,
    },
    "jetmoe": {
        **BASE,
        "model_type": "jetmoe",
        "architectures": ["JetMoeForCausalLM"],
        "num_key_value_heads": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "kv_channels": 16,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERTS)
def test_bug_mixtures_that_loop_over_experts_were_refused(name):
    """Products and trained bytes of a real run: with few tokens all experts are in use, however they are shared out."""
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs = bl.torch.hugging_face(EXPERTS[name], batch_size=4, sequence_length=16)
    estimate = estimate_layers(model, inputs)
    torch.manual_seed(0)
    real = type(model)(model.config).train()
    data = {k: torch.randint(4, V, v.shape) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    with FlopCounterMode(display=False) as counted:
        real(**data).loss.backward()
    if name != "jetmoe":  # whose products per expert are in two forms, of which the counter knows one
        assert estimate.flops == counted.get_total_flops()
    assert estimate.layers.parameter_gradients.sum() == sum(p.nbytes for p in real.parameters() if p.grad is not None)


@pytest.mark.slow
def test_a_router_in_another_type_than_its_model():
    """The router of Switch is converted to float32 within the forward pass."""
    model, inputs = bl.torch.hugging_face({**EXPERTS["switch"], "dtype": "bfloat16"}, sequence_length=8)
    graph = bl.torch.profile(model, inputs, hardware="h100", optimizer="adam")
    parameters, routers = (
        sum(p.numel() for n, p in model.named_parameters() if name_part in n) for name_part in ("", "router.classifier")
    )
    assert graph.persistent_bytes.sum() == 4 * (2 * parameters + 2 * routers)


ONES = torch.ones(B, S, dtype=torch.long)
PADDED = ONES.clone()
PADDED[0, -4:] = 0
PACKED = torch.cat([torch.arange(6), torch.arange(S - 6)]).expand(B, S)
MASKS = {
    "llama": (CONFIGS["llama"], {}),
    "llama, ones": (CONFIGS["llama"], {"attention_mask": ONES}),
    "llama, ones without values": (CONFIGS["llama"], {"attention_mask": ONES.to("meta")}),
    "llama, padded": (CONFIGS["llama"], {"attention_mask": PADDED}),
    "llama, packed": (CONFIGS["llama"], {"position_ids": PACKED}),
    "llama, not packed": (CONFIGS["llama"], {"position_ids": torch.arange(S).expand(B, S)}),
    "mistral, window of 8": (CONFIGS["mistral"], {}),
    "mistral, window of 32": ({**CONFIGS["mistral"], "sliding_window": 32}, {}),
    "gemma3": (
        {
            **BASE,
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        {},
    ),
    "bert": (CONFIGS["bert"], {"attention_mask": ONES}),
    "bert, padded": (CONFIGS["bert"], {"attention_mask": PADDED}),
    "t5": (CONFIGS["t5"], {"attention_mask": ONES}),
    "t5, padded": (CONFIGS["t5"], {"attention_mask": PADDED}),
    "whisper": (SEVERAL["whisper"][0], {}),
    "vit": ({**VISION, "model_type": "vit", "architectures": ["ViTForImageClassification"], "num_channels": 3}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", fast(MASKS, 1))
def test_bug_estimates_had_masks_that_the_model_does_not_make(name, monkeypatch):
    """Attention gets the arguments that it gets in a real run: whether a mask, of which shape, causal, shared heads."""
    attention, calls = torch.nn.functional.scaled_dot_product_attention, []

    def noted(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
        if attn_mask is not None and attn_mask.requires_grad:  # estimates run it operator by operator, as GPUs do
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
        mask = None if attn_mask is None else (tuple(attn_mask.shape), attn_mask.dtype)
        calls.append((tuple(query.shape), mask, is_causal, options.get("enable_gqa", False)))
        return attention(query, key, value, attn_mask, dropout_p, is_causal, **options)

    config, other_inputs = MASKS[name]
    layers = {} if name == "gemma3" else {"num_layers" if name[:2] == "t5" else "num_hidden_layers": 1}
    model, inputs = bl.torch.hugging_face(config | layers, batch_size=B, sequence_length=S)
    inputs |= other_inputs
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    estimate_layers(model, inputs)
    estimated = list(calls)
    calls.clear()
    data = {k: torch.ones_like(v, device="cpu") if getattr(v, "is_meta", False) else v for k, v in inputs.items()}
    type(model)(model.config).train()(**data)
    assert calls and estimated[-len(calls) :] == calls


@pytest.mark.slow
def test_no_mask_of_tokens_by_tokens():
    """The largest tensor of a long text is its logits; it was the mask, of 512 * 512 numbers."""
    config = {**CONFIGS["llama"], "max_position_embeddings": 512, "num_key_value_heads": HEADS}
    model, inputs = bl.torch.hugging_face(config, sequence_length=512)
    for granularity in ("layer", "operator"):
        graph = bl.torch.profile(model, inputs, hardware="h100", granularity=granularity)
        assert graph.tensor_bytes.max() <= 4 * 512 * V + 4


def test_tokens_of_text_are_no_padding():
    _, inputs = bl.torch.hugging_face({"model_type": "bart", **LOOK["bart"]}, sequence_length=4)
    assert inputs["input_ids"].tolist() == [[3, 3, 3, 2]], "0 to 2 are beginning, padding and end"
    _, inputs = bl.torch.hugging_face(FIT["internvl"][0], sequence_length=4)
    assert inputs["input_ids"].is_meta, "which tokens stand for images is not known"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        ("Kosmos2_5ForConditionalGeneration", "flattened_patches"),
        ("EvollaForProteinText2Text", "protein_input_ids"),
        ("MiniCPMV4_6ForConditionalGeneration", "target_sizes"),
        ("InstructBlipForConditionalGeneration", "qformer_input_ids"),
        ("Mistral3ForConditionalGeneration", "image_sizes"),
    ],
)
def test_inputs_that_a_configuration_does_not_say(kind, needs):
    config_class = getattr(pytest.importorskip("transformers"), kind, None)
    if config_class is None:
        pytest.skip(f"this transformers has no {kind}")
    config = config_class.config_class()
    fields = {**config.to_dict(), "model_type": config.model_type, "architectures": [kind]}
    with pytest.raises(bl.errors.InvalidInput, match=f"{needs}'.*inputs of your own"):
        bl.torch.hugging_face(fields, sequence_length=8)


def test_infinity_as_transformers_writes_it(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIGS["llama"], "time_step_limit": [0.0, {"__float__": "Infinity"}]})
    )
    model, _ = bl.torch.hugging_face(tmp_path, sequence_length=8)
    assert model.config.time_step_limit == [0.0, float("inf")]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Write a configuration, run `profile hf:config.json` on it; exit code, what was printed, the error."""
    monkeypatch.chdir(tmp_path)

    def run(config, *options):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        code = main(["profile", "hf:config.json", *options, "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err

    return run


@pytest.mark.slow
def test_the_command_estimates_a_configuration(call):
    code, facts, _ = call(
        {**CONFIGS["llama"], "torch_dtype": "bfloat16"},
        "--hardware",
        "H100,a100",
        "--batch-size",
        "8",
        "--sequence-length",
        "32",
        "--optimizer",
        "adam",
        "-o",
        "graph.json.gz",
    )
    assert code == 0 and facts["mode"] == "estimated" and facts["device"] == "H100, a100"
    graph = bl.load_graph("graph.json.gz")
    assert set(graph.duration_by_kind) == {"h100", "a100"} and facts["ops"] == graph.n
    assert facts["persistent_bytes"] // (8 * facts["parameters"]) == 1, "the configuration says bfloat16"
    code, facts, _ = call(CONFIGS["gpt2"], "--inference", "--granularity", "operator")
    assert code == 2 and facts is None, "512 tokens and 64 positions"
    code, facts, _ = call(CONFIGS["gpt2"], "--inference", "--granularity", "operator", "--sequence-length", "8")
    assert code == 0 and facts["persistent_bytes"] >= 4 * facts["parameters"]


@pytest.mark.slow
def test_bug_the_type_of_a_configuration_was_not_that_of_the_model(call):
    """In Python as in the command: weights and gradients of 2 bytes and two states; `dtype` is above the configuration."""
    config = {**CONFIGS["llama"], "torch_dtype": "bfloat16", "num_hidden_layers": 1}
    model, inputs = bl.torch.hugging_face(config, sequence_length=8)
    parameters = sum(p.numel() for p in model.parameters())
    rotary = sum(b.nbytes for b in model.buffers())  # float32, as in a model that was loaded
    for dtype, width in ((None, 2), ("fp32", 4), ("fp16", 2)):
        graph = bl.torch.profile(model, inputs, hardware="h100", optimizer="adam", dtype=dtype)
        assert 4 * width * parameters <= graph.persistent_bytes.sum() <= 4 * width * parameters + rotary
    options = ("--hardware", "h100", "--optimizer", "adam", "--sequence-length", "8")
    graph = bl.torch.profile(model, inputs, hardware="h100", optimizer="adam")
    assert call(config, *options)[1]["persistent_bytes"] == graph.persistent_bytes.sum()
    images, inputs = bl.torch.hugging_face({**MASKS["vit"][0], "dtype": "float16"})
    assert {p.dtype for p in images.parameters()} == {inputs["pixel_values"].dtype} == {torch.float16}
    nested = {**SEVERAL["llava"][0], "text_config": {**TEXT, "dtype": "bfloat16"}}
    assert bl.torch.hugging_face(nested, sequence_length=S)[0].dtype == torch.bfloat16


GPT_OSS = {
    **BASE,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "dtype": "bfloat16",
}
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}}
COMPRESSED = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"g": GROUP}}
QUANTIZED = {  # the weight of a layer of 64 inputs and 128 outputs
    "fp8": ({"weight_block_size": [32, 48]}, 128 * 64 + 4 * 4 * 2),
    "mxfp8": ({}, 128 * 64 + 128 * 2),
    "fbgemm_fp8": ({}, 128 * 64 + 4 * 128 + 4),
    "nvfp4": ({}, 128 * 64 // 2 + 128 * 64 // 16 + 2 * 4),
    "bitsandbytes": ({"load_in_8bit": True}, 128 * 64 + 4 * 128),
    "bitsandbytes, 4 bits": ({"load_in_4bit": True}, 128 * 64 // 2 + 4 * 128 + 4 * 16),
    "bitsandbytes, twice": (
        {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        128 * 64 // 2 + 128 + 4 + 4 + 4 * 256 + 4 * 16,
    ),
    "gptq": ({"bits": 4, "group_size": 32}, 128 * 64 // 2 + 2 * 128 // 2 + 2 * 2 * 128 + 4 * 64),
    "gptq, 3 bits": ({"bits": 3, "group_size": -1}, 128 * 64 * 3 // 8 + 128 * 3 // 8 + 2 * 128 + 4 * 64),
    "awq": ({"bits": 4, "group_size": 32}, 128 * 64 // 2 + 2 * 128 // 2 + 2 * 2 * 128),
    "compressed-tensors": (
        {"format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"g": GROUP}},
        128 * 64 // 2 + 2 * 2 * 128 + 2 * 128 // 2 + 16,
    ),
    "compressed-tensors, fp8": (
        {
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
            },
        },
        128 * 64 + 2 * 128,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", fast(QUANTIZED, 1))
def test_bug_quantized_weights_counted_in_the_type_of_activations(method):
    """Bytes by hand, with scales, zero points and code books; the head stays as it is; only the rest is trained."""
    options, expected = QUANTIZED[method]
    quantization = {"quant_method": method.partition(",")[0], **options}
    config = {**CONFIGS["llama"], "num_hidden_layers": 1, "dtype": "bfloat16", "quantization_config": quantization}
    model, inputs = bl.torch.hugging_face(config, sequence_length=8)
    assert stored_bytes(model.model.layers[0].mlp.up_proj.weight) == expected
    assert stored_bytes(model.lm_head.weight) == 2 * V * H
    stored = sum(map(stored_bytes, model.parameters()))
    trained = 2 * sum(p.numel() for n, p in model.named_parameters() if "proj" not in n)
    rotary = sum(b.nbytes for b in model.buffers())
    for granularity in ("layer", "operator") if method in ("fp8", "gptq") else ("operator",):
        graph = bl.torch.profile(model, inputs, hardware="h100", optimizer="adam", granularity=granularity)
        assert graph.persistent_bytes.sum() == stored + 3 * trained + rotary
        assert graph.info["estimate"]["quantization"].endswith("products are estimated in the type of the activations")


@pytest.mark.parametrize("named", [True, False])
def test_bug_compression_config_was_left_out(named):
    """128 * 64 numbers of four bits, float16 scales and four-bit zero points of groups of 32, and two int64."""
    settings = {k: v for k, v in COMPRESSED.items() if named or k != "quant_method"} | {"format": "pack-quantized"}
    config = {**CONFIGS["llama"], "dtype": "bfloat16", "compression_config": settings}
    model, _ = bl.torch.hugging_face(config, sequence_length=8)
    expected = 128 * 64 // 2 + 2 * 2 * 128 + 2 * 128 // 2 + 16
    assert stored_bytes(model.model.layers[0].mlp.up_proj.weight) == expected


@pytest.mark.slow
def test_experts_of_gpt_oss(call):
    """Four and a quarter bits per number of the experts; what is named stays; the command says so."""
    unquantized = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": unquantized}}
    model, inputs = bl.torch.hugging_face(config, sequence_length=8)
    experts = N * 8 * (H * 2 * FF + FF * H)
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith(("gate_up_proj", "down_proj"))) == experts
    other_bytes = 2 * (sum(p.numel() for p in model.parameters()) - experts) + sum(b.nbytes for b in model.buffers())
    graph = bl.torch.profile(model, inputs, hardware="h100", mode="inference")
    assert graph.persistent_bytes.sum() == other_bytes + experts * 17 // 32
    code, facts, _ = call(config, "--hardware", "h100", "--inference", "--sequence-length", "8")
    assert code == 0 and facts["persistent_bytes"] == other_bytes + experts * 17 // 32
    assert facts["quantization"] == (
        "4 weights of 4.25 bits per number, scales among them; their products are estimated in the type of the activations"
    )


def test_experts_in_fp8_as_transformers_stores_them():
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.0", "lm_head"],
    }
    fields = {
        **BASE,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "head_dim": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 160,
        "dtype": "bfloat16",
    }
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    model, _ = bl.torch.hugging_face({**fields, "quantization_config": quantization}, sequence_length=8)
    estimated_model, _ = bl.torch.hugging_face(fields, sequence_length=8)
    settings = pytest.importorskip("transformers").FineGrainedFP8Config(weight_block_size=(128, 128))
    replaced = fp8.replace_with_fp8_linear(estimated_model, quantization["modules_to_not_convert"], settings)
    assert sum(map(stored_bytes, model.parameters())) == sum(p.nbytes for p in replaced.parameters())


@pytest.mark.slow
def test_kernels_read_quantized_weights_as_they_are_stored():
    """A token through a layer of a model in 4 bits: scarcely more than a quarter of the bytes of bfloat16."""
    config = {**CONFIGS["llama"], "dtype": "bfloat16", "hidden_size": 1024, "intermediate_size": 4096}
    us = []
    for quantization in (None, {"quant_method": "awq", "bits": 4, "group_size": 128}):
        model, inputs = bl.torch.hugging_face({**config, "quantization_config": quantization}, sequence_length=1)
        graph = bl.torch.profile(model, inputs, hardware="cpu-core", mode="inference")
        us.append(graph.duration_us[graph.names.index("model.layers.0.mlp.up_proj")])
    assert us[1] / us[0] == pytest.approx(0.26, abs=0.02)


DETR = {
    "model_type": "detr",
    "architectures": ["DetrForObjectDetection"],
    "d_model": H,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_hidden_layers": 1,
    "use_pretrained_backbone": True,
}
RESNET = {
    "model_type": "resnet",
    "out_features": ["stage4"],
    "depths": [1] * 4,
    "hidden_sizes": [8] * 4,
    "embedding_size": 8,
}
NAMED = "needs the files of 'somebody/model', its 'backbone', and nothing is downloaded"
BACKBONES = {
    "DETR": ({**DETR, "backbone": "somebody/model", "use_timm_backbone": False}, NAMED),
    "DPT": (
        {
            **VISION,
            "model_type": "dpt",
            "architectures": ["DPTForDepthEstimation"],
            "backbone": "somebody/model",
            "use_pretrained_backbone": True,
        },
        NAMED,
    ),
    "MaskFormer": (
        {
            "model_type": "maskformer",
            "architectures": ["MaskFormerForInstanceSegmentation"],
            "mask_feature_size": H,
            "backbone": "somebody/model",
            "use_pretrained_backbone": True,
        },
        NAMED,
    ),
    "DETR of timm": (
        {**DETR, "backbone": "resnet50", "use_timm_backbone": True},
        "needs the package 'timm': pip install timm",
    ),
    "DETR as it is": ({**DETR, "backbone_config": RESNET, "use_timm_backbone": False}, None),
}


@pytest.mark.parametrize("name", slow(BACKBONES, "DETR as it is"))
def test_bug_a_hub_was_asked_for_backbones(name, monkeypatch):
    """No connection is tried, and what cannot be made without one is said; afterwards sockets are as they were."""
    config, message = BACKBONES[name]
    if "timm" in name and importlib.util.find_spec("timm"):
        pytest.skip("timm is installed")

    def connect(*arguments, **options):
        raise AssertionError(f"connects to {arguments}")

    for place, function in ((socket, "getaddrinfo"), (socket, "create_connection"), (socket.socket, "connect")):
        monkeypatch.setattr(place, function, connect)
    if message is None:
        model, inputs = bl.torch.hugging_face(config)
        assert bl.torch.profile(model, inputs, hardware="h100").n > 20
    else:
        with pytest.raises((bl.errors.InvalidInput, bl.errors.MissingPackage), match=message):
            bl.torch.hugging_face(config)
    assert socket.getaddrinfo is connect and socket.socket.connect is connect
    hub = sys.modules["huggingface_hub.constants"]
    assert not hub.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE")


def test_bug_a_package_that_cannot_be_imported_was_a_foreign_error(monkeypatch):
    """A torchvision that was built for another PyTorch: transformers says only that it cannot import the class."""
    import transformers

    lazy_attribute = type(transformers).__getattr__

    def broken_attribute(module, name):
        if name != "Sam3Model":
            return lazy_attribute(module, name)
        raise ModuleNotFoundError(f"Could not import module {name!r}") from RuntimeError("torchvision::nms is missing")

    monkeypatch.setattr(type(transformers), "__getattr__", broken_attribute)
    message = "^the configuration needs a package that cannot be imported: RuntimeError: torchvision::nms is missing$"
    with pytest.raises(bl.errors.MissingPackage, match=message):
        bl.torch.hugging_face({"model_type": "sam3", "architectures": ["Sam3Model"]})


def test_other_threads_keep_the_network():
    """Only the thread that makes the model is without it."""
    addresses = []
    with offline():
        with pytest.raises(OSError, match="nothing is downloaded"):
            socket.getaddrinfo("127.0.0.1", 80)
        thread = threading.Thread(target=lambda: addresses.append(socket.getaddrinfo("127.0.0.1", 80)))
        thread.start()
        thread.join()
    assert addresses and socket.getaddrinfo("127.0.0.1", 80) == addresses[0]


def without(name, field):
    return {key: value for key, value in CONFIGS[name].items() if key != field}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("{", (), "config.json: not JSON"),
        ("[1]", (), "config.json: holds a list; a configuration is a JSON object"),
        ("\x00\xff", (), "config.json: not JSON"),
        (without("llama", "model_type"), (), "config.json has no field 'model_type'"),
        ({**CONFIGS["llama"], "model_type": "lama"}, (), "has no architecture of that name; did you mean 'llama'?"),
        ({**CONFIGS["llama"], "model_type": 3}, (), "unknown model_type 3"),
        (without("llama", "architectures"), (), "has no field 'architectures'"),
        ({**CONFIGS["llama"], "architectures": ["LamaForCausalLM"]}, (), "unknown architecture 'LamaForCausalLM'"),
        ({**CONFIGS["llama"], "architectures": ["logging"]}, (), "unknown architecture 'logging'"),
        (without("llama", "hidden_size"), (), "has no field 'hidden_size'"),
        (without("gpt2", "n_layer"), (), "has no field 'n_layer' or 'num_hidden_layers'"),
        ({**CONFIGS["llama"], "hidden_size": "wide"}, (), "config.json"),
        ({**CONFIGS["llama"], "hidden_size": 63}, (), "config.json"),
        ({**CONFIGS["llama"], "num_attention_heads": 0}, (), "config.json"),
        ({**CONFIGS["llama"], "rope_parameters": {"rope_type": "default", "rope_theta": 2**64}}, (), "OverflowError"),
        ({**CONFIGS["bert"], "architectures": ["LlamaForCausalLM"]}, (), "config.json"),
        ({**CONFIGS["llama"], "num_hidden_layers": 2**31}, (), "field 'num_hidden_layers' of"),
        ({**CONFIGS["llama"], "model_type": {"a": ["llama"] * 500}}, (), "unknown model_type"),
        ('{"model_type": {"__float__": "wide"}}', (), "config.json: not JSON: ValueError"),
        (
            {
                "model_type": "llava_next",
                "architectures": ["LlavaNextForConditionalGeneration"],
                "text_config": TEXT,
                "vision_config": {**VISION, "model_type": "clip_vision_model"},
            },
            ("--sequence-length", "8"),
            "takes 'image_sizes' beside its images",
        ),
        (
            {
                "model_type": "gemma3",
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {**ROTARY, "model_type": "gemma3_text", "head_dim": 16},
                "mm_tokens_per_image": 256,
                "vision_config": {**VISION, "model_type": "siglip_vision_model"},
            },
            ("--sequence-length", "8"),
            "its sizes may not fit together, or it takes other inputs: make the model with transformers",
        ),
        (
            {**CONFIGS["llama"], "quantization_config": {"quant_method": "aqlm"}},
            ("--sequence-length", "8"),
            "names the method 'aqlm', whose bytes are not known; known are mxfp4, fp8",
        ),
        # Previously all weights counted in 32 bits, without a word.
        (
            {**CONFIGS["llama"], "quantization": {"group_size": 64, "bits": 4}},
            ("--sequence-length", "8"),
            "quantization of config.json names no method; known are mxfp4, fp8",
        ),
        (
            {**CONFIGS["llama"], "compression_config": {"quant_method": "sparseml", "config_groups": {"g": GROUP}}},
            ("--sequence-length", "8"),
            "compression_config of config.json names the method 'sparseml', whose bytes are not known",
        ),
        (
            {**CONFIGS["llama"], "quantization_config": {**COMPRESSED, "format": "dense"}},
            ("--sequence-length", "8"),
            "is no configuration of compressed-tensors: ValueError at 'format dense'",
        ),
        (
            {**CONFIGS["llama"], "quantization_config": {"quant_method": "gptq"}},
            ("--sequence-length", "8"),
            "is no configuration of gptq: KeyError",
        ),
        (
            {**CONFIGS["llama"], "quantization_config": {"quant_method": "gptq", "bits": 0}},
            ("--sequence-length", "8"),
            "is no configuration of gptq: ValueError at '0 bits'",
        ),
        # Previously 4 bytes per weight, without a word.
        (
            {**CONFIGS["llama"], "torch_dtype": "float64"},
            (),
            "torch_dtype of config.json is 'float64'; it must be one of",
        ),
        (
            {**CONFIGS["llama"], "dtype": "float8_e4m3fn"},
            (),
            "dtype of config.json is 'float8_e4m3fn'; it must be one of",
        ),
        (
            {**CONFIGS["llama"], "quantization_config": {"quant_method": "mxfp4"}},
            ("--sequence-length", "8"),
            "quantization_config of config.json (mxfp4) quantizes no weight of LlamaForCausalLM",
        ),
        (CONFIGS["llama"], ("--sequence-length", "65"), "sequence_length is 65; the model has 64 positions"),
        (CONFIGS["llama"], ("--sequence-length", "0"), "--sequence-length is 0; it must be at least 1"),
        (CONFIGS["llama"], ("--batch-size", "two"), "--batch-size is 'two'"),
        (
            CONFIGS["llama"],
            ("--hardware", "h10", "--sequence-length", "8"),
            "unknown hardware 'h10'; did you mean 'h100'",
        ),
        (CONFIGS["llama"], ("--mode", "measured"), "has no weights, and is estimated"),
        (CONFIGS["llama"], ("--dtype", "int3", "--sequence-length", "8"), "dtype is 'int3'"),
        (CONFIGS["llama"], ("-p", "layers=2"), "-p is for benchmark models"),
    ],
)
def test_bad_input_is_one_sentence(call, config, options, message):
    code, facts, error = call(config, *options)
    assert (code, facts) == (2, None) and message in error and error.count("\n") == 1, error


def test_options_of_configurations_with_other_models(capsys):
    assert main(["profile", "mlp", "--sequence-length", "8"]) == 2
    assert "--sequence-length is for models by configuration" in capsys.readouterr().err


def test_without_transformers_the_command_names_the_package(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, error = call(CONFIGS["llama"])
    assert (
        code == 2
        and "needs the package 'transformers': pip install transformers (in a checkout: pip install '.[transformers]')"
        in error
    )


def test_an_image_that_no_memory_could_hold_is_refused():
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "patch_size": 8,
    }
    config = {"model_type": "vit", "architectures": ["ViTForImageClassification"], **sizes, "image_size": 2**32 + 1}
    with pytest.raises(bl.InvalidInput, match="input of shape"):
        bl.torch.hugging_face(config, batch_size=2)


@pytest.mark.slow
def test_a_configuration_object_and_its_type():
    """Python takes the type as the command does: what the configuration says, or `dtype`."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**CONFIGS["llama"], dtype="bfloat16")
    model, inputs = bl.torch.hugging_face(config, sequence_length=8)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    same, _ = bl.torch.hugging_face({**CONFIGS["llama"], "dtype": "bfloat16"}, sequence_length=8)
    assert [p.shape for p in same.parameters()] == [p.shape for p in model.parameters()]
    assert bl.torch.profile(model, inputs, hardware="h100").info["estimate"]["precision"] == "bf16"
    for dtype in ("fp16", torch.float16):
        assert {p.dtype for p in bl.torch.hugging_face(config, sequence_length=8, dtype=dtype)[0].parameters()} == {
            torch.float16
        }
    with pytest.raises(bl.BaechiLabError, match="dtype is 'int8'"):
        bl.torch.hugging_face(config, sequence_length=8, dtype="int8")
