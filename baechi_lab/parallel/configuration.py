"""`read_transformer`: reads the sizes of a transformer from a configuration.

Configurations have many names for one size (`n_embd`, `d_model`, `hidden_size`). `ALIASES` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import check_flag, check_whole
from ..errors import BaechiLabError, InvalidInput, in_short
from ..graph.formats.model_configuration import read_configuration
from ..internal_warnings import warn
from .transformer import REQUIRED_SIZES, Transformer

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "hidden", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layer_num", "layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "head_num", "heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_head_num", "kv_n_heads"),
    "head_size": ("head_dim", "head_size"),
    "embedding_size": ("word_embed_proj_dim", "embedding_size"),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dff", "hidden_dim"),
    "vocabulary": ("vocab_size", "vocabulary"),
    "positions": ("n_positions", "max_position_embeddings", "max_seq_len"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "expert_num", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "topk", "moe_k", "moe_topk", "moe_top_k"),
    "expert_feed_forward": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "dense_layers": ("first_k_dense_replace", "num_dense_layers", "dense_layers", "moe_layer_start_index"),
    "query_rank": ("q_lora_rank",),
    "key_rank": ("kv_lora_rank",),
    "rope_size": ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "value_size": ("v_head_dim",),
}
"""Names of each field in configurations; the first name that occurs is used."""

GATED = frozenset(
    """
        llama mistral mixtral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text vaultgemma deepseek_v2
        deepseek_v3 youtu minicpm3 olmo olmo2 olmo3 olmoe flex_olmo phi3 phimoe cohere cohere2 granite granitemoe
        granitemoeshared glm glm4 glm4_moe smollm3 helium exaone4 dbrx ernie4_5 ernie4_5_moe seed_oss bitnet gpt_oss llama4_text
        cwm diffllama hyperclovax solar_open eurobert mllama_text_model minimax_m2 modernbert stablelm esmc
    """.split()
)
"""Model types whose feed-forward part multiplies two projections (SwiGLU)."""

ROTARY = GATED | frozenset(
    """
        apertus gpt_neox falcon phi starcoder2 gptj codegen persimmon nemotron mpt bloom arcee ctrl gpt_neox_japanese jais2 xglm
    """.split()
)
"""Model types without a table of positions."""

ENCODERS = frozenset(
    """
        bert roberta electra distilbert xlm-roberta deberta camembert mpnet ernie megatron-bert data2vec-text
        roberta-prelayernorm eurobert esmc modernbert
    """.split()
)
"""Model types whose tokens see all tokens."""

CHECKED = (
    ROTARY
    | ENCODERS
    | frozenset(
        """
            gpt2 gpt_neo gpt_bigcode gpt-sw3 openai-gpt opt biogpt bert-generation deberta-v2 xlm-roberta-xl
        """.split()
    )
)
"""Model types whose parameters were compared with those of transformers 5.24: they differ by at most one percent."""

UNTIED_UNLESS_SAID = GATED | frozenset("apertus arcee codegen gpt_neox gptj jais2 nemotron persimmon phi".split())
TIED_UNLESS_SAID = frozenset(
    "cohere cohere2 ernie4_5 ernie4_5_moe gemma gemma2 gemma3 gemma3_text minicpm3 modernbert smollm3 vaultgemma youtu".split()
)
"""Model types whose output layer has weights of its own unless the configuration ties them, and exceptions."""

HEAD_SIZES = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma"), 256),
    **dict.fromkeys(
        "cwm ernie4_5 glm glm4 helium llama4_text minimax_m2 ministral3 qwen3 seed_oss solar_open".split(), 128
    ),
}
"""Model types whose heads do not divide the width of the model, and the size of a head unless the configuration says it."""

SIZES_OF_TYPES = {
    "experts": frozenset(
        """
            dbrx deepseek_v2 deepseek_v3 ernie4_5_moe flex_olmo glm4_moe gpt_oss granitemoe granitemoeshared llama4_text
            minimax_m2 mixtral olmoe phimoe qwen2_moe qwen3_moe solar_open
        """.split()
    ),
    "key_rank": frozenset("deepseek_v2 deepseek_v3 minicpm3 youtu".split()),
}
"""Sizes that models of some types have: without them a configuration of such a type is incomplete."""

_ENCODER_DECODER = "an encoder with a decoder"
_STATE_SPACE = "a model with state-space or linear-attention layers"
REFUSED = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "whisper"), _ENCODER_DECODER),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "falcon_h1"), _STATE_SPACE
    ),
    **dict.fromkeys(("qwen3_next", "granitemoehybrid", "nemotron_h", "recurrent_gemma", "rwkv"), _STATE_SPACE),
    "albert": "a model whose layers share their weights",
}
"""Model types that are no stack of equal transformer blocks, with a description of each."""

EXPERT_PATTERNS = tuple(
    "interleave_moe_layer_step moe_layer_freq decoder_sparse_step moe_layer_frequency moe_layer_interval".split()
)
"""Fields that say that only every n-th layer has experts."""

PART_FIELDS = {"attn_config": ("kv_n_heads",), "ffn_config": ("ffn_hidden_size", "moe_num_experts", "moe_top_k")}
"""Parts of a configuration (DBRX, MPT), and their fields that say a size."""

WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Model types of whose layers every n-th attends to the whole sequence, the others to a window."""


