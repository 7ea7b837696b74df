"""Registries of placers, passes, schedulers and models: classes by name, made with parameters, listed with one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from .errors import InvalidInput, UnknownNameError, in_short
from .params import Params

T = TypeVar("T")


class Registry(Generic[T]):
    """The classes of one kind by name; a class is imported when it is first requested.

    Args:
        kind: what messages call them, for example "pass".
        base: what their objects are instances of.
        built_in: name -> class, or "module:class"; the module is below `package`, unless it begins with `baechi_lab.`.
        package: where the modules of `built_in` are.
        group: entry-point group with which other packages add theirs; a built-in name cannot be replaced.

    >>> from baechi_lab.passes.base import Pass
    >>> passes = Registry("pass", Pass, {"fusion": "fusion:Fusion"}, "baechi_lab.passes")
    >>> passes.make("fusion")
    Fusion()
    >>> passes.make("fussion")
    Traceback (most recent call last):
    baechi_lab.errors.UnknownNameError: unknown pass 'fussion'; did you mean 'fusion'? (known: fusion)
    """

    def __init__(self, kind: str, base: type, built_in: Mapping[str, Any], package: str = "", group: str | None = None):
        self.kind, self.base, self.built_in, self.package, self.group = kind, base, built_in, package, group

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def names(self) -> list[str]:
        """Returns all names: the built-in ones in their order, then those of other packages."""
        return list(dict.fromkeys([*self.built_in, *sorted(self._entry_points)]))

    def find(self, name: str) -> type[T]:
        """Returns the class registered under `name`; `UnknownNameError` suggests the nearest name."""
        if name in self.built_in:
            entry = self.built_in[name]
            if isinstance(entry, str):
                module, _, attribute = entry.partition(":")
                path = module if module.startswith("baechi_lab.") else f"{self.package}.{module}"
                entry = getattr(importlib.import_module(path), attribute)
            return entry
        if name in self._entry_points:
            return self._entry_points[name].load()
        raise UnknownNameError.of(self.kind, name, self.names())

    def make(self, name_or_object: str | T, params: Mapping[str, object] | None = None) -> T:
        """Returns the validated object for a name and its parameters; a given object is validated and returned.

        Raises:
            UnknownNameError: no such name or parameter. InvalidInput: a parameter out of range, or beside an object.
        """
        params = params or {}
        instance: Any = name_or_object
        if not isinstance(name_or_object, self.base):
            if callable(name_or_object) or hasattr(name_or_object, "assign"):
                raise InvalidInput(
                    f"{self.kind} is {in_short(name_or_object, 80)}; it must be a name, or an object of a class that inherits "
                    f"from {self.base.__module__}.{self.base.__qualname__}"
                )
            if not isinstance(name_or_object, str):
                raise UnknownNameError.of(self.kind, name_or_object, self.names())
            cls: Any = self.find(name_or_object)
            field_names = [f.name for f in fields(cls) if f.init]
            for key in params:
                if key not in field_names:
                    raise UnknownNameError.of(f"parameter of {self.kind} {cls.name!r}:", key, field_names)
            instance = cls(**params)
        elif params:
            raise InvalidInput(
                f"parameters {sorted(params)} given beside a {self.kind} object; put them into the object"
            )
        instance.check() if isinstance(instance, Params) else instance.validate()
        return instance

    def lines(self) -> dict[str, str]:
        """Returns every name with the first line of its class's docstring."""
        return {name: (self.find(name).__doc__ or "").strip().splitlines()[0] for name in self.names()}
