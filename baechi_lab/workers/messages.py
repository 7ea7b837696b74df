"""Messages between the caller and a worker process: a JSON header and NumPy arrays, framed, never pickled.

A frame is `BLM1`, the header's length (uint32), the body's length (uint64), both big endian, the header as JSON in UTF-8, and
the body. The header's `arrays` lists, per array, its bytes in the body and its dtype's name; an array is stored in NumPy's npy
format, or as plain bytes with its shape in the header where npy does not know the dtype (bfloat16 and its relatives).
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError, FormatError

MAGIC = b"BLM1"
_HEAD = struct.Struct(">4sIQ")
MAX_HEADER_BYTES = 1 << 28
MAX_BODY_BYTES = 1 << 40

Send = Callable[..., None]
"""Type of the function with which a handler answers: `send(kind, header, arrays)`."""


@dataclass(frozen=True)
class Message:
    """One message: its `kind`, a `header` that JSON can hold, and arrays."""

    kind: str
    header: dict[str, Any]
    arrays: tuple[NDArray[Any], ...] = ()


def encode(message: Message) -> bytes:
    """Returns the frame of a message."""
    entries, chunks = [], []
    for array in message.arrays:
        entry, chunk = _pack(np.asarray(array))
        entries.append(entry)
        chunks.append(chunk)
    text = json.dumps({**message.header, "kind": message.kind, "arrays": entries}).encode()
    body = sum(len(p) for p in chunks)
    return b"".join([_HEAD.pack(MAGIC, len(text), body), text, *chunks])


def _pack(array: NDArray[np.generic]) -> tuple[dict[str, object], bytes]:
    if array.dtype.kind == "O":
        if not all(isinstance(x, (bytes, str)) for x in array.reshape(-1)):
            raise ExecutionError("an array of Python objects cannot be sent; give numbers, booleans or text")
        array = array.astype("S") if all(isinstance(x, bytes) for x in array.reshape(-1)) else array.astype("U")
    if array.dtype.kind == "V":
        raw = np.ascontiguousarray(array).tobytes()
        return {"bytes": len(raw), "dtype": array.dtype.name, "shape": list(array.shape)}, raw
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    raw = stream.getvalue()
    return {"bytes": len(raw), "dtype": "npy"}, raw


def _unpack(entry: dict[str, Any], raw: bytes) -> NDArray[np.generic]:
    if entry["dtype"] == "npy":
        return np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, entry["dtype"]))
    return np.frombuffer(raw, dtype).reshape(entry["shape"])


class Decoder:
    """Decodes messages from bytes as they arrive; raises `FormatError` for bytes that are no message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Adds `data` and yields every message that is now complete."""
        self._buffer += data
        while True:
            prefix = bytes(self._buffer[: len(MAGIC)])
            if prefix != MAGIC[: len(prefix)]:
                start_text = bytes(self._buffer[:60]).decode("utf-8", "replace")
                raise FormatError(f"expected a message but got {start_text!r}")
            if len(self._buffer) < _HEAD.size:
                return
            _, header_bytes, body_bytes = _HEAD.unpack_from(self._buffer)
            if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
                raise FormatError(f"a message claims a header of {header_bytes} and a body of {body_bytes} bytes")
            end = _HEAD.size + header_bytes + body_bytes
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEAD.size : _HEAD.size + header_bytes])
            body = bytes(self._buffer[_HEAD.size + header_bytes : end])
            del self._buffer[:end]
            yield _message(text, body)


def _message(text: bytes, body: bytes) -> Message:
    try:
        header = json.loads(text)
        kind, entries = header.pop("kind"), header.pop("arrays")
        arrays, at = [], 0
        for entry in entries:
            arrays.append(_unpack(entry, body[at : at + entry["bytes"]]))
            at += entry["bytes"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"a message is not readable: {error}") from error
    return Message(kind, header, tuple(arrays))


def write_message(
    stream: BinaryIO, kind: str, header: dict[str, object], arrays: Sequence[NDArray[np.generic]] = ()
) -> None:
    """Writes one message to a blocking stream."""
    stream.write(encode(Message(kind, header, tuple(arrays))))
    stream.flush()


def read_message(stream: BinaryIO) -> Message | None:
    """Returns the next message of a blocking stream; None at its end."""
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    magic, header_bytes, body_bytes = _HEAD.unpack(head)
    if magic != MAGIC:
        raise FormatError(f"expected a message but got {head!r}")
    text, body = _exactly(stream, header_bytes), _exactly(stream, body_bytes)
    return None if text is None or body is None else _message(text, body)


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    data = stream.read(count)
    return data if len(data) == count else None