_DROPOUTS = ("resid_pdrop", "hidden_dropout_prob", "dropout", "hidden_dropout", "resid_dropout", "residual_dropout")

_FLAGS = str.split("is_encoder_decoder use_swiglu multi_query new_decoder_architecture attention_bias bias no_bias")


def read_transformer(model: object) -> Transformer:
    """Reads the sizes of a model from a `Transformer`, a configuration (its fields, file or folder), or a model with one.

    The number of parameters is compared with that of the model: of the given one, or, for a type that is not in `CHECKED`, of
    the one that transformers makes on the meta device.

    Warns:
        UserWarning: the model has between 1 and 10 percent more or fewer parameters; transformers, which would make the model
            to compare, is not installed or cannot make it; only the text part of a larger model is read.

    Raises:
        FormatError: the file does not exist, or is not JSON.
        InvalidInput: the configuration lacks one of the sizes, `model` has no configuration, or the model's number of parameters
            differs by more than 10 percent.
    """
    if isinstance(model, Transformer):
        return model
    fields, source = configuration_fields(model)
    transformer = from_fields(fields, source)
    parameters = getattr(model, "num_parameters", None)
    count = parameters() if callable(parameters) else None
    if isinstance(fields.get("text_config"), Mapping):
        warn(f"{source} is a model of several parts; the layouts are those of its text part alone")
        fields, count = fields["text_config"], None
    kind = fields.get("model_type")
    if count is None and kind is not None and str(kind).lower() not in CHECKED:
        complete = from_fields(_with_defaults(fields), source)
        # A size that the file gives under another name would be a default of transformers here, and differ.
        if all(getattr(complete, size) == getattr(transformer, size) for size in REQUIRED_SIZES):
            transformer = complete
        count = _parameters_in_transformers(fields, source)
        if count is None:
            warn(
                f"model_type {in_short(kind, 80)} of {source} is not among those whose sizes were checked; a stack of equal "
                f"layers of these sizes has {transformer.parameters:,} parameters: compare that with the model"
            )
    if count is not None:
        # Sizes that make a tenth more or fewer parameters than the model has are refused; a hundredth is worth a warning.
        difference = abs(transformer.parameters - count)
        sentence = (
            f"the model has {count:,} parameters, and the sizes in its configuration make {transformer.parameters:,} in a "
            "stack of equal layers"
        )
        if difference > count / 10:
            raise InvalidInput(f"{sentence}; layouts are for such stacks")
        if difference > count / 100:
            warn(sentence)
    return transformer


def _parameters_in_transformers(fields: Mapping[str, object], source: str) -> int | None:
    """Returns the number of parameters of the model that transformers makes; None if it cannot make it."""
    try:
        from ..profilers.torch.hugging_face import count_parameters

        return count_parameters(fields, source)
    except (ImportError, BaechiLabError):
        return None


