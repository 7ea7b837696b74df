"""A network of one's own (network_namespaces(7)): a loopback device that no other user of the machine has.

Programs that speak without authentication, as TensorFlow's servers do, are out of the reach of others there. Sockets that a
process made before it moved stay where they were. Needs the standard library alone: exports take this file along.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys

CREATE_NETWORK = 0
"""Argument of `enter` that creates a network instead of joining that of a process."""

REFUSED = "a network of its own cannot be made"

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # sched.h
_GET_FLAGS, _SET_FLAGS, _FLAG_UP = 0x8913, 0x8914, 0x1  # sockios.h, if.h
_PARENT_DEATH_SIGNAL = 1  # prctl.h


def enter(network: int) -> None:
    """Moves this process, which has one thread yet, to the network of process `network`, or to a new one (`CREATE_NETWORK`).

    Raises `SystemExit` with a sentence where that cannot be done.
    """
    try:
        if network == CREATE_NETWORK:
            leave_network()
        else:
            join_network(network)
    except OSError as error:
        raise SystemExit(str(error)) from error


def join_network(pid: int) -> None:
    """Moves this process, which has one thread, to the network of process `pid`, and before to its user namespace.

    Raises `OSError` where there is no such process, it belongs to another user, or it has not left this process's network.
    """
    kinds = {"user": _NEW_USER, "net": _NEW_NETWORK}
    files = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
    try:
        for kind, file in files.items():
            if os.path.samestat(os.fstat(file), os.stat(f"/proc/self/ns/{kind}")):
                if kind == "net":  # whoever reaches this process would reach what it starts as well
                    raise OSError(f"process {pid} has no network of its own")
                continue
            failure = _call("setns", file, kinds[kind])
            if failure:
                raise OSError(failure, f"the network of process {pid} cannot be joined: {os.strerror(failure)}")
    finally:
        for file in files.values():
            os.close(file)


def leave_network() -> None:
    """Gives this process a network of its own, which has a loopback device and nothing else.

    Call it before other threads make sockets: each thread has the network of the one that started it. Without the right to make
    networks, the process goes on as a user of its own user namespace, who has that right. Only a process of one thread may
    become that. A process with more threads goes on in a child, which ends with it.

    Raises `OSError`, whose text begins with `REFUSED`, where the system allows neither.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(f"{REFUSED}: this system has no network namespaces")
    try:
        if _call("unshare", _NEW_NETWORK):
            user, group = os.geteuid(), os.getegid()
            if len(os.listdir("/proc/self/task")) > 1:
                _go_on_in_child()
            failure = _call("unshare", _NEW_USER | _NEW_NETWORK)
            if failure:
                raise OSError(failure, os.strerror(failure))
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        # Start the loopback device, which then has its addresses.
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh22x", b"lo", 0))
            flags = struct.unpack("16sh22x", request)[1]
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _FLAG_UP))
    except OSError as error:
        raise OSError(f"{REFUSED}: {error.strerror or error}") from error


def _call(name: str, *arguments: int) -> int:
    """Returns the error number of a function of the C library, 0 where it succeeds."""
    library = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if getattr(library, name)(*arguments) else 0


def _go_on_in_child() -> None:
    """Returns in a child of one thread; this process waits for it, hands signals on, and ends as it ends."""
    parent, child = os.getpid(), os.fork()
    if not child:
        _call("prctl", _PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(child, n))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)
