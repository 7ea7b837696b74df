"""Megatron-LM: arguments of `pretrain_gpt.py`.

Source: Megatron-LM of August 2026, `megatron/training/arguments.py` and `megatron/core/transformer/transformer_config.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from ...graph.layout import Layout
from ...parallel.layout_stages import stage_blocks
from ...parallel.transformer import VOCABULARY_MULTIPLE, Transformer
from ..plans.records import WrittenPlan
from .request import LayoutRequest

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_RECOMPUTATION: dict[str, dict[str, object]] = {
    "none": {},
    "selective": {"--recompute-granularity": "selective"},
    "full": {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1},
}
_FIELDS = {
    "--hidden-dropout": ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "resid_dropout", "dropout"),
    "--attention-dropout": ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "attn_dropout"),
    "--norm-epsilon": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "--rotary-percent": ("rotary_pct", "partial_rotary_factor"),
}
"""Arguments whose defaults may differ from the model's, and the fields of configurations that say them."""
_SWITCHES = {"qwen2": "--add-qkv-bias", "qwen3": "--qk-layernorm", "qwen3_moe": "--qk-layernorm"}
_DESCRIBED = frozenset({"", "llama", "mistral", "mixtral", "gpt2", "gpt_bigcode", "mpt", "bloom", *_SWITCHES})
"""Model types whose computation the arguments describe."""


def write(request: LayoutRequest) -> WrittenPlan:
    """Returns the arguments: value is {argument: value, or None for a switch}, text one line of them."""
    layout, model = request.layout, request.transformer
    arguments: dict[str, object] = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": model.feed_forward,
        "--num-attention-heads": model.heads,
        "--kv-channels": model.head_size,
        "--seq-length": request.sequence_length,
        "--max-position-embeddings": max(model.positions, request.sequence_length),
        "--vocab-size": model.vocabulary,
        "--micro-batch-size": layout.micro_batch,
        "--global-batch-size": request.global_batch,
        "--tensor-model-parallel-size": layout.tp,
        "--pipeline-model-parallel-size": layout.pp,
        "--context-parallel-size": layout.cp,
        **_RECOMPUTATION[layout.recompute],
    }
    unsupported_features = _describe_blocks(request, arguments)
    model, fields = request.transformer, request.fields
    sentences = []
    if not model.positions:
        alibi = fields.get("alibi", fields.get("model_type") in ("bloom", "mpt"))
        arguments["--position-embedding-type"] = "none" if alibi else "rope"
        if alibi:
            sentences.append("Megatron has no ALiBi; these arguments train without positions")
        else:
            sentences += _rotate(fields, arguments)
    if model.windowed_layers:
        arguments["--window-size"] = f"{model.window - 1},0"
        full = model.layers - model.windowed_layers
        every = model.layers // full if full else 0
        if every and model.layers // every == full:
            arguments["--window-attn-skip-freq"] = every
        elif full:
            sentences.append(
                f"{full} of {model.layers} layers attend to the whole sequence; name them in --window-attn-skip-freq"
            )
    unsupported_features += [*request.uneven_pieces(), *sentences]
    unsupported_features += [*_divide_tensors_and_copies(request, arguments), *_divide_into_stages(request, arguments)]
    text = shlex.join(str(word) for pair in arguments.items() for word in pair if word is not None) + "\n"
    return WrittenPlan(
        "megatron", arguments, text, tuple(unsupported_features), {"megatron_arguments.txt": text.encode()}
    )


def _describe_blocks(request: LayoutRequest, arguments: dict[str, object]) -> list[str]:
    """Adds the arguments of what a block computes, besides its sizes; returns what they cannot express."""
    model, kind = request.transformer, request.model_type
    sentences = []
    if kind not in _DESCRIBED:
        sentences.append(
            f"{kind} models may have norms, biases, residual paths or routers that these arguments do not describe"
        )
    if model.projection_parameters:
        sentences.append(
            f"Megatron has no tables of tokens of another width than the model; {model.embedding_size} is left out"
        )
    if model.kv_heads != model.heads:
        arguments |= {"--group-query-attention": None, "--num-query-groups": model.kv_heads}
    switches = {
        "--swiglu": model.gated,
        "--disable-bias-linear": not model.bias,
        "--untie-embeddings-and-output-weights": not model.tied,
        "--multi-latent-attention": bool(model.key_rank),
        _SWITCHES.get(kind, ""): kind in _SWITCHES,
    }
    arguments |= {switch: None for switch, is_on in switches.items() if is_on}
    arguments |= {"--hidden-dropout": 0.1 * model.dropout, "--attention-dropout": 0.1 * model.dropout}
    for argument, names in _FIELDS.items():
        number = next((request.fields[name] for name in names if name in request.fields), None)
        if isinstance(number, (int, float)):
            arguments[argument] = number
    for name in ("hidden_act", "hidden_activation", "activation_function"):
        activation, default_activation = str(request.fields.get(name) or ""), "silu" if model.gated else "gelu"
        if activation and default_activation not in activation:
            sentences.append(f"{name} is {activation}; these arguments train with {default_activation}")
    if "rms_norm_eps" in request.fields:
        arguments["--normalization"] = "RMSNorm"
    arguments |= _expert_arguments(model, request.layout) if model.experts else {}
    arguments |= _latent_attention_arguments(model) if model.key_rank else {}
    return sentences