def configuration_fields(model: object) -> tuple[Mapping[str, Any], str]:
    """Returns the fields of a configuration (given as fields, its file or folder, or with its model), and a name for messages.

    Raises:
        FormatError: see `read_configuration`.
        InvalidInput: `model` has no configuration.
    """
    if isinstance(model, (str, Path)):
        return read_configuration(str(model).removeprefix("hf:"))
    config = getattr(model, "config", model)
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise InvalidInput(
            f"model is {type(model).__name__}; it must be a transformer's configuration (its config.json or fields), a Hugging "
            "Face model, or a Transformer"
        )
    return config, "the configuration"


def from_fields(fields: Mapping[str, Any], source: str = "the configuration") -> Transformer:
    """Reads the sizes from the fields of a Hugging Face configuration, or of another one with the same names."""
    if isinstance(fields.get("text_config"), Mapping):
        fields = _with_defaults(fields["text_config"])
    for section, names in PART_FIELDS.items():
        sizes_of_part = fields.get(section)
        if isinstance(sizes_of_part, Mapping):
            fields = {**{name: sizes_of_part[name] for name in names if name in sizes_of_part}, **fields}
    for flag in _FLAGS:
        check_flag(f"{flag} of {source}", fields.get(flag) or False)
    kind = str(fields.get("model_type", "")).lower()
    _refuse_unequal_layers(fields, kind, source)
    sizes: dict[str, Any] = {}
    for field, names in ALIASES.items():
        value = next((fields[name] for name in names if fields.get(name) is not None), 0)
        sizes[field] = check_whole(f"{field} of {source}", value, 0)
    for field in REQUIRED_SIZES:
        if not sizes[field]:
            raise InvalidInput(
                f"{source} has no field {' or '.join(map(repr, ALIASES[field][:3]))}; it says the model's size"
            )
    sizes["head_size"] = sizes["head_size"] or HEAD_SIZES.get(kind, 0)
    for field, kinds in SIZES_OF_TYPES.items():
        if kind in kinds and not sizes[field]:
            choices = " or ".join(map(repr, ALIASES[field][:3]))
            raise InvalidInput(f"{source} has no field {choices}, which models of type {kind!r} have")
    if sizes["experts"] and not sizes["experts_per_token"]:
        sizes["experts_per_token"] = min(2, sizes["experts"])
        warn(f"{source} has no field 'num_experts_per_tok'; {sizes['experts_per_token']} experts per token are assumed")
    is_gated = bool(fields.get("use_swiglu", kind in GATED)) or str(fields.get("hidden_act", "")) in ("silu", "swiglu")
    if is_gated and not sizes["feed_forward"] and not sizes["expert_feed_forward"]:
        raise InvalidInput(f"{source} has no field 'intermediate_size'; it says how wide the feed-forward part is")
    rotary = any(fields.get(name) is not None for name in ("rope_theta", "rope_parameters"))
    if rotary or kind in ROTARY or is_gated or fields.get("position_embedding_type") == "rotary":
        sizes["positions"] = 0
    if kind == "opt":
        sizes["positions"] += 2  # its table begins two rows later
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        sizes["kv_heads"] = 1  # Falcon's configuration names as many heads of keys as of queries, and has one
    if sizes["key_rank"]:  # latent attention: head_size is the part of a head without rotary positions
        head_size = fields.get("qk_nope_head_dim") or fields.get("qk_head_dim") or sizes["head_size"]
        sizes["head_size"] = check_whole(f"qk_nope_head_dim of {source}", head_size)
    sizes["dense_layers"] = sizes["dense_layers"] or _first_dense_layers(fields, source)
    end = fields.get("moe_layer_end_index")
    if end not in (None, -1) and end != sizes["layers"] - 1:
        raise InvalidInput(
            f"moe_layer_end_index of {source} is {in_short(end)}; layers behind it have no experts, and layouts are for models "
            "where all layers have experts, or all but the first ones"
        )
    window, windowed_layers = _window(fields, kind, sizes["layers"], source)
    tied = fields.get("tie_word_embeddings")
    return Transformer(
        **sizes,
        gated=is_gated,
        bias=bool(fields.get("attention_bias", fields.get("bias", not is_gated))) and not fields.get("no_bias", False),
        tied=kind in TIED_UNLESS_SAID or not (is_gated or kind in UNTIED_UNLESS_SAID) if tied is None else bool(tied),
        causal=kind not in ENCODERS,
        dropout=any(fields.get(key) for key in _DROPOUTS),
        shared_feed_forward=_shared_width(fields, sizes, source),
        window=window,
        windowed_layers=windowed_layers,
        name=str(fields.get("model_name") or fields.get("_name_or_path") or kind or "transformer"),
    )


