"""Watch the servers of a cluster from outside: TensorFlow itself may wait for ever for one that has ended."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ...errors import ExecutionError, InvalidInput
from .keepalive import alive, connected, speaks_plainly
from .tunnel import context

if TYPE_CHECKING:
    from .cluster import LocalCluster

ASK_SECONDS = 0.1


class Peers:
    """Connections to the servers at `addresses` (host:port), through TLS with a `secret`; a context manager.

    Of a `local` cluster the processes are watched instead: this process does not reach their network.

    Raises `ExecutionError` when a server does not answer within `seconds`, or asks for a secret and none is given, and
    `InvalidInput` when one is named twice.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        seconds: float = 3.0,
        secret: str | None = None,
        local: LocalCluster | None = None,
    ) -> None:
        self._local = local
        self._tls = context(secret, server=False) if secret else None
        self._open: dict[str, socket.socket] = {}
        self._asked, self._said = 0.0, ""
        for address in dict.fromkeys(addresses if local is None else ()):
            try:
                self._open[address] = connected(address, seconds, self._tls)
                if self._tls is None and not speaks_plainly(address, seconds):
                    self.close()
                    raise ExecutionError(
                        f"worker {address!r} is no TensorFlow server that is open to this machine; if it was started with "
                        "--secret FILE, give the same file as secret"
                    )
            except ssl.SSLError as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} and this machine have no secret in common ({error.reason or error}); start it with: "
                    f"baechi-lab worker --bind {address} --secret FILE, with the file that is given here as secret"
                ) from error
            except (OSError, ValueError) as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} does not answer ({error}); start it with: baechi-lab worker --bind {address} "
                    "--secret FILE"
                ) from error
        self._index = {address: i for i, address in enumerate(addresses)}
        if len(self._index) < len(addresses):
            self.close()
            twice = next(a for i, a in enumerate(addresses) if self._index[a] != i)
            raise InvalidInput(f"workers names {twice!r} more than once; every device has a worker of its own")

    def lost(self) -> str | None:
        """A sentence that names a server that has ended; None while all are there."""
        if not self._said and time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()
            if self._local is not None:
                self._said = self._local.lost() or ""
                return self._said or None
            gone = next((address for address in self._open if not alive(self._open, address, 1.0, self._tls)), None)
            if gone is not None:
                self._said = f"worker {self._index[gone]} of the cluster ({gone}) has ended"
        return self._said or None

    def lost_within(self, seconds: float) -> str | None:
        """`lost`, asked until it says something or `seconds` are over."""
        until = time.monotonic() + seconds
        while (self._open or self._local) and self.lost() is None and time.monotonic() < until:
            time.sleep(ASK_SECONDS)
        return self.lost()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._open.values():
            connection.close()

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()
