"""Mutual TLS for TensorFlow's servers, which have neither encryption nor authentication.

One file contains a private key and its certificate. Only processes with this file can take part. A server is in its own network
(`network.leave_network`), which has one entry and one exit. The entry is a `Gate`: its socket was created before the server left
the machine's network, and it accepts clients that prove that they have the key. The exit is a `Proxy` on loopback, in a process
that stays in the machine's network. gRPC sends it a CONNECT request (RFC 9110, 9.3.6) for every connection to another worker,
because `grpc_proxy` names it. That name contains a password: a process that only calls workers has its proxy on the machine's
loopback device, which other users can reach. Uses the standard library only: exports contain a copy.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hmac
import os
import re
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

HANDSHAKE_SECONDS = 10.0  # for TLS and for a CONNECT request
_CHUNK = 1 << 18  # bytes that are copied at a time
_CONNECT = re.compile(rb"CONNECT (\S+):(\d{1,5}) HTTP/1\.[01]\r\n")
_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def context(secret: str | os.PathLike[str], *, server: bool) -> ssl.SSLContext:
    """Returns a context for TLS 1.3 in which both sides prove that they have the key of the file `secret`.

    Raises:
        ValueError: the file is no secret, or users other than its owner can read it.
        OSError: the file cannot be read.
    """
    path = Path(secret)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the file in it that baechi-lab secret wrote")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} can be read by others than its owner; make it yours alone with: chmod 600 {path}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.check_hostname = False  # the key identifies the peer, not a host name
    tls.verify_mode = ssl.CERT_REQUIRED
    try:
        tls.load_cert_chain(path)
        tls.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(
            f"{path} holds no private key with its certificate; make one with: baechi-lab secret FILE"
        ) from error
    return tls


class Gate:
    """Listens at `host:port` and forwards connections of clients with the secret to `target`, a port of this machine."""

    def __init__(
        self, host: str, port: int, target: int, secret: str | os.PathLike[str], listener: socket.socket | None = None
    ) -> None:
        """`listener` is a socket that listens there already, possibly in another network than this thread's."""
        self._target = target
        self.port = _serve(self._admit, listener or listen(host, port), context(secret, server=True))

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _join(reader, writer, *await asyncio.open_connection("127.0.0.1", self._target))


class Proxy:
    """Listens on loopback and forwards CONNECT requests with its password, through TLS, to the requested address.

    `listener` is a socket that listens already, possibly in another network than this thread's.
    """

    def __init__(self, secret: str | os.PathLike[str], listener: socket.socket | None = None) -> None:
        self._context = context(secret, server=False)
        password = secrets.token_urlsafe(24)
        self._expected = b"Basic " + base64.b64encode(b"baechi:" + password.encode())
        port = _serve(self._connect, listener or listen("127.0.0.1", 0), None)
        self.url = f"http://baechi:{password}@127.0.0.1:{port}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANDSHAKE_SECONDS)
        target = _CONNECT.match(request)
        credentials = re.search(rb"(?mi)^Proxy-Authorization: *(.*?)\r$", request)
        if target is None or credentials is None or not hmac.compare_digest(credentials[1], self._expected):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        try:
            host, port = target[1].decode("ascii").strip("[]"), int(target[2])
            remote = await asyncio.open_connection(
                host, port, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS, limit=_CHUNK
            )
        except (OSError, ValueError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, *remote)


@functools.cache
def _own_proxy(secret: str) -> str:
    """Returns the URL of a `Proxy` in a child process. It is no thread because TensorFlow may wait while it holds the GIL."""
    context(secret, server=False)
    return _start_proxy(secret)()


def _start_proxy(secret: str) -> Callable[..., str]:
    """Starts the process of a `Proxy`. Returns a function that takes its listener and returns its URL."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-B", os.path.abspath(__file__), secret, str(theirs.fileno())]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, pass_fds=[theirs.fileno()]
    )
    _RUNNING.append(process)
    theirs.close()

    def url(listener: socket.socket | None = None) -> str:
        with ours:
            socket.send_fds(ours, [b"."], [] if listener is None else [listener.fileno()])
            first_line = process.stdout.readline().decode().strip() if process.stdout else ""
        if not first_line.startswith("http://"):
            raise OSError("the process in front of the network did not start")
        return first_line

    return url


_RUNNING: list[subprocess.Popen[bytes]] = []
"""Processes of proxies: a collected `Popen` would close the standard input whose end ends them."""


def go_through(secret: str | os.PathLike[str]) -> None:
    """Sends all later gRPC connections of this process through a `Proxy`.

    Raises the errors of `context`, and `OSError` if no process can be started.
    """
    _name_proxy(_own_proxy(os.path.abspath(secret)))


def enter(secret: str | os.PathLike[str], trusted_users: bool, leave_network: Callable[[], None]) -> None:
    """As `go_through`; unless the machine's users are trusted, this process also leaves its network, where its `Proxy` stays.

    Raises the errors of `context`, and `OSError` with a sentence if users who are not trusted cannot be kept out.
    """
    if trusted_users:
        return go_through(secret)
    try:
        context(secret, server=False)
        url = _start_proxy(os.path.abspath(secret))
        leave_network()
        with listen("127.0.0.1", 0) as listener:
            _name_proxy(url(listener))
    except OSError as error:
        raise OSError(
            f"other users of this machine cannot be kept from TensorFlow's server, which does not authenticate clients "
            f"({error}); give --trusted-users if you trust them all"
        ) from error


def _name_proxy(url: str) -> None:
    # gRPC reads these names in lower case.
    os.environ["grpc_proxy"] = url  # noqa: SIM112
    os.environ["no_grpc_proxy"] = ""  # noqa: SIM112  # the user's `no_proxy` must not exclude addresses


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _serve(handler: _Handler, listener: socket.socket, tls: ssl.SSLContext | None) -> int:
    """Serves connections in a thread until the process ends. Returns the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            await handler(reader, writer)
        writer.close()

    async def forever() -> None:
        patience = HANDSHAKE_SECONDS if tls else None
        await asyncio.start_server(answer, sock=listener, ssl=tls, limit=_CHUNK, ssl_handshake_timeout=patience)
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(forever(),), daemon=True).start()
    return int(listener.getsockname()[1])


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Copies in both directions until one side ends."""
    copies = [asyncio.ensure_future(_copy(reader, far_writer)), asyncio.ensure_future(_copy(far_reader, writer))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":  # the process of `_own_proxy`; the end of its standard input ends it
    file_numbers = socket.recv_fds(socket.socket(fileno=int(sys.argv[2])), 1, 1)[1]
    print(Proxy(sys.argv[1], *(socket.socket(fileno=number) for number in file_numbers)).url, flush=True)
    sys.stdin.buffer.read()
