"""torchrun: a script that trains the model under the layout, with the configuration and the layout that it reads.

Tensor parallelism follows the plan of the model's configuration (`base_model_tp_plan` of transformers) by
`torch.distributed.tensor.parallel`, the pipeline `torch.distributed.pipelining`, ZeRO `fully_shard` (FSDP 2).
"""

from __future__ import annotations

import json
from importlib.resources import files
from types import ModuleType

from ...errors import InvalidInput, MissingPackage, UnknownNameError
from ..plans.records import WrittenPlan
from .request import LayoutRequest

_STYLES_TEXT = (
    "colwise rowwise colwise_gather_output rowwise_split_input embedding_rowwise replicated_with_grad_allreduce"
)
STYLES = frozenset(_STYLES_TEXT.split())
"""Styles of division in a plan that the script applies."""
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")
_STAGED_TEXT = """
arcee codegen cohere ernie4_5 exaone4 gemma gemma2 glm glm4 gpt2 gpt_bigcode gpt_neox gptj helium llama mistral mixtral nemotron
olmo olmo2 olmo3 olmoe persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe smollm3 stablelm starcoder2
"""
STAGED = tuple(_STAGED_TEXT.split())
"""Model types whose stages were compared with the undivided model: what is before and after the layers is known."""


def write(request: LayoutRequest) -> WrittenPlan:
    """Returns the script and its files: value is the layout as the script reads it, text the command that starts it.

    Raises:
        InvalidInput: a layout that the script does not run: context or expert parallelism, other schedules, a model whose plan
            does not cover its layers.
        MissingPackage: without transformers.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage.of("transformers", "transformers", "the script of a layout") from error
    layout = request.layout
    _refuse_layouts(request)
    config, architecture = _architecture(transformers, request)
    plan = _tensor_parallel_plan(request, config, architecture) if layout.tp > 1 else {}
    tied = bool(config.tie_word_embeddings)
    if tied:
        layers = f"{architecture.base_model_prefix}.layers"
        plan = {pattern: style for pattern, style in plan.items() if pattern.startswith(layers)}
    unsupported_features = _differences(request, tied)
    settings: dict[str, object] = {
        "tp": layout.tp,
        "dp": layout.dp,
        "pp": layout.pp,
        "zero": layout.zero,
        "micro_batch": layout.micro_batch,
        "global_batch": request.global_batch,
        "sequence_length": request.sequence_length,
        "schedule": layout.schedule,
        "recompute": layout.recompute,
        "stage_layers": list(request.stage_layers),
        "precision": request.precision,
        "reduce_precision": request.reduce_precision,
        "attention": "sdpa" if getattr(architecture, "_supports_sdpa", False) else "eager",
        "vocabulary": request.transformer.vocabulary,
        "tied": tied,
        "tensor_parallel_plan": plan,
        "learning_rate": 3e-4,
        "seed": 0,
    }
    command = f"torchrun --nproc-per-node {request.processes_per_machine} train.py"
    if request.machines > 1:
        command = (
            f"torchrun --nnodes {request.machines} --nproc-per-node {request.processes_per_machine} "
            "--rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 train.py"
        )
    fields = config.to_dict() | {"architectures": [architecture.__name__]}
    lines = ["The command trains the model of `config.json` under the layout of `layout.json`.", *unsupported_features]
    layout_fields = {
        "train.py": files(__package__).joinpath("train.py").read_bytes(),
        "layout.json": json.dumps(settings, indent=1).encode() + b"\n",
        "config.json": json.dumps(fields, indent=1, default=str).encode() + b"\n",
        "README.md": f"    {command}\n\n".encode()
        + "\n".join(line[:1].upper() + line[1:].removesuffix(".") + ".\n" for line in lines).encode(),
    }
    return WrittenPlan("torchrun", settings, command + "\n", tuple(unsupported_features), layout_fields)


def _refuse_layouts(request: LayoutRequest) -> None:
    """Raises `InvalidInput` for a layout that the script does not run."""
    layout = request.layout
    for axis, degree in (("cp", layout.cp), ("ep", layout.ep)):
        if degree > 1:
            raise InvalidInput(
                f"{axis} is {degree}; the script runs layouts with {axis} 1 (format megatron runs others)"
            )
    if layout.pp > 1 and layout.schedule not in SCHEDULES:
        raise InvalidInput(f"schedule is {layout.schedule!r}; the script runs {', '.join(SCHEDULES)}")
    if layout.pp > 1 and request.model_type not in STAGED:
        raise InvalidInput(f"pp is {layout.pp}; the script divides only these models into stages: {', '.join(STAGED)}")
    if layout.recompute == "selective":
        raise InvalidInput("recompute is 'selective'; the script recomputes 'none' or 'full'")


def _differences(request: LayoutRequest, tied: bool) -> list[str]:
    """Returns sentences on what the script does in another way than the layout."""
    layout = request.layout
    sentences = request.whole_products("the script")
    if tied and layout.tp > 1:
        sentences.append(
            "the output layer is tied to the embedding; every tensor-parallel rank holds both and computes them whole"
        )
    elif layout.tp > 1:
        sentences += request.uneven_vocabulary()
        sentences.append("every tensor-parallel rank gathers the logits, and computes the loss of the whole vocabulary")
    if layout.sequence_parallel:
        sentences.append("the script does not divide norms along the sequence (sequence_parallel)")
    if request.reduce_precision == "half" and layout.zero < 2 and layout.dp > 1:
        does = "also adds gradients up in bfloat16" if layout.zero else "reduces gradients in float32"
        sentences.append(f"with ZeRO-{layout.zero}, the script {does}")
    return sentences


def _architecture(transformers: ModuleType, request: LayoutRequest):  # type: ignore[no-untyped-def]
    """Returns the configuration and the class of the causal language model that it describes."""
    kind = request.model_type
    if kind not in transformers.CONFIG_MAPPING:
        raise UnknownNameError(
            f"model_type is {kind!r}; transformers {transformers.__version__} has no architecture of that name"
        )
    config = transformers.CONFIG_MAPPING[kind].from_dict(dict(request.fields))
    causal = transformers.AutoModelForCausalLM._model_mapping
    if type(config) not in causal:
        raise InvalidInput(f"model_type is {kind!r}, which has no causal language model; the script trains only those")
    return config, causal[type(config)]


def _tensor_parallel_plan(request: LayoutRequest, config, architecture) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """Returns a pattern of module names -> the style of their division."""
    kind, tp = request.model_type, request.layout.tp
    prefix = architecture.base_model_prefix
    plan = {f"{prefix}.{pattern}": style for pattern, style in (config.base_model_tp_plan or {}).items()}
    if not plan:
        raise InvalidInput(f"tp is {tp}; transformers has no tensor-parallel plan for {kind!r} models")
    plan |= architecture._tp_plan or {}
    unknown = sorted({f"{pattern} ({style})" for pattern, style in plan.items() if style not in STYLES})
    if unknown:
        raise InvalidInput(f"tp is {tp}; the script cannot divide {unknown[0]} of {kind!r} models")
    return plan
