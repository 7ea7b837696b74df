"""Holds a value against a JSON Schema, as far as the package's own schema needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Rule = Mapping[str, Any]
Path = tuple[str | int, ...]

_SILENT = frozenset(
    """
        description default $defs minimum exclusiveMinimum maximum minLength minItems items required properties
        additionalProperties
    """.split()
)
"""Keywords that ask nothing of a value, or nothing of one of another type."""
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "string": ("a text", lambda value: isinstance(value, str)),
    "null": ("null", lambda value: value is None),
    "integer": ("a whole number", lambda value: _is_number(value) and value == value // 1),
    "number": ("a number", lambda value: _is_number(value)),
}
"""JSON's types -> their names in messages, and the test for them."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def mismatches(
    value: Any, rule: Rule, definitions: Mapping[str, Rule], path: Path = ()
) -> Iterator[tuple[Path, object, str]]:
    """Yields where `value` does not follow the schema `rule`: the path, the value there, and what it must be.

    References of `rule` name `definitions`. Raises `NotImplementedError` for a keyword that the package's schema does not use.

    >>> rule = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
    >>> list(mismatches({"size": 3}, rule, {})), list(mismatches({"size": -1}, rule, {}))
    ([], [(('size',), -1, 'at least 0')])
    """
    for keyword, argument in rule.items():
        allowed = ""  # what `value` itself must be, where it is not
        match keyword:
            case "$ref":
                yield from mismatches(value, definitions[argument.removeprefix("#/$defs/")], definitions, path)
            case "type":
                name, is_type = _TYPES[argument]
                allowed = "" if is_type(value) else name
            case "const" | "enum":
                choices = [argument] if keyword == "const" else argument
                if not any(
                    value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices
                ):
                    allowed = " or ".join(map(repr, choices))
            case "oneOf":
                failures = [list(mismatches(value, choice, definitions, path)) for choice in argument]
                if all(failures):  # the package's choices have no value in common
                    right_type = [failure for failure in failures if all(place != path for place, _, _ in failure)]
                    yield from (failure for failures in right_type for failure in failures)
                    allowed = "" if right_type else " or ".join(failure[0][2] for failure in failures)
            case "minimum" if _is_number(value) and value < argument:
                allowed = f"at least {argument}"
            case "exclusiveMinimum" if _is_number(value) and value <= argument:
                allowed = f"above {argument}"
            case "maximum" if _is_number(value) and value > argument:
                allowed = f"at most {argument}"
            case "minLength" if isinstance(value, str) and len(value) < argument:
                allowed = f"a text of at least {argument} characters"
            case "minItems" if isinstance(value, list) and len(value) < argument:
                allowed = f"a list of at least {argument} entries"
            case "items" if isinstance(value, list):
                for position, item in enumerate(value):
                    yield from mismatches(item, argument, definitions, (*path, position))
            case "required" if isinstance(value, dict):
                if missing := [key for key in argument if key not in value]:
                    allowed = f"an object with {', '.join(missing)}"
            case "properties" if isinstance(value, dict):
                for key in value.keys() & argument.keys():
                    yield from mismatches(value[key], argument[key], definitions, (*path, key))
            case "additionalProperties" if isinstance(value, dict) and argument is not True:
                for key in value.keys() - rule.get("properties", {}).keys():
                    if argument is False:
                        yield (*path, key), value[key], "left out"
                    else:
                        yield from mismatches(value[key], argument, definitions, (*path, key))
            case _ if keyword not in _SILENT:
                raise NotImplementedError(f"keyword {keyword!r} of JSON Schema")
        if allowed:
            yield path, value, allowed
