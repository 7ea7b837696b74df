"""Reading files safely: limits of size, gzip, JSON without ambiguity, and errors that name the file."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ...errors import FormatError, InvalidInput, in_short

PathLike = str | os.PathLike[str]
T = TypeVar("T")

MOST_FILE_BYTES = 1 << 29
"""The largest size of a file, packed and unpacked: half a gibibyte. Graphs of a million ops are below a third of that."""


def read_bytes(path: PathLike) -> bytes:
    """Returns the bytes of a file, unpacked if it is gzip. Raises `FormatError`."""
    name = name_of(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # a FIFO would wait for ever, a device never end
            raise FormatError(f"{name}: cannot be read: it is a folder, a pipe or a device, not a file")
        with open(name, "rb") as stream:
            data = stream.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as archive:
                data = archive.read(MOST_FILE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise FormatError(f"{name}: the gzip data is truncated or damaged: {error}") from error
    if len(data) > MOST_FILE_BYTES:
        raise FormatError(f"{name}: holds more than {MOST_FILE_BYTES} bytes; no record may be larger")
    return data


def name_of(path: PathLike, field: str = "path", kind: str = "file") -> str:
    """Returns a path as text. Raises `FormatError` if it is no path, empty, or no name that the system accepts."""
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if not name or "\0" in name or not _is_encodable(name):
        raise FormatError(f"{field} is {in_short(path)}; it must name a {kind}")
    return name


def _is_encodable(name: str) -> bool:
    """Whether the system's encoding of file names has all characters; half of a surrogate pair is in none."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def absolute(path: PathLike, field: str = "path", kind: str = "file") -> str:
    """Returns the absolute path. Raises `FormatError` if it starts from the current folder and that was deleted."""
    name = name_of(path, field, kind)
    try:
        return os.path.abspath(name)
    except FileNotFoundError:
        raise FormatError(
            f"{field} is {in_short(name)}, and the current folder was deleted; give an absolute path, or change the folder"
        ) from None


def text_of(data: bytes) -> str:
    """Returns UTF-8 bytes as text. Raises `FormatError`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8 text") from error


def parse(data: bytes) -> Any:
    """Returns the document of JSON bytes. Raises `FormatError`."""
    text = text_of(data)
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = " (the file ends there: is it truncated?)" if not text[error.pos :].strip() else ""
        reason = error.msg.removesuffix(" at")  # some of Python's messages end with it
        raise FormatError(f"not JSON: {reason} at line {error.lineno}, column {error.colno}{cut}") from error
    except RecursionError as error:
        raise FormatError("not a document of ours: lists are nested too deeply") from error
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"not a document of ours: {error}") from error
    if HALF_CHARACTER.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise FormatError(f"a text holds {error.object[error.start]!a}, which is half of a character") from error
    if _may_overflow(text):
        json.loads(text, parse_float=_finite)
    return document


LONG_EXPONENTS = re.compile(r"e\+?\d{3}"), re.compile(r"E\+?\d{3}")
"""Exponents of three digits. One expression for both letters is six times as slow."""


def _may_overflow(text: str) -> bool:
    """Whether a number may be too large for float64, which Python reads as infinite: it has such an exponent, or 210 digits.

    Of 199 digits in a row, 100 begin at a multiple of 100.
    """
    if any(exponent.search(text) for exponent in LONG_EXPONENTS):
        return True
    return any(text[start : start + 100].isdigit() for start in range(0, len(text), 100))


def _finite(number: str) -> float:
    """Parses a number. Raises `FormatError` if it is infinite as float64."""
    if math.isinf(float(number)):
        raise FormatError(f"a number is {number:.60}; numbers must fit into a float64")
    return float(number)


HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""The start of half a surrogate pair. Pairs are legal, so a match is only a reason to check the text."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object. Raises `FormatError` if a field appears twice, which `json` would accept."""
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated_field = next(key for k, (key, _) in enumerate(pairs) if key in dict(pairs[:k]))
        raise FormatError(f"field {in_short(repeated_field)} appears more than once in one object")
    return members


def _refuse_constant(word: str) -> NoReturn:
    """Raises `FormatError` for NaN and infinity, which `json` would accept."""
    raise FormatError(f"{word} is not JSON; numbers must be finite")


def with_file_name(path: PathLike, read_file: Callable[[], T]) -> T:
    """Returns `read_file()`; its errors keep their class and begin with the name of the file."""
    try:
        return read_file()
    except InvalidInput as error:
        if str(error).startswith(f"{name_of(path)}: "):  # it could not be read at all
            raise
        raise type(error)(f"{name_of(path)}: {error}") from error
    except RecursionError as error:
        raise FormatError(f"{name_of(path)}: lists or objects are nested too deeply") from error
    except MemoryError as error:
        raise FormatError(f"{name_of(path)}: takes more memory than there is") from error


def stem(path: PathLike) -> str:
    """Returns the name of a file without folders and known endings, for titles."""
    name = Path(name_of(path)).name.removesuffix(".gz")
    for ending in (".xplane.pb", ".json", ".stg", ".et", ".pbtxt", ".pb", ".onnx", ".pt2"):
        name = name.removesuffix(ending)
    return name


def program_kind(path: PathLike) -> str | None:
    """Returns the kind of a file with a program (operators without times); None for any other file."""
    name = name_of(path)
    if name.endswith(".pt2"):
        return "a program of torch.export"
    return "an ONNX model" if name.endswith(".onnx") else None


def refuse_model_config(path: PathLike, data: bytes) -> None:
    """Raises `FormatError` if the file describes a model of Hugging Face or Keras, whose operators are not known yet."""
    name, beginning = name_of(path), data[:_CONFIG_BYTES]
    if data.lstrip()[:1] != b"{":
        return
    if any(key in beginning for key in (b'"model_type"', b'"architectures"')):
        raise FormatError(
            f"{name}: is the configuration of a model; `baechi-lab profile hf:{name}` or bl.torch.hugging_face makes the "
            "model of it"
        )
    if b'"class_name"' in beginning and any(key in beginning for key in (b'"keras_version"', b'"keras', b'"layers"')):
        raise FormatError(
            f"{name}: is the architecture of a Keras model; make the model by keras.models.model_from_json, and give "
            "bl.profile a training step of it"
        )


def refuse_saved_model(path: PathLike, data: bytes) -> None:
    """Raises `FormatError` if the file is a zip file or an HDF5 file, as saved models of Keras and PyTorch are."""
    if data.startswith((b"\x89HDF\r\n\x1a\n", b"PK\x03\x04")):
        kind = "an HDF5 file" if data[:1] == b"\x89" else "a zip file"
        raise FormatError(
            f"{name_of(path)}: is {kind}, as saved models of Keras and PyTorch are; load the model and profile a training "
            "step of it"
        )


_CONFIG_BYTES = 100_000
"""Only this much of a file is searched: a graph may name an operator "model_type" further on."""
