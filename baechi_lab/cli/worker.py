"""Serve this machine's devices to a run on several machines, until stopped; prints its address.

TensorFlow's servers have no authentication and no encryption: whoever reaches the port can run any op as this user. So
the worker requires one of three options. --secret FILE lets in only programs that have the same file (`baechi-lab secret FILE`),
through TLS, and keeps out other users of this machine. --trusted-users serves this machine alone, and trusts all its users.
--trusted-network listens on every interface: give it only if you would let everyone who reaches the network run programs in
your name.
"""

from __future__ import annotations

import argparse

from ..errors import InvalidInput
from ..workers.executors import cores
from . import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--bind",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address to listen on (%(default)s; port 0: any free one)",
    )
    parser.add_argument("--threads", default="1", metavar="N", help="ops that run at a time (1)")
    parser.add_argument("--core", metavar="N", help="pin the worker to one processor core")
    parser.add_argument(
        "--secret", metavar="FILE", help="file of `baechi-lab secret`: only who has it can connect, through TLS"
    )
    parser.add_argument(
        "--trusted-network",
        action="store_true",
        help="listen on every interface, unprotected: everyone on the network can run code as you",
    )
    parser.add_argument(
        "--trusted-users",
        action="store_true",
        help="let all users of this machine run code as you, if there is no --secret or the system cannot keep them out",
    )
    parser.add_argument("--follow-stdin", action="store_true", help="stop when standard input ends")


def run(arguments: argparse.Namespace) -> int:
    """Starts the worker and serves."""
    from ..executors.tensorflow import server

    core = None if arguments.core is None else options.whole_number(arguments.core, "--core", lowest=0)
    if core is not None and core >= cores():
        raise InvalidInput(f"--core is {core}; it must be one of the {cores()} cores of this machine, counted from 0")
    threads = options.whole_number(arguments.threads, "--threads", lowest=1)
    return server.main(
        arguments.bind,
        threads=threads,
        core=core,
        follow_stdin=arguments.follow_stdin,
        trusted_network=arguments.trusted_network,
        secret=arguments.secret,
        trusted_users=arguments.trusted_users,
    )
