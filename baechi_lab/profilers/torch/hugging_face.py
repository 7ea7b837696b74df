"""Builds Hugging Face models from configurations: the model on the meta device with inputs, without weights or downloads.

A `config.json` names its architecture; the package `transformers` has the classes. Parameters are only shapes, so a model of
any size is ready in seconds and can be profiled with `hardware=`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...checks import check_flag, check_tokens
from ...errors import BaechiLabError, InvalidInput, MissingPackage, UnknownNameError, describe_error, in_short
from ...graph.formats.model_configuration import read_configuration
from ..programs.detection import is_instance
from .fake_tensors import DTYPES, named_dtype
from .network_guard import causes, offline, used_network
from .quantization import quantize

if TYPE_CHECKING:
    from types import ModuleType

    from transformers import PretrainedConfig

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_TOKENS = tuple(
    f"For{task}" for task in ("CausalLM", "MaskedLM", "PreTraining", "ConditionalGeneration", "TokenClassification")
) + ("LMHeadModel",)
_CLASSES = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Audio", "Video")) + (
    "ForMultipleChoice",
)
CHOICES = 2
"""Number of answers to a multiple-choice question; each answer is a text of its own."""
_OWN_PROCESSOR = ("image_grid_thw", "aspect_ratio_ids", "pixel_attention_mask", "image_sizes", "target_sizes")
"""Arguments, beside the images, of models that cut each image into parts by its size; their values are unknown here."""
MOST_MODULES = 10_000
"""Largest number of layers, blocks or experts in one model."""
_COUNT_FIELDS = ("layers", "n_layer", "depth", "num_block", "experts", "num_stage")
"""Parts of the names of fields that count layers, blocks or experts."""
_SECOND_INPUT = re.compile(
    "pixel_values(?!_videos)|input_features(?!_mask)|^input_values$|image_patches|flattened_patches|^protein_input_ids$"
)
"""Arguments of models with several kinds of input, each of which has layers of its own."""
GIVE_INPUTS = (
    "make the model with transformers under torch.device('meta') and give bl.torch.profile(model, inputs, hardware=...) "
    "inputs of your own"
)
_RANDOM_SETTINGS = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
"""Settings by which training drops layers or masks frames at random; an estimate includes all of them."""
IMAGE_SIZE = 224
"""Side of an image in pixels, for models that take images of any size."""


_TEXT = {"input_ids", "decoder_input_ids", "labels"}

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def hugging_face(
    config: str | Path | Mapping[str, object] | PretrainedConfig,
    *,
    batch_size: int = 1,
    sequence_length: int = 512,
    labels: bool = True,
    dtype: str | torch.dtype | None = None,
) -> tuple[nn.Module, dict[str, object]]:
    """Builds a model and sample inputs on the meta device from a configuration, for `bl.torch.profile(..., hardware=)`.

    Args:
        config: a `config.json` file, the folder that contains it, its content, or a configuration of transformers that names
            its `architectures`.
        batch_size: samples in the inputs.
        sequence_length: tokens per sample, those of an image in its text among them; of sound, frames that the model's
            first layers make of it (Whisper takes 30 seconds always). Of images, one per sample, the configuration says
            the size.
        labels: True adds labels to the inputs, so that the model computes its loss.
        dtype: of the weights ("bf16", "fp16", "fp32"); by default what the configuration says.

    Returns:
        The module, in training mode (no layer is left out by chance), and its keyword arguments. Its weights have the
        `dtype`, float32 where the configuration names none; those that `quantization_config` quantizes count with the
        bytes that they are stored in, scales among them, and are not trained. Where text is all that it
        takes, tokens have values, for code that looks for padding: a token of no meaning of its own, and the end of a text
        where the model classifies by that.

    Raises:
        MissingPackage: transformers, or a package that the model needs (timm), is not installed.
        FormatError: a file that is not there, not JSON, or no object.
        InvalidInput: a field that is missing or makes no model; a backbone that only a hub has; a method of quantization
            whose bytes are not known; more tokens than the model has positions, or than
            `baechi_lab.checks.MOST_TOKENS` in all; a model whose inputs cannot be made of its configuration, such as images
            that are cut into parts.
        UnknownNameError: a model type or architecture that the installed transformers does not have.
    """
    transformers = _import_transformers()
    fields, source = _read_fields(config)
    batch_size, sequence_length = check_tokens("batch_size", batch_size, sequence_length)
    labels = check_flag("labels", labels)
    with offline():
        weight_type = named_dtype(dtype) or _dtype(fields, source)
        model, config = _make_model(transformers, fields, source, weight_type)
        quantize(model, fields, source)
        inputs = _inputs(model, config, type(model).__name__, batch_size, sequence_length, labels)
        return model.train(), {k: v.to(weight_type) if _is_float(v) else v for k, v in inputs.items()}


def count_parameters(fields: Mapping[str, object], source: str) -> int:
    """Returns the number of parameters of the language model that transformers makes from a configuration's fields.

    Raises:
        MissingPackage: as `hugging_face` does.
        InvalidInput: as `hugging_face` does.
        UnknownNameError: transformers has no language model of this type.
    """
    transformers = _import_transformers()
    from transformers.models.auto import modeling_auto

    kind = fields.get("model_type")
    language_models = {
        **modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    if not isinstance(kind, str) or kind not in language_models:
        version = transformers.__version__
        raise UnknownNameError(f"{source}: transformers {version} has no language model of type {in_short(kind, 80)}")
    with offline():
        language_model = {**fields, "architectures": [language_models[kind]]}
        model, _ = _make_model(transformers, language_model, source, _dtype(fields, source))
        return sum(parameter.numel() for parameter in model.parameters())


def complete_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields of a configuration with the defaults of its class for those that it leaves out.

    Raises:
        MissingPackage: transformers is not installed.
        InvalidInput: the fields make no configuration.
        UnknownNameError: transformers has no such type.
    """
    transformers = _import_transformers()
    with offline():
        return {**_configuration(transformers, dict(fields), "the configuration").to_dict(), **fields}


