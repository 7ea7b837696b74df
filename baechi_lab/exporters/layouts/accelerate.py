"""accelerate: the YAML file of `accelerate launch --config_file`, with FSDP 2.

Source: accelerate 1.15, `ParallelismConfig` and `FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import json

from ..plans.records import WrittenPlan
from .request import LayoutRequest


def write(request: LayoutRequest) -> WrittenPlan:
    """The file: value is what the YAML holds."""
    layout = request.layout
    unsupported = request.uneven_pieces()
    sharded = layout.dp if layout.zero else 1
    if layout.zero == 1:
        unsupported.append("FSDP 2 has no ZeRO-1; the file divides parameters, gradients and states as ZeRO-2 does")
    value: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "bf16" if request.precision == "mixed-bf16" else "no",
        "machine_rank": 0,
        "num_machines": request.machines,
        "num_processes": layout.devices,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_activation_checkpointing": layout.recompute == "full",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": layout.dp // sharded,
            "parallelism_config_dp_shard_size": sharded,
            "parallelism_config_tp_size": layout.tp,
            "parallelism_config_cp_size": layout.cp,
        },
    }
    if layout.pp > 1:
        unsupported.append(
            f"accelerate has no pipeline for training; pp={layout.pp} is left out, and its devices with it"
        )
        value["num_processes"] = layout.devices // layout.pp
        value["num_machines"] = -(-(layout.devices // layout.pp) // request.per_machine)
    if layout.ep > 1:
        unsupported.append(f"accelerate has no expert parallelism; ep={layout.ep} is left out")
    if layout.sequence_parallel:
        unsupported.append(
            "the file does not divide norms along the sequence; the model's tensor-parallel plan says that"
        )
    if layout.recompute == "selective":
        unsupported.append("accelerate recomputes whole blocks or nothing; the file recomputes nothing")
    if layout.dp > 1 and layout.cp * layout.tp > 1 and not layout.zero:
        unsupported.append("accelerate has no undivided copies under tp or cp; choose zero of 1 or more")
    if request.micro_batches > 1:
        value["gradient_accumulation_steps"] = request.micro_batches
    unsupported.append(
        f"the file has no batch; give micro-batches of {layout.micro_batch} sequences to the data loader"
    )
    text = _yaml(value)
    return WrittenPlan("accelerate", value, text, tuple(unsupported), {"accelerate.yaml": text.encode()})


def _yaml(value: dict[str, object], indent: str = "") -> str:
    """Returns a mapping of mappings, texts, numbers and truth values as YAML, whose scalars are those of JSON."""
    lines = []
    for key, entry in value.items():
        text = f"\n{_yaml(entry, indent + '  ')}" if isinstance(entry, dict) else f" {json.dumps(entry)}\n"
        lines.append(f"{indent}{key}:{text}")
    return "".join(lines)
