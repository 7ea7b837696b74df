"""Addresses of this machine."""

import contextlib
import secrets
import socket

import pytest

FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below the ports that systems give to connections and to servers that name none: one of those may be taken by another
process before the server of a test, which starts for seconds, listens on it."""


def free_port() -> int:
    """Returns a port that nobody listens on."""
    while True:
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def own_address():
    """An address of this machine that is not loopback; a datagram socket finds it without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return probe.getsockname()[0]