def _import_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage.of("transformers", "transformers", "a Hugging Face configuration") from error
    return transformers


def _make_model(
    transformers: ModuleType, fields: dict[str, object], source: str, weight_type: torch.dtype
) -> tuple[nn.Module, PretrainedConfig]:
    """Returns the model on the meta device, and its configuration."""
    config = _configuration(transformers, fields, source)
    _check_sizes(config, fields, source)
    architectures = fields.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise InvalidInput(f"{source} has no field 'architectures', a list such as ['LlamaForCausalLM']")
    try:
        architecture = getattr(transformers, architectures[0], None)
    except ImportError as error:
        raise _refusal(error, fields, source, f"transformers cannot import {in_short(architectures[0], 80)}") from error
    if not (isinstance(architecture, type) and issubclass(architecture, nn.Module)):
        raise UnknownNameError(
            f"{source}: unknown architecture {in_short(architectures[0], 80)}; transformers {transformers.__version__} has no "
            "model of that name"
        )
    for subconfig in (config, *(value for value in vars(config).values() if hasattr(value, "model_type"))):
        if getattr(subconfig, "use_pretrained_backbone", False):
            subconfig.use_pretrained_backbone = False
    for name, value in _RANDOM_SETTINGS.items():
        if hasattr(config, name):
            setattr(config, name, value)
    try:
        with torch.device("meta"):
            model = architecture._from_config(config, dtype=weight_type)  # type: ignore[attr-defined]
    except Exception as error:  # the library's code may raise anything for these values
        raise _refusal(
            error, fields, source, f"{source} makes no {architecture.__name__}: {describe_error(error, 200)}"
        ) from error
    # Loading keeps some weights in float32, which the model's class names.
    float32_modules = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if weight_type is torch.float16:
        float32_modules |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters() if weight_type in (torch.float16, torch.bfloat16) else ():
        if any(re.search(rf"(^|\.){key}(\.|$)", name) for key in float32_modules):
            parameter.data = parameter.data.float()
    return model, config


def _dtype(fields: Mapping[str, object], source: str) -> torch.dtype:
    """Returns the weights' type that a configuration or one of its parts names; float32 if none is named.

    Raises:
        InvalidInput: the configuration names another type, such as float64 or float8_e4m3fn.
    """
    for key in ("dtype", "torch_dtype"):
        if (
            fields.get(key) not in (None, "auto")
            and (dtype := named_dtype(fields[key], f"{key} of {source}")) is not None
        ):
            return dtype
    sections = [fields, *(section for section in fields.values() if isinstance(section, Mapping))]
    dtypes = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    return next((DTYPES[n] for n in (str(n).removeprefix("torch.") for n in dtypes) if n in DTYPES), torch.float32)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _read_fields(config: str | Path | Mapping[str, object] | PretrainedConfig) -> tuple[dict[str, object], str]:
    """Returns the fields of a configuration, and a name for it in messages."""
    if isinstance(config, Mapping):
        return dict(config), "the configuration"
    if is_instance(config, "transformers", "PretrainedConfig"):
        return config.to_dict(), "the configuration"  # type: ignore[union-attr]
    return read_configuration(config)  # type: ignore[arg-type]


