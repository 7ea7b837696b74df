"""Mutual TLS around TensorFlow's servers, which have neither encryption nor authentication of their own.

One file holds a private key and its own certificate; who has the file may take part, nobody else. A server is in a network of
its own (`network.leave_network`), which has two doors. In front of it a `Gate`, whose socket was made before, listens on the
machine's network and lets in whoever proves to have the key. What goes out is asked of a `Proxy` on loopback, in a process that
stays in the machine's network, to which gRPC sends a CONNECT request (RFC 9110, 9.3.6) for every connection to another worker
once `grpc_proxy` names it; that name holds a password, because a process that only calls workers has its proxy where others of
the machine reach it. Needs the standard library alone: exports take it along.
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

HANDSHAKE_SECONDS = 10.0
_CHUNK = 1 << 18
_CONNECT = re.compile(rb"CONNECT (\S+):(\d{1,5}) HTTP/1\.[01]\r\n")
_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def context(secret: str | os.PathLike[str], *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 in which both sides show the certificate of the file `secret` and prove that they have its key.

    Raises:
        ValueError: what the file lacks, or that others than its owner may read it.
        OSError: it cannot be read.
    """
    path = Path(secret)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the file in it that baechi-lab secret wrote")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} can be read by others than its owner; make it yours alone with: chmod 600 {path}")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the key says who it is, not the name of a machine
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_cert_chain(path)
        made.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(
            f"{path} holds no private key with its certificate; make one with: baechi-lab secret FILE"
        ) from error
    return made


class Gate:
    """Listens at `host:port` and passes on to `target`, a port of this machine, what comes from who has the secret."""

    def __init__(
        self, host: str, port: int, target: int, secret: str | os.PathLike[str], listener: socket.socket | None = None
    ) -> None:
        """`listener` is a socket that listens there already, perhaps in another network than this thread's."""
        self._target = target
        self.port = _serve(self._admit, listener or listen(host, port), context(secret, server=True))

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _join(reader, writer, *await asyncio.open_connection("127.0.0.1", self._target))


class Proxy:
    """Listens on loopback, and takes CONNECT requests with its password on, through TLS, to the named address.

    `listener` is a socket that listens already, perhaps in another network than this thread's.
    """

    def __init__(self, secret: str | os.PathLike[str], listener: socket.socket | None = None) -> None:
        self._context = context(secret, server=False)
        password = secrets.token_urlsafe(24)
        self._expected = b"Basic " + base64.b64encode(b"baechi:" + password.encode())
        port = _serve(self._connect, listener or listen("127.0.0.1", 0), None)
        self.url = f"http://baechi:{password}@127.0.0.1:{port}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANDSHAKE_SECONDS)
        wanted = _CONNECT.match(request)
        shown = re.search(rb"(?mi)^Proxy-Authorization: *(.*?)\r$", request)
        if wanted is None or shown is None or not hmac.compare_digest(shown[1], self._expected):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        try:
            host, port = wanted[1].decode("ascii").strip("[]"), int(wanted[2])
            far = await asyncio.open_connection(
                host, port, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS, limit=_CHUNK
            )
        except (OSError, ValueError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, *far)


@functools.cache
def _own_proxy(secret: str) -> str:
    """The URL of a `Proxy` in a process that ends with this one: TensorFlow may wait for an answer with Python locked."""
    context(secret, server=False)
    return _start_proxy(secret)()


def _start_proxy(secret: str) -> Callable[..., str]:
    """Start the process of a `Proxy`; call what is returned with its listener to get its URL."""
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
            told = process.stdout.readline().decode().strip() if process.stdout else ""
        if not told.startswith("http://"):
            raise OSError("the process in front of the network did not start")
        return told

    return url


_RUNNING: list[subprocess.Popen[bytes]] = []


def go_through(secret: str | os.PathLike[str]) -> None:
    """Every gRPC connection that this process makes from now on goes through a `Proxy`.

    Raises what `context` raises, `OSError` where no process can be started.
    """
    _name_proxy(_own_proxy(os.path.abspath(secret)))


def move_behind(secret: str | os.PathLike[str], leave_network: Callable[[], None]) -> None:
    """As `go_through`, and this process leaves the machine's network, which its `Proxy` does not.

    Raises what `context` and `leave_network` raise, `OSError` where no process can be started.
    """
    context(secret, server=False)
    url = _start_proxy(os.path.abspath(secret))
    leave_network()
    with listen("127.0.0.1", 0) as listener:
        _name_proxy(url(listener))


def _name_proxy(url: str) -> None:
    # gRPC reads these in small letters.
    os.environ["grpc_proxy"] = url  # noqa: SIM112
    os.environ["no_grpc_proxy"] = ""  # noqa: SIM112  # nor does a `no_proxy` of the user's take addresses out


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _serve(handler: _Handler, listener: socket.socket, tls: ssl.SSLContext | None) -> int:
    """Serve connections in a thread that lives as long as the process; returns the port."""

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
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter,
) -> None:  # fmt: skip
    """Copy both ways until one side ends."""
    ways = [asyncio.ensure_future(_copy(reader, far_writer)), asyncio.ensure_future(_copy(far_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":  # the process of `_own_proxy`; the end of its standard input ends it
    passed = socket.recv_fds(socket.socket(fileno=int(sys.argv[2])), 1, 1)[1]
    print(Proxy(sys.argv[1], *(socket.socket(fileno=number) for number in passed)).url, flush=True)
    sys.stdin.buffer.read()
