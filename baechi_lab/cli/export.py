"""Export a training step under a placement: a folder whose train.py needs TensorFlow and NumPy only."""

from __future__ import annotations

import argparse

from . import output, placing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    placing.add_placing(parser)
    parser.add_argument("-o", "--output", default="placed_training", metavar="FOLDER", help="(%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Place and write."""
    from ..exporters import export

    step, placement, _, graph = placing.placed(arguments)
    export(step, placement, arguments.output, graph=graph)
    facts = {"folder": arguments.output, "script": f"{arguments.output.rstrip('/')}/train.py"}
    output.print_json(facts) if arguments.json else output.print_facts(facts)
    return 0
