"""accelerate: the YAML file of `accelerate launch --config_file`, with FSDP 2.

Source: accelerate 1.15, `ParallelismConfig` and `FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import json

from ..plans.records import WrittenPlan
from .request import LayoutRequest


def write(request: LayoutRequest) -> WrittenPlan:
    """Returns the file: value is what the YAML holds."""
    layout = request.layout
    unsupported_features = request.uneven_pieces() + request.uneven_vocabulary() + request.whole_products("accelerate")
    shard_count = layout.dp if layout.zero or layout.tp * layout.cp > 1 else 1
    processes = layout.devices // layout.pp
    fsdp = shard_count * layout.cp > 1
    if fsdp and layout.zero < 2:
        unsupported_features.append(
            f"FSDP 2 has no ZeRO-{layout.zero}; the file divides parameters, gradients and states as ZeRO-2 does"
        )
    value: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if fsdp else "MULTI_GPU" if processes > 1 else "NO",
        "mixed_precision": "bf16" if request.precision == "mixed-bf16" else "no",
        "machine_rank": 0,
        "num_machines": -(-processes // request.per_machine),
        "num_processes": processes,
    }
    if fsdp:
        value["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_activation_checkpointing": layout.recompute == "full",
        }
        if request.precision == "mixed-bf16" and request.reduce_precision == "float32":
            unsupported_features.append(
                "accelerate reduces gradients in bfloat16, not in float32; give FullyShardedDataParallelPlugin a "
                "mixed_precision_policy with the dtype, or simulate reduce_precision='half'"
            )
    elif layout.recompute == "full":
        unsupported_features.append(
            "the file recomputes only with FSDP; the model's gradient_checkpointing_enable() does"
        )
    if fsdp or layout.tp > 1:
        value["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": layout.dp // shard_count,
            "parallelism_config_dp_shard_size": shard_count,
            "parallelism_config_tp_size": layout.tp,
            "parallelism_config_cp_size": layout.cp,
        }
    if processes > request.per_machine:
        unsupported_features.append(
            "the file is of machine 0; give --machine_rank and --main_process_ip on every machine"
        )
    if layout.pp > 1:
        unsupported_features.append(f"accelerate has no pipeline; pp={layout.pp} is left out, and its devices with it")
    if layout.ep > 1:
        unsupported_features.append(f"accelerate has no expert parallelism; ep={layout.ep} is left out")
    if layout.tp > 1:
        unsupported_features.append(
            "most tensor-parallel plans of transformers leave the embedding whole and gather the logits on every rank"
        )
    if layout.sequence_parallel:
        unsupported_features.append(
            "the model's tensor-parallel plan says whether norms are divided along the sequence"
        )
    if layout.recompute == "selective":
        unsupported_features.append("accelerate recomputes whole blocks or nothing; the file recomputes nothing")
    steps = f"gradient_accumulation_steps={request.micro_batches}"
    if fsdp and layout.zero >= 2 and request.micro_batches > 1:  # without it, gradients are whole until the last one
        steps = (
            f"gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps={request.micro_batches}, "
            "sync_each_batch=True)"
        )
    unsupported_features.append(
        f"the file has no batch; give micro-batches of {layout.micro_batch} sequences to the data loader, and "
        f"{steps} to the Accelerator"
    )
    text = _yaml(value)
    return WrittenPlan("accelerate", value, text, tuple(unsupported_features), {"accelerate.yaml": text.encode()})


def _yaml(value: dict[str, object], indent: str = "") -> str:
    """Returns a mapping of mappings, texts, numbers and truth values as YAML, whose scalars are those of JSON."""
    lines = []
    for key, entry in value.items():
        text = f"\n{_yaml(entry, indent + '  ')}" if isinstance(entry, dict) else f" {json.dumps(entry)}\n"
        lines.append(f"{indent}{key}:{text}")
    return "".join(lines)
