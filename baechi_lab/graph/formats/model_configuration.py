"""Reads configurations of Hugging Face models: a `config.json` with the sizes of a model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...errors import FormatError, describe_error
from .reading import name_of

LARGEST_BYTES = 1 << 24
"""Most bytes of a configuration file."""


def read_configuration(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Returns the fields in a file, or in the `config.json` of a folder, and the file's path for messages.

    Raises:
        FormatError: the file does not exist, cannot be read, is larger than `LARGEST_BYTES`, or holds no JSON object.
    """
    file = Path(name_of(path, "config"))
    try:
        file = file / "config.json" if file.is_dir() else file
        if not file.is_file():
            raise FormatError(f"{file}: no such file; name the config.json of the model (nothing is downloaded)")
        if file.stat().st_size > LARGEST_BYTES:
            raise FormatError(f"{file}: larger than {LARGEST_BYTES} bytes; a configuration is a small JSON file")
        fields = json.loads(file.read_text(encoding="utf-8"), object_hook=_decode_number)
    except OSError as error:
        raise FormatError(f"{str(file)[:200]}: cannot be read: {error.strerror or error}") from error
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: not JSON: {describe_error(error, 200)}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{file}: holds a {type(fields).__name__}; a configuration is a JSON object")
    return fields, str(file)


def _decode_number(fields: dict[str, object]) -> Any:
    """Decodes infinity as `save_pretrained` writes it: {"__float__": "Infinity"}."""
    return float(str(fields["__float__"])) if fields.keys() == {"__float__"} else fields
