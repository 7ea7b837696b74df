"""Protocol buffers of other projects, with only those fields of their published schemas that are read here.

A schema is a text of messages, one per line, `Name: type field = number; ...`; an indented line continues a message. A message
has one of the fields marked `oneof`. Fields that the schema leaves out are skipped, as the format allows. `google.protobuf` is
installed with TensorFlow; it is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ....errors import FormatError, MissingPackage

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MOST_VARINT_BYTES = 10  # of a 64-bit number, 7 bits per byte


@cache
def messages(schema: str) -> dict[str, Any]:
    """Makes the classes of a schema's messages, by name."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingPackage.of("protobuf", "onnx", "reading protocol buffers") from None
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package="read", syntax="proto3")
    rows = [line.partition(":") for line in schema.replace("\n    ", " ").splitlines() if line.strip()]
    names = {name.strip() for name, _, _ in rows}
    for name, _, fields in rows:
        message = file.message_type.add(name=name.strip())
        for field in fields.split(";"):
            words = field.split()
            kinds = descriptor_pb2.FieldDescriptorProto
            many, one_of = words[0] == "repeated", words[0] == "oneof"
            kind, field_name, _, number = words[1:] if many or one_of else words
            label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field_name, number=int(number), label=label)
            if one_of:  # such fields know whether they were given, 0 or not
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                added.oneof_index = 0
            if kind in names:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".read.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"read.{n}")) for n in names}


def parse_message(cls: Any, data: bytes, noun: str) -> Any:
    """Reads a message; raises `FormatError` for bytes that are cut off or no message."""
    from google.protobuf.message import DecodeError

    try:
        return cls.FromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: a string that is no UTF-8
        raise FormatError(f"not {noun}, or cut off: the protocol buffer cannot be decoded") from error


def parsed_text(cls: type[Message], text: str, noun: str) -> Any:
    """Reads a message in the text format of protocol buffers.

    Raises:
        FormatError: the text is no message; the error names the line and the problem.
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, cls(), allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(f"not {noun} as text, or cut off: {first:.200}") from error


def delimited_messages(data: bytes) -> Iterator[bytes]:
    """Yields the messages of a stream, each after its length (a varint).

    Raises:
        FormatError: the stream ends within a message.
    """
    at = 0
    while at < len(data):
        length, start = _varint(data, at)
        if start + length > len(data):
            raise FormatError(
                f"a message of {length} bytes begins at byte {start}, and the file ends before: it is cut off"
            )
        yield data[start : start + length]
        at = start + length


def with_length(data: bytes) -> bytes:
    """Returns a message after its length, as `delimited_messages` reads it."""
    length, prefix = len(data), bytearray()
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([*prefix, length]) + data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k in range(_MOST_VARINT_BYTES):
        if at + k >= len(data):
            break
        value |= (data[at + k] & 127) << 7 * k
        if data[at + k] < 128:
            return value, at + k + 1
    raise FormatError(f"byte {at}: no length of a message is there; the file is cut off or of another kind")
