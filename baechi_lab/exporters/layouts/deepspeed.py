"""DeepSpeed: its JSON file.

Source: DeepSpeed 0.19.8, `runtime/config.py` (batch sizes, ZeRO, BF16), `runtime/tensor_parallel/config.py` and
`module_inject/auto_ep_config.py`.
"""

from __future__ import annotations

import json

from ..plans.records import WrittenPlan
from .request import LayoutRequest

_EXPERTS = ("mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3")
"""Model types whose experts DeepSpeed finds by itself."""


def write(request: LayoutRequest) -> WrittenPlan:
    """Returns the file: value is what the JSON holds."""
    layout = request.layout
    unsupported_features = request.uneven_vocabulary() + request.whole_products("DeepSpeed")
    value: dict[str, object] = {
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": request.micro_batches,
        "zero_optimization": {"stage": layout.zero},
    }
    if layout.tp * layout.cp == 1:  # DeepSpeed compares it with all processes, also those that share sequences
        value["train_batch_size"] = request.global_batch
    if layout.zero:
        value["zero_optimization"] = {"stage": layout.zero, "overlap_comm": True, "contiguous_gradients": True}
    if request.precision == "mixed-bf16":
        value["bf16"] = {"enabled": True}
        value["communication_data_type"] = "fp32" if request.reduce_precision == "float32" else "bf16"
        if layout.zero:
            value["data_types"] = {"grad_accum_dtype": "fp32"}
        else:
            unsupported_features.append("without ZeRO, DeepSpeed adds gradients up in bfloat16, not in float32")
    if layout.tp > 1:
        value["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.sequence_parallel:
        unsupported_features.append("DeepSpeed's tensor parallelism does not divide norms along the sequence")
    if layout.pp > 1:
        unsupported_features.append(
            f"the file has no pipeline; make the model a PipelineModule with num_stages={layout.pp}"
        )
        if layout.schedule != "1f1b":
            unsupported_features.append(f"DeepSpeed's pipeline runs 1f1b, not {layout.schedule}")
        if layout.stage_layers is not None:
            unsupported_features.append(
                "the file has no division of layers; DeepSpeed balances the stages by parameters"
            )
    if layout.cp > 1:
        unsupported_features.append(
            "the file has no context parallelism; Ulysses divides heads instead of the sequence"
        )
    if layout.ep > 1:
        value["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
        if request.model_type not in _EXPERTS:
            unsupported_features.append(
                f"DeepSpeed finds no experts in {request.model_type!r}; name their layers in the file"
            )
        if layout.tp > 1:
            unsupported_features.append("DeepSpeed divides no expert over tp; every expert is whole on one device")
    if layout.recompute != "none":
        unsupported_features.append(
            f"the file does not switch {layout.recompute} recomputation on; the model's code does"
        )
    text = json.dumps(value, indent=2) + "\n"
    return WrittenPlan("deepspeed", value, text, tuple(unsupported_features), {"deepspeed.json": text.encode()})
