"""Make the file that workers on several machines ask for; copy it to each of them by a way that you trust.

A worker that is started with it accepts, through TLS, only clients that have it. Who has it can run programs as the
user who started the worker.
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("file", metavar="FILE", help="file to write, for example cluster.pem")


def run(arguments: argparse.Namespace) -> int:
    """Makes the secret."""
    from ..executors import make_secret

    path = str(make_secret(arguments.file))
    print(json.dumps({"secret": path}) if arguments.json else f"{path}: for baechi-lab worker --secret {path}")
    return 0