def _divide_tensors_and_copies(request: LayoutRequest, arguments: dict[str, object]) -> list[str]:
    """Adds the arguments of tensor and data parallelism and of precision; returns what they cannot express."""
    layout, model = request.layout, request.transformer
    sentences = []
    if layout.tp == 1 and model.vocabulary % VOCABULARY_MULTIPLE:
        sentences.append(
            f"Megatron pads the vocabulary to a multiple of {VOCABULARY_MULTIPLE}; {model.vocabulary} were simulated"
        )
    if layout.tp > 1 and model.experts and not layout.sequence_parallel:
        sentences.append("Megatron requires sequence parallelism where experts meet tensor parallelism")
    switches = {
        "--sequence-parallel": layout.sequence_parallel,
        "--tp-comm-overlap": request.products_in_pieces,
        "--overlap-grad-reduce": layout.dp * layout.cp > 1 or layout.zero > 0,
        "--use-distributed-optimizer": layout.zero > 0,
        "--overlap-param-gather": layout.zero > 0,
        "--use-megatron-fsdp": layout.zero > 1,
        "--bf16": request.precision == "mixed-bf16",
    }
    arguments |= {switch: None for switch, is_on in switches.items() if is_on}
    halves = request.reduce_precision == "half"
    if layout.zero > 1:
        arguments |= {
            "--data-parallel-sharding-strategy": _SHARDING[layout.zero],
            "--ckpt-format": "fsdp_dtensor",
            "--megatron-fsdp-main-grads-dtype": "fp32",
            "--megatron-fsdp-grad-comm-dtype": "bf16" if halves else "fp32",
        }
    elif halves:
        arguments["--grad-reduce-in-bf16"] = None
        sentences.append("with --grad-reduce-in-bf16, Megatron also adds gradients up in bfloat16")
    return sentences


def _expert_arguments(model: Transformer, layout: Layout) -> dict[str, object]:
    arguments: dict[str, object] = {
        "--num-experts": model.experts,
        "--moe-router-topk": model.experts_per_token,
        "--moe-ffn-hidden-size": model.expert_feed_forward,
        "--expert-model-parallel-size": layout.ep,
    }
    if model.shared_feed_forward:
        arguments["--moe-shared-expert-intermediate-size"] = model.shared_feed_forward
    if model.dense_layers:
        arguments["--moe-layer-freq"] = f"([0]*{model.dense_layers}+[1]*{model.layers - model.dense_layers})"
    return arguments


def _latent_attention_arguments(model: Transformer) -> dict[str, object]:
    arguments: dict[str, object] = {
        "--kv-lora-rank": model.key_rank,
        "--qk-head-dim": model.head_size,
        "--v-head-dim": model.value_size,
        "--qk-pos-emb-head-dim": model.rope_size,
    }
    return arguments | ({"--q-lora-rank": model.query_rank} if model.query_rank else {})


def _rotate(fields: Mapping[str, object], arguments: dict[str, object]) -> list[str]:
    """Adds the arguments of rotary positions; returns what they cannot express."""
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling")
    rotary = rotary if isinstance(rotary, Mapping) else {}
    base, kind = rotary.get("rope_theta", fields.get("rope_theta")), rotary.get("rope_type", rotary.get("type"))
    if isinstance(base, (int, float)):
        arguments["--rotary-base"] = int(base)
    if kind == "llama3":
        arguments |= {"--use-rope-scaling": None, "--rope-scaling-factor": rotary.get("factor", 8.0)}
    elif rotary and kind != "default":
        return [f"the file does not scale rotary positions as the configuration says ({dict(rotary)})"]
    return []


def _divide_into_stages(request: LayoutRequest, arguments: dict[str, object]) -> list[str]:
    """Adds the arguments of the pipeline's schedule and of uneven stages; returns what they cannot express."""
    layout = request.layout
    if layout.pp == 1:
        return []
    sentences = []
    if layout.schedule not in ("1f1b", "interleaved-1f1b"):
        sentences.append(f"Megatron has no schedule {layout.schedule}; these arguments run 1f1b")
        layout = replace(layout, schedule="1f1b")
    counts = stage_blocks(layout, request.transformer.layers)
    if len(set(counts)) > 1 or layout.schedule == "interleaved-1f1b":
        cells = ["t*" + str(count) if count != 1 else "t" for count in counts]
        cells = ["" if count == 0 else cell for count, cell in zip(counts, cells, strict=True)]
        cells[0], cells[-1] = "E" + cells[0], cells[-1] + "L"
        arguments["--pipeline-model-parallel-layout"] = "|".join(cells)
    return sentences
