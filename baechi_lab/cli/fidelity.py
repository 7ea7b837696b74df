"""Predicted against measured step times of placements on workers of this machine.

Runs every model under every placement on single-threaded TensorFlow workers, and says how far the simulator was off
and where the error comes from. Meant for an otherwise idle machine: other work is seen and reported.
"""

from __future__ import annotations

import argparse

from ..errors import UnknownNameError
from . import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--models", metavar="NAME[,NAME...]", help="(inception_v3,gnmt,resnet50,transformer)")
    parser.add_argument(
        "--placements", default="single,m-topo,m-etf,m-sct,random", metavar="NAME[,NAME...]", help="(%(default)s)"
    )
    parser.add_argument("--workers", default="2", metavar="N", help="workers, one core each (2)")
    parser.add_argument("--steps", default="10", metavar="N", help="measured steps per round (10)")
    parser.add_argument("--rounds", default="3", metavar="N", help="rounds through all placements (3)")
    parser.add_argument("--seed", default="0", metavar="N", help="of the random placement (0)")


def run(arguments: argparse.Namespace) -> int:
    """Study and print."""
    from ..fidelity import study
    from ..fidelity.study import MODELS

    names = arguments.models.split(",") if arguments.models else list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UnknownNameError.of("model of the fidelity study", unknown[0], MODELS)
    report = study(
        {name: MODELS[name] for name in names},
        arguments.placements.split(","),
        workers=options.whole(arguments.workers, "--workers", lowest=2),
        steps=options.whole(arguments.steps, "--steps", lowest=1),
        rounds=options.whole(arguments.rounds, "--rounds", lowest=1),
        seed=options.whole(arguments.seed, "--seed", lowest=0),
        progress=not arguments.json,
    )
    print(report.to_json() if arguments.json else report)
    return 0
