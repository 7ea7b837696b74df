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

_MOST_VARINT_BYTES = 10  # a 64-bit number has 7 bits per byte


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
            is_repeated, is_one_of = words[0] == "repeated", words[0] == "oneof"
            kind, field_name, _, number = words[1:] if is_repeated or is_one_of else words
            label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            field_proto = message.field.add(name=field_name, number=int(number), label=label)
            if is_one_of:  # such a field tells 0 from missing
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                field_proto.oneof_index = 0
            if kind in names:
                field_proto.type, field_proto.type_name = kinds.TYPE_MESSAGE, f".read.{kind}"
            else:
                field_proto.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"read.{name}")) for name in names}


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
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(f"not {noun} as text, or cut off: {problem:.200}") from error


def delimited_messages(data: bytes) -> Iterator[bytes]:
    """Yields the messages of a stream, each after its length (a varint).

    Raises:
        FormatError: the stream ends within a message.
    """
    position = 0
    while position < len(data):
        length, start = _varint(data, position)
        if start + length > len(data):
            raise FormatError(
                f"a message of {length} bytes begins at byte {start}, and the file ends before: it is cut off"
            )
        yield data[start : start + length]
        position = start + length


def with_length(data: bytes) -> bytes:
    """Returns a message after its length, as `delimited_messages` reads it."""
    length, prefix = len(data), bytearray()
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([*prefix, length]) + data


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads the varint at `position`; returns it and the position after it."""
    value = 0
    for k in range(_MOST_VARINT_BYTES):
        if position + k >= len(data):
            break
        value |= (data[position + k] & 127) << 7 * k
        if data[position + k] < 128:
            return value, position + k + 1
    raise FormatError(f"byte {position}: no length of a message is there; the file is cut off or of another kind")
