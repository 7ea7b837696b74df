"""Hugging Face models by configuration: the model on the meta device and inputs for it, without weights or downloads.

A `config.json` names its architecture; the package `transformers` has the classes. Parameters are shapes only, so that
a model of any size is there in seconds, to be profiled with `hardware=`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...checks import check_whole
from ...errors import BaechiLabError, FormatError, InvalidInput, MissingPackage, UnknownNameError
from ...graph.formats.reading import name_of
from .faking import DTYPES
from .offline import causes, offline, used_network
from .quantization import quantize

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_TOKENS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForPreTraining",
    "ForConditionalGeneration",
    "ForTokenClassification",
)
_CLASSES = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForAudioClassification",
    "ForVideoClassification",
    "ForMultipleChoice",
)
CHOICES = 2
"""Answers to a question of multiple choice, each of which is a text of its own."""
_OWN_PROCESSOR = ("image_grid_thw", "aspect_ratio_ids", "pixel_attention_mask", "image_sizes", "target_sizes")
"""Arguments beside the images of models that cut each image into parts, by its size: what they get is not known here."""
LARGEST_CONFIG = 1 << 24
MOST_MODULES = 10_000
"""Of layers, blocks or experts in one model."""
_COUNTS = ("layers", "n_layer", "depth", "num_block", "experts", "num_stage")
_OTHER = re.compile(
    "pixel_values(?!_videos)|input_features(?!_mask)|^input_values$|image_patches|flattened_patches|^protein_input_ids$"
)
"""Arguments of models of several kinds of input, each of which has layers of its own."""
GIVE = (
    "make the model with transformers under torch.device('meta') and give bl.torch.profile(model, inputs, hardware=...) "
    "inputs of your own"
)
_BY_CHANCE = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
"""Layers that training leaves out and frames that it masks, as drawn numbers say; an estimate has all of them."""
IMAGE_SIZE = 224
"""Pixels on a side, where a model takes images of any size."""


MOST_TOKENS = 2**28
"""Tokens have values, of 8 bytes each."""


def hugging_face(
    config: str | Path | Mapping[str, Any], *, batch_size: int = 1, sequence_length: int = 512, labels: bool = True
) -> tuple[nn.Module, dict[str, Any]]:
    """A model of a configuration and sample inputs, both on the meta device, for `bl.torch.profile(..., hardware=)`.

    Args:
        config: a `config.json` file, the folder that has it, or what it holds.
        batch_size: samples in the inputs.
        sequence_length: tokens per sample, those of an image in its text among them; of sound, frames that the model's
            first layers make of it (Whisper takes 30 seconds always). Of images, one per sample, the configuration says
            the size.
        labels: whether the inputs have labels, so that the model computes its loss.

    Returns:
        The module, in training mode (no layer is left out by chance), and its keyword arguments. Its weights have the
        configuration's `dtype`, float32 where it names none; those that `quantization_config` quantizes count with the
        bytes that they are stored in, scales among them, and are not trained. Where text is all that it
        takes, tokens have values, for code that looks for padding: a token of no meaning of its own, and the end of a text
        where the model classifies by that.

    Raises:
        MissingPackage: transformers, or a package that the model needs (timm), is not installed.
        FormatError: a file that is not there, not JSON, or no object.
        InvalidInput: a field that is missing or makes no model; a backbone that only a hub has; a method of quantization
            whose bytes are not known; more tokens than the model has positions, or than `MOST_TOKENS`
            in all; a model whose inputs cannot be made of its configuration, such as images that are cut into parts.
        UnknownNameError: a model type or architecture that the installed transformers does not have.
    """
    transformers = _transformers()
    fields, where = _fields(config)
    check_whole("batch_size", batch_size, 1)
    check_whole("sequence_length", sequence_length, 1)
    if batch_size * sequence_length > MOST_TOKENS:
        raise InvalidInput(
            f"batch_size is {batch_size} and sequence_length {sequence_length}; a step may have at most {MOST_TOKENS} tokens"
        )
    with offline():
        return _made(transformers, fields, where, batch_size, sequence_length, labels)


def _made(
    transformers: Any, fields: dict[str, Any], where: str, batch_size: int, sequence_length: int, labels: bool
) -> tuple[nn.Module, dict[str, Any]]:
    made = _configuration(transformers, fields, where)
    kind = _architecture(transformers, fields, where)
    for part in (made, *(part for part in vars(made).values() if hasattr(part, "model_type"))):
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
    for name, value in _BY_CHANCE.items():
        if hasattr(made, name):
            setattr(made, name, value)
    dtype = _dtype(fields)
    try:
        with torch.device("meta"):
            model = kind._from_config(made, dtype=dtype)
    except Exception as error:  # its code was not written for these values, and raises what it likes
        raise _refusal(error, fields, where, f"{where} makes no {kind.__name__}: {_line(error)}") from error
    _keep_in_float32(model, dtype)
    quantize(model, fields, where)
    inputs = _inputs(model, made, kind.__name__, batch_size, sequence_length, labels)
    return model.train(), {k: v.to(dtype) if _is_float(v) else v for k, v in inputs.items()}


def _dtype(fields: Mapping[str, Any]) -> torch.dtype:
    """The type of the weights that a configuration names, or else that of a part; float32 where none is named."""
    parts = [fields, *(part for part in fields.values() if isinstance(part, Mapping))]
    named = (part.get(key) for part in parts for key in ("dtype", "torch_dtype"))
    return next((DTYPES[n] for n in (str(n).removeprefix("torch.") for n in named) if n in DTYPES), torch.float32)


def _keep_in_float32(model: Any, dtype: torch.dtype) -> None:
    """Give weights float32 that the model's class keeps in it, as loading does."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype is torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters() if dtype in (torch.float16, torch.bfloat16) else ():
        if any(re.search(rf"(^|\.){key}(\.|$)", name) for key in kept):
            parameter.data = parameter.data.float()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage.of("transformers", "transformers", "a Hugging Face configuration") from error
    return transformers


