"""A quick test whether a value follows a JSON Schema, so that reading a good file imports no validator, which takes longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Rule = Mapping[str, Any]

_ANNOTATIONS = {"description", "default", "$defs"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def conforms(value: object, rule: Rule, definitions: Mapping[str, Rule]) -> bool:
    """Returns True only if `value` follows the schema `rule`, whose references name `definitions`.

    False says either that it does not, or that this test does not know: it leaves out keywords that our schema does not use.

    >>> rule = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
    >>> conforms({"size": 3}, rule, {}), conforms({"size": -1}, rule, {}), conforms({"colour": 1}, rule, {})
    (True, False, False)
    """
    return all(
        keyword in _ANNOTATIONS or _follows(value, keyword, argument, rule, definitions)
        for keyword, argument in rule.items()
    )


def _follows(value: Any, keyword: str, argument: Any, rule: Rule, definitions: Mapping[str, Rule]) -> bool:
    match keyword:
        case "$ref":
            name = argument.removeprefix("#/$defs/")
            return name in definitions and conforms(value, definitions[name], definitions)
        case "type":
            names = [argument] if isinstance(argument, str) else argument
            return any(name in _TYPES and _TYPES[name](value) for name in names)
        case "const":
            return type(value) is type(argument) and bool(value == argument)
        case "enum":
            return any(type(value) is type(choice) and value == choice for choice in argument)
        case "oneOf":
            return sum(conforms(value, choice, definitions) for choice in argument) == 1
        case "minimum" | "exclusiveMinimum" | "maximum":
            if not _TYPES["number"](value):
                return True
            if keyword == "maximum":
                return bool(value <= argument)
            return bool(value >= argument if keyword == "minimum" else value > argument)
        case "minLength":
            return not isinstance(value, str) or len(value) >= argument
        case "minItems":
            return not isinstance(value, list) or len(value) >= argument
        case "items":
            return not isinstance(value, list) or all(conforms(item, argument, definitions) for item in value)
        case "required":
            return not isinstance(value, dict) or all(key in value for key in argument)
        case "properties":
            return not isinstance(value, dict) or all(
                conforms(value[key], argument[key], definitions) for key in value if key in argument
            )
        case "additionalProperties" if not isinstance(value, dict) or argument is True:
            return True
        case "additionalProperties":
            extra_values = [value[key] for key in value if key not in rule.get("properties", {})]
            if argument is False:
                return not extra_values
            return all(conforms(extra_value, argument, definitions) for extra_value in extra_values)
        case _:
            return False