def _configuration(transformers: ModuleType, fields: dict[str, object], source: str) -> PretrainedConfig:
    kinds = transformers.CONFIG_MAPPING
    kind = fields.get("model_type")
    if kind is None:
        raise InvalidInput(f"{source} has no field 'model_type'; it names the architecture, such as 'llama'")
    if not isinstance(kind, str) or kind not in kinds:
        near = get_close_matches(str(kind), kinds.keys(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"{source}: unknown model_type {in_short(kind, 80)}; transformers {transformers.__version__} has no architecture of "
            f"that name{hint}"
        )
    _check_counts(fields, source)
    try:
        config = kinds[kind].from_dict(fields)
    except Exception as error:  # the library's checks and validators of huggingface_hub may raise anything
        raise _refusal(
            error, fields, source, f"{source} is no configuration of {kind}: {describe_error(error, 200)}"
        ) from error
    return config


def _check_sizes(config: PretrainedConfig, fields: Mapping[str, object], source: str) -> None:
    """Raises `InvalidInput` if a configuration leaves one of the model's sizes to the defaults of its class."""
    known_fields = config.to_dict().keys()  # a size that layers have of their own is an attribute that cannot be read
    for name in _SIZES:
        names = {name, config.attribute_map.get(name, name)}
        has_sections = any(isinstance(value, dict) for value in fields.values())
        if names & known_fields and not names & fields.keys() and not has_sections:
            choices = " or ".join(repr(n) for n in sorted(names))
            raise InvalidInput(f"{source} has no field {choices}; without it the model's size is not known")


_MISSING = re.compile(r"requires the (\S+) library|`(\S+)` is either not installed|No module named '([^']+)'")


def _refusal(error: BaseException, fields: Mapping[str, object], source: str, message: str) -> BaechiLabError:
    """Returns the error to raise for an error of the library: a missing download, a package that is missing or cannot be
    imported, or `message`.
    """
    if used_network(error):
        name = fields.get("backbone")
        missing_files = (
            f"the files of {in_short(name, 80)}, its 'backbone'," if isinstance(name, str) else "files of a hub"
        )
        how = " (put the configuration of that model into 'backbone_config')" if isinstance(name, str) else ""
        return InvalidInput(f"{source} needs {missing_files} and nothing is downloaded{how}")
    import_errors = [e for e in causes(error) if isinstance(e, ImportError)]
    package_match = next((match for match in map(_MISSING.search, map(str, import_errors)) if match), None)
    if package_match is not None:
        package = package_match[package_match.lastindex or 0]
        return MissingPackage(f"{source} needs the package {package!r}: pip install {package}")
    if import_errors:  # transformers hides what the import of one of its modules raised
        first_error = [*causes(error)][-1]
        return MissingPackage(f"{source} needs a package that cannot be imported: {describe_error(first_error, 200)}")
    return InvalidInput(message)


def _check_counts(fields: Mapping[str, object], source: str) -> None:
    """Rejects more modules than any model has, which would take endless time to create."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            _check_counts(value, source)
        elif isinstance(value, int) and value > MOST_MODULES and any(word in key for word in _COUNT_FIELDS):
            raise InvalidInput(
                f"field {in_short(key, 80)} of {source} is {in_short(value, 40)}; it must be at most {MOST_MODULES}"
            )


def _inputs(
    model: nn.Module, config: PretrainedConfig, kind: str, batch: int, length: int, labels: bool
) -> dict[str, torch.Tensor]:
    """Returns the inputs that the model's `forward` takes, with sizes from its configuration; refuses what that leaves open."""
    parameters = inspect.signature(model.forward).parameters
    inputs = _main_inputs(model.main_input_name, config, kind, batch, length)
    if "pixel_values" in parameters and "pixel_values" not in inputs:
        # Models like Llava take whole images, whatever else they accept.
        image_features = getattr(getattr(model, "model", model), "get_image_features", None)
        sizes = None if image_features is None else inspect.signature(image_features).parameters.get("image_sizes")
        takes_whole_images = image_features is not None and (sizes is None or sizes.default is None)
        argument = next(
            (n for n in _OWN_PROCESSOR if n in parameters and not (takes_whole_images and n == "image_sizes")), None
        )
        if argument is not None:
            raise InvalidInput(
                f"{kind} takes {argument!r} beside its images, which its configuration does not say; {GIVE_INPUTS}"
            )
        inputs["pixel_values"] = _images(config, batch)
    if "input_ids" in parameters and "input_ids" not in inputs:
        inputs["input_ids"] = _tokens(batch, length)
    second_input = next((n for n in parameters if _SECOND_INPUT.search(n) and n not in inputs), None)
    if second_input is not None:
        raise InvalidInput(f"{kind} takes {second_input!r} beside {model.main_input_name!r}; {GIVE_INPUTS}")
    if "bbox" in parameters:
        inputs["bbox"] = _tokens(batch, length, 4)
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        _check_positions(config, "max_target_positions", length)
        inputs["decoder_input_ids"] = _tokens(batch, length)
    if labels and "labels" in parameters and kind.endswith(_TOKENS):
        inputs["labels"] = _tokens(batch, length)
    if labels and "labels" in parameters and kind.endswith(_CLASSES):
        inputs["labels"] = _tokens(batch)
        config.problem_type = getattr(config, "problem_type", None) or "single_label_classification"
    if kind.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if getattr(config, "image_token_id", 0) is None:  # which tokens stand for images makes no difference
        config.image_token_id = 0
    missing = next(
        (n for n, p in parameters.items() if p.default is p.empty and p.kind in _NAMED and n not in inputs), None
    )
    if missing is not None:
        raise InvalidInput(f"{kind} needs {missing!r}, which its configuration does not say; {GIVE_INPUTS}")
    if not inputs.keys() - _TEXT:
        for name in inputs.keys() & {"input_ids", "decoder_input_ids"}:
            # Tokens that are neither padding nor special in the configuration: the model ignores none of them.
            token_numbers = [v for k, v in vars(config).items() if re.search("_(token_id|index)$", k)]
            special_tokens = {token for v in token_numbers for token in (v if isinstance(v, list) else [v])}
            plain = next(k for k in range(len(special_tokens) + 1) if k not in special_tokens)
            tokens = torch.full(inputs[name].shape, plain)
            end = getattr(config, "eos_token_id", None)
            if config.is_encoder_decoder and kind.endswith("ForSequenceClassification") and isinstance(end, int):
                tokens[..., -1] = end
            inputs[name] = tokens
    return inputs | ({"use_cache": False} if "use_cache" in parameters else {})


def _main_inputs(main: str, config: PretrainedConfig, kind: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Returns the main input of a model, by its argument name."""
    if main == "input_ids":
        _check_positions(getattr(config, "text_config", config), "max_position_embeddings", length)
        return {main: _tokens(batch, *[CHOICES] * kind.endswith("ForMultipleChoice"), length)}
    if main == "pixel_values":
        return {main: _images(config, batch)}
    shape = _sound(config, length) if main in ("input_features", "input_values") else None
    if shape is None:
        raise InvalidInput(f"{kind} takes {main!r}, whose shape its configuration does not say; {GIVE_INPUTS}")
    return {main: _real_input(batch, *shape)}


def _check_positions(config: PretrainedConfig, field: str, length: int) -> None:
    max_positions = getattr(config, field, None)
    if isinstance(max_positions, int) and 0 < max_positions < length:
        raise InvalidInput(f"sequence_length is {length}; the model has {max_positions} positions")


def _tokens(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="meta")


def _images(config: PretrainedConfig, batch: int) -> torch.Tensor:
    """Returns one image per sample, or the frames of a video, in the size of the vision model."""
    vision_config = next(
        (c for c in (getattr(config, n, None) for n in ("vision_config", "encoder")) if c is not None), config
    )
    side = getattr(vision_config, "image_size", getattr(vision_config, "input_size", IMAGE_SIZE))
    size = side if isinstance(side, (list, tuple)) else [side] * 2
    frames = [vision_config.num_frames] if hasattr(vision_config, "num_frames") else []
    return _real_input(batch, *frames, getattr(vision_config, "num_channels", 3), *size)


def _real_input(*shape: int) -> torch.Tensor:
    """Returns an input of that shape on the meta device; `InvalidInput` for one that no memory could hold."""
    try:
        return torch.zeros(*shape, device="meta")
    except RuntimeError as error:  # its bytes are no 64-bit number
        raise InvalidInput(f"the configuration's sizes make an input of shape {shape}, which is too large") from error


def _sound(config: PretrainedConfig, length: int) -> tuple[int, ...] | None:
    """Returns the shape of a sound: a spectrum, or samples that convolutions turn into `length` frames; None if unknown."""
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):  # Whisper, which halves its frames
        return config.num_mel_bins, 2 * config.max_source_positions
    if hasattr(config, "input_feat_per_channel"):
        return length, config.input_feat_per_channel * config.input_channels
    if hasattr(config, "feature_projection_input_dim"):
        return length, config.feature_projection_input_dim
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        return config.max_length, config.num_mel_bins
    if not (hasattr(config, "conv_kernel") and hasattr(config, "conv_stride")):
        return None
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        length = (length - 1) * stride + kernel
    return (length,)