def _with_defaults(fields: Mapping[str, object]) -> Mapping[str, Any]:
    """Returns a configuration with the fields that it leaves to the defaults of its class, if transformers has that class."""
    try:
        from ..profilers.torch.hugging_face import complete_fields

        return complete_fields(fields)
    except (ImportError, BaechiLabError):
        return fields


def _refuse_unequal_layers(fields: Mapping[str, object], kind: str, source: str) -> None:
    """Raises `InvalidInput` for models that are no stack of equal transformer blocks."""
    refusal = _ENCODER_DECODER if fields.get("is_encoder_decoder") else REFUSED.get(kind)
    if refusal:
        raise InvalidInput(f"{source} is {refusal}; layouts are for models of one stack of equal layers")
    pattern = next((name for name in EXPERT_PATTERNS if fields.get(name) not in (None, 1)), None)
    pattern = "mlp_only_layers" if fields.get("mlp_only_layers") else pattern
    if pattern:
        raise InvalidInput(
            f"{pattern} of {source} is {in_short(fields[pattern])}; layouts are for models where all layers have experts, or all "
            "but the first ones"
        )
    layer_type = next(
        (t for t in _layer_names(fields, "layer_types", source) if "attention" not in t or "linear" in t), None
    )
    if layer_type is not None:
        raise InvalidInput(
            f"layer_types of {source} has {in_short(layer_type)}; layouts are for models whose layers are attention"
        )


def _layer_names(fields: Mapping[str, object], field: str, source: str) -> list[str]:
    """Returns the names that a field has for the layers, one for each; none if the configuration has no such field."""
    names = fields.get(field) or []
    if not isinstance(names, list | tuple):
        raise InvalidInput(f"{field} of {source} is {in_short(names)}; it must be a list with a name for every layer")
    return [str(name) for name in names]


def _first_dense_layers(fields: Mapping[str, object], source: str) -> int:
    """Returns the number of layers before the first one with experts, of configurations that name the type of every layer."""
    types = _layer_names(fields, "mlp_layer_types", source)
    if "dense" not in types or set(types) == {"dense"}:
        return 0
    count = next(k for k, name in enumerate(types) if name != "dense")
    if "dense" in types[count:]:
        raise InvalidInput(
            f"mlp_layer_types of {source} has 'dense' behind {in_short(types[count])}; layouts are for models where all layers "
            "have experts, or all but the first ones"
        )
    return count


_SHARED_WIDTHS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


_FLAGS += ["tie_word_embeddings", "use_sliding_window"]


def _shared_width(fields: Mapping[str, object], sizes: Mapping[str, int], source: str) -> int:
    """Returns the inner width of the shared experts, which every token passes."""
    if fields.get("model_type") == "llama4_text":
        return sizes["feed_forward"]
    width = next((name for name in _SHARED_WIDTHS if fields.get(name)), None)
    if width is not None:
        return check_whole(f"{width} of {source}", fields[width])
    count = next((name for name in _SHARED_COUNTS if fields.get(name)), None)
    shared_experts = 0 if count is None else check_whole(f"{count} of {source}", fields[count], 0)
    return shared_experts * (sizes["expert_feed_forward"] or sizes["feed_forward"])


def _window(fields: Mapping[str, object], kind: str, layers: int, source: str) -> tuple[int, int]:
    """Tokens that attention looks back in some layers, and the number of these layers."""
    window = fields.get("sliding_window")
    if not window or fields.get("use_sliding_window") is False:
        return 0, 0
    types = _layer_names(fields, "layer_types", source)
    pattern = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern")) or WINDOW_PATTERNS.get(kind)
    if types:
        count = sum(name == "sliding_attention" for name in types[:layers])
    elif isinstance(pattern, str):
        count = sum(pattern[k % len(pattern)] == "L" for k in range(layers))
    else:
        count = layers - layers // check_whole(f"sliding_window_pattern of {source}", pattern) if pattern else layers
    return check_whole(f"sliding_window of {source}", window), count
