"""Blocks the network while a model is built from its configuration: a download raises an error."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class NetworkUse(OSError):
    """Code has tried to use the network although it must not."""


@contextmanager
def offline() -> Iterator[None]:
    """Lets the calling thread open no connection and look up no name; huggingface_hub does not try to."""
    thread = threading.get_ident()

    def refused_here(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if threading.get_ident() == thread:
                raise NetworkUse(f"{name}: nothing is downloaded here")
            return function(*args, **kwargs)

        return call

    guarded_functions: list[tuple[object, str]] = [
        (socket, "getaddrinfo"),
        (socket.socket, "connect"),
        (socket.socket, "connect_ex"),
    ]
    before = [(place, name, getattr(place, name)) for place, name in guarded_functions]
    hub = sys.modules.get("huggingface_hub.constants")
    if hasattr(hub, "HF_HUB_OFFLINE"):
        before.append((hub, "HF_HUB_OFFLINE", hub.HF_HUB_OFFLINE))  # type: ignore[union-attr]
        hub.HF_HUB_OFFLINE = True  # type: ignore[union-attr]
    for place, name, function in before[: len(guarded_functions)]:
        setattr(place, name, refused_here(name, function))
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def used_network(error: BaseException) -> bool:
    """Whether an error was caused by an attempt to use the network."""
    return any(isinstance(e, NetworkUse) or type(e).__name__ == "OfflineModeIsEnabled" for e in causes(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, and those during whose handling it was raised."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