def _fields(config: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What a configuration holds, and what to call it."""
    if isinstance(config, Mapping):
        return dict(config), "the configuration"
    path = Path(name_of(config, "config"))
    try:
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise FormatError(f"{path}: no such file; name the config.json of the model (nothing is downloaded)")
        if path.stat().st_size > LARGEST_CONFIG:
            raise FormatError(f"{path}: larger than {LARGEST_CONFIG} bytes; a configuration is a small JSON file")
        fields = json.loads(path.read_text(encoding="utf-8"), object_hook=_number)
    except OSError as error:
        raise FormatError(f"{str(path)[:200]}: cannot be read: {error.strerror or error}") from error
    except FormatError:
        raise
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {_line(error)}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{path}: holds a {type(fields).__name__}; a configuration is a JSON object")
    return fields, str(path)


def _number(found: dict[str, Any]) -> Any:
    """Infinity as `save_pretrained` writes it: {"__float__": "Infinity"}."""
    return float(str(found["__float__"])) if found.keys() == {"__float__"} else found


def _configuration(transformers: Any, fields: dict[str, Any], where: str) -> Any:
    kinds = transformers.CONFIG_MAPPING
    kind = fields.get("model_type")
    if kind is None:
        raise InvalidInput(f"{where} has no field 'model_type'; it names the architecture, such as 'llama'")
    if not isinstance(kind, str) or kind not in kinds:
        near = get_close_matches(str(kind), kinds.keys(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"{where}: unknown model_type {kind!r:.80}; transformers {transformers.__version__} has no architecture of that "
            f"name{hint}"
        )
    _check_counts(fields, where)
    try:
        made = kinds[kind].from_dict(fields)
    except Exception as error:  # its checks raise what they like, validators of huggingface_hub among it
        raise _refusal(error, fields, where, f"{where} is no configuration of {kind}: {_line(error)}") from error
    for name in _SIZES:
        names = {name, made.attribute_map.get(name, name)}
        if hasattr(made, name) and not names & fields.keys() and not any(isinstance(v, dict) for v in fields.values()):
            shown = " or ".join(repr(n) for n in sorted(names))
            raise InvalidInput(f"{where} has no field {shown}; without it the model's size is not known")
    return made


_MISSING = re.compile(r"requires the (\S+) library|`(\S+)` is either not installed|No module named '([^']+)'")


def _refusal(error: BaseException, fields: Mapping[str, Any], where: str, message: str) -> BaechiLabError:
    """What to raise for an error of the library: it needs files of a hub or another package, or as `message` says."""
    if used_network(error):
        name = fields.get("backbone")
        what = f"the files of {name!r:.80}, its 'backbone'," if isinstance(name, str) else "files of a hub"
        how = " (put the configuration of that model into 'backbone_config')" if isinstance(name, str) else ""
        return InvalidInput(f"{where} needs {what} and nothing is downloaded{how}")
    absent = (_MISSING.search(str(e)) for e in causes(error) if isinstance(e, ImportError))
    found = next((match for match in absent if match), None)
    if found is not None:
        package = found[found.lastindex or 0]
        return MissingPackage(f"{where} needs the package {package!r}: pip install {package}")
    return InvalidInput(message)


def _check_counts(fields: Mapping[str, Any], where: str) -> None:
    """Refuse more modules than any model has, which would be made one by one without end."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            _check_counts(value, where)
        elif isinstance(value, int) and value > MOST_MODULES and any(word in key for word in _COUNTS):
            raise InvalidInput(f"field {key!r:.80} of {where} is {value!r:.40}; it must be at most {MOST_MODULES}")


def _architecture(transformers: Any, fields: dict[str, Any], where: str) -> Any:
    named = fields.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise InvalidInput(f"{where} has no field 'architectures', a list such as ['LlamaForCausalLM']")
    kind = getattr(transformers, named[0], None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UnknownNameError(
            f"{where}: unknown architecture {named[0]!r:.80}; transformers {transformers.__version__} has no model of that name"
        )
    return kind


def _inputs(model: Any, config: Any, kind: str, batch: int, length: int, labels: bool) -> dict[str, Any]:
    accepted = inspect.signature(model.forward).parameters
    inputs = _main_inputs(model.main_input_name, config, kind, batch, length)
    if "pixel_values" in accepted and "pixel_values" not in inputs:
        _refuse_parts(model, accepted, kind)
        inputs["pixel_values"] = _images(config, batch)
    if "input_ids" in accepted and "input_ids" not in inputs:
        inputs["input_ids"] = _tokens(batch, length)
    other = next((n for n in accepted if _OTHER.search(n) and n not in inputs), None)
    if other is not None:
        raise InvalidInput(f"{kind} takes {other!r} beside {model.main_input_name!r}; {GIVE}")
    if "bbox" in accepted:
        inputs["bbox"] = _tokens(batch, length, 4)
    if config.is_encoder_decoder and "decoder_input_ids" in accepted:
        _check_positions(config, "max_target_positions", length)
        inputs["decoder_input_ids"] = _tokens(batch, length)
    if labels and "labels" in accepted and kind.endswith(_TOKENS):
        inputs["labels"] = _tokens(batch, length)
    if labels and "labels" in accepted and kind.endswith(_CLASSES):
        inputs["labels"] = _tokens(batch)
        config.problem_type = getattr(config, "problem_type", None) or "single_label_classification"
    if kind.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if getattr(config, "image_token_id", 0) is None:  # which tokens stand for images makes no difference
        config.image_token_id = 0
    missing = next(
        (n for n, p in accepted.items() if p.default is p.empty and p.kind in _NAMED and n not in inputs), None
    )
    if missing is not None:
        raise InvalidInput(f"{kind} needs {missing!r}, which its configuration does not say; {GIVE}")
    if not inputs.keys() - _TEXT:
        inputs |= {
            name: _text(config, kind, inputs[name]) for name in ("input_ids", "decoder_input_ids") if name in inputs
        }
    return inputs | ({"use_cache": False} if "use_cache" in accepted else {})


_TEXT = {"input_ids", "decoder_input_ids", "labels"}


def _text(config: Any, kind: str, like: torch.Tensor) -> torch.Tensor:
    """Tokens that are neither padding nor any other that the configuration names, so that none is left out."""
    named = [v for k, v in vars(config).items() if re.search("_(token_id|index)$", k)]
    taken = {token for v in named for token in (v if isinstance(v, list) else [v])}
    plain = next(k for k in range(len(taken) + 1) if k not in taken)
    made = torch.full(like.shape, plain)
    end = getattr(config, "eos_token_id", None)
    if config.is_encoder_decoder and kind.endswith("ForSequenceClassification") and isinstance(end, int):
        made[..., -1] = end
    return made


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _refuse_parts(model: Any, accepted: Collection[str], kind: str) -> None:
    """Images of one size are all that is made here; Llava and others take such, whatever else their signature has."""
    makes = getattr(getattr(model, "model", model), "get_image_features", None)
    sizes = None if makes is None else inspect.signature(makes).parameters.get("image_sizes")
    whole = makes is not None and (sizes is None or sizes.default is None)
    parts = next((n for n in _OWN_PROCESSOR if n in accepted and not (whole and n == "image_sizes")), None)
    if parts is not None:
        raise InvalidInput(f"{kind} takes {parts!r} beside its images, which its configuration does not say; {GIVE}")


def _main_inputs(main: str, config: Any, kind: str, batch: int, length: int) -> dict[str, Any]:
    """What the model is made for, by the name that it has there."""
    if main == "input_ids":
        _check_positions(getattr(config, "text_config", config), "max_position_embeddings", length)
        return {main: _tokens(batch, *[CHOICES] * kind.endswith("ForMultipleChoice"), length)}
    if main == "pixel_values":
        return {main: _images(config, batch)}
    shape = _sound(config, length) if main in ("input_features", "input_values") else None
    if shape is None:
        raise InvalidInput(f"{kind} takes {main!r}, whose shape its configuration does not say; {GIVE}")
    return {main: torch.zeros(batch, *shape, device="meta")}


def _check_positions(config: Any, field: str, length: int) -> None:
    most = getattr(config, field, None)
    if isinstance(most, int) and 0 < most < length:
        raise InvalidInput(f"sequence_length is {length}; the model has {most} positions")


def _tokens(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="meta")


def _images(config: Any, batch: int) -> torch.Tensor:
    """One image per sample, or the frames of a video, of the size that the vision model is for."""
    seen = next((c for c in (getattr(config, n, None) for n in ("vision_config", "encoder")) if c is not None), config)
    side = getattr(seen, "image_size", getattr(seen, "input_size", IMAGE_SIZE))
    size = side if isinstance(side, (list, tuple)) else [side] * 2
    frames = [seen.num_frames] if hasattr(seen, "num_frames") else []
    return torch.zeros(batch, *frames, getattr(seen, "num_channels", 3), *size, device="meta")


def _sound(config: Any, length: int) -> tuple[int, ...] | None:
    """A sample of sound: a spectrum, or the samples of which convolutions make `length` frames; None if not known."""
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


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
