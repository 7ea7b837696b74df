"""torchtitan: the TOML file of its release 0.2 (`--job.config_file`); later releases are configured in Python.

Source: torchtitan 0.2.2, `torchtitan/config/job_config.py`.
"""

from __future__ import annotations

from ..plans.records import WrittenPlan
from .request import LayoutRequest

_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
_MODELS = ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss")
_NAMES = {"llama": "llama3", "qwen3_moe": "qwen3", "llama4_text": "llama4"}
"""Model types of configurations -> torchtitan's names, where they differ."""


def write(request: LayoutRequest) -> WrittenPlan:
    """Returns the plan, with `value` as {section: {field: value}} and `text` as TOML."""
    layout, model = request.layout, request.transformer
    unsupported_features = request.uneven_pieces(layout.tp if layout.cp > 1 else 2 * layout.tp)
    unsupported_features += request.uneven_vocabulary()
    name = _NAMES.get(request.model_type, request.model_type)
    if name not in _MODELS:
        unsupported_features.append(
            f"torchtitan has no model {request.model_type!r}; its models are {', '.join(_MODELS)}"
        )
    unsupported_features.append(
        "torchtitan reads sizes from a flavor of the model; choose the one with the sizes of the configuration"
    )
    shard_count = layout.dp if layout.zero or layout.devices > layout.dp or layout.ep > 1 else 1
    if shard_count * layout.cp > 1 and layout.zero < 2:
        unsupported_features.append(
            f"torchtitan has no ZeRO-{layout.zero} there; the file divides parameters, gradients and states as ZeRO-2 does"
        )
    elif shard_count * layout.cp == 1 < layout.tp * layout.pp and request.precision == "mixed-bf16":
        unsupported_features.append("torchtitan has no mixed precision without copies; the model trains in float32")
    if request.reduce_precision == "half":
        unsupported_features.append("torchtitan reduces gradients in float32, not in half precision")
    if layout.tp > 1 and not layout.sequence_parallel:
        unsupported_features.append("torchtitan divides norms along the sequence whenever tensor parallelism is on")
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": layout.dp // shard_count,
        "data_parallel_shard_degree": shard_count,
        "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
        "pipeline_parallel_degree": layout.pp,
    }
    if layout.pp > 1:
        if layout.schedule not in _SCHEDULES:
            unsupported_features.append(f"torchtitan has no schedule {layout.schedule}; the file names 1F1B")
        stages, first = [], 0
        for count in request.stage_layers:
            stages.append([f"layers.{k}" for k in range(first, first + count)])
            first += count
        stages[0].insert(0, "tok_embeddings")
        stages[-1] += ["norm", "output"]
        parallelism |= {
            "pipeline_parallel_schedule": _SCHEDULES.get(layout.schedule, "1F1B"),
            "pipeline_parallel_microbatch_size": layout.micro_batch,
            "module_fqns_per_model_part": stages,
        }
    if request.products_in_pieces:
        parallelism["enable_async_tensor_parallel"] = True
    local_batch = request.global_batch // layout.dp if layout.pp > 1 else layout.micro_batch
    value: dict[str, dict[str, object]] = {
        "model": {"name": name},
        "training": {
            "local_batch_size": local_batch,
            "global_batch_size": request.global_batch,
            "seq_len": request.sequence_length,
            "mixed_precision_param": "bfloat16" if request.precision == "mixed-bf16" else "float32",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": layout.recompute},
    }
    if request.products_in_pieces:  # only compiled blocks have them
        value["compile"] = {"enable": True}
    if layout.recompute == "selective":
        value["activation_checkpoint"]["selective_ac_option"] = "op"
        unsupported_features.append(
            "torchtitan's selective recomputation keeps the outputs of products and of attention, and computes the rest again"
        )
    if model.experts and layout.ep > 1 and layout.tp > 1:
        parallelism["expert_tensor_parallel_degree"] = layout.tp
    text = "\n".join(
        "\n".join([f"[{section}]", *(f"{field} = {_toml(entry)}" for field, entry in entries.items()), ""])
        for section, entries in value.items()
    )
    return WrittenPlan("torchtitan", value, text, tuple(unsupported_features), {"torchtitan.toml": text.encode()})


def _toml(entry: object) -> str:
    """Returns a list, text, truth value or number as TOML."""
    if isinstance(entry, list):
        return f"[{', '.join(map(_toml, entry))}]"
    if isinstance(entry, str):
        return f'"{entry}"'
    return str(entry).lower() if isinstance(entry, bool) else str(entry)
