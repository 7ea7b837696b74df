"""Compare predicted with measured step times of placements on workers of this machine.

Runs every model under every placement on single-threaded TensorFlow workers, and says how far the simulator was off
and where the error comes from; then measures a step of GNMT on all workers against the same step on one of them.
It waits for other programs to end, and refuses to measure beside them. -o writes the results, after every model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, UnknownNameError
from ..graph import Step
from . import options, output
from .steps import check_model, step_of_file

if TYPE_CHECKING:
    from ..executors.tensorflow.calibration import Calibration
    from ..fidelity import Case, Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--models",
        metavar="NAME[,NAME...]",
        help="models of the study, and steps of one's own as FILE.py:FUNCTION (inception_v3,gnmt,resnet50,transformer)",
    )
    parser.add_argument(
        "--placements",
        default="single,m-topo,m-etf,m-sct,random",
        metavar="NAME[,NAME...]",
        help="placers to run (%(default)s)",
    )
    parser.add_argument(
        "--parts", default="study,speedup", metavar="NAME[,NAME...]", help="study, speedup or both (both)"
    )
    parser.add_argument("--workers", default="2", metavar="N", help="workers, one core each (2)")
    parser.add_argument("--steps", default="3", metavar="N", help="measured steps per round (3)")
    parser.add_argument("--rounds", default="5", metavar="N", help="rounds through all placements (5)")
    parser.add_argument("--wait", default="60", metavar="S", help="seconds to wait for a quiet machine (60)")
    parser.add_argument("--busy", action="store_true", help="measure beside other programs too; the results say so")
    parser.add_argument(
        "--trusted-users",
        action="store_true",
        help="let all users of this machine run code as you, if the system cannot keep them from the workers",
    )
    parser.add_argument("--seed", default="0", metavar="N", help="seed of the random placement (0)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="keep the results in a file (.json); other parts of it stay"
    )


def run(arguments: argparse.Namespace) -> int:
    """Studies, measures and prints."""
    from ..fidelity.study import MODELS
    from ..placers.registry import placer_class

    options.check_output(arguments.output, (".json",))
    part_names = arguments.parts.replace("speed-up", "speedup")  # its previous name
    sections = [options.one_of(p, "--parts", ("study", "speedup")) for p in options.distinct(part_names, "--parts")]
    names = options.distinct(arguments.models, "--models") if arguments.models else list(MODELS)
    for name in names:
        if ".py:" in name:
            check_model(name)
    unknown = [name for name in names if name not in MODELS and ".py:" not in name]
    if unknown:
        raise UnknownNameError.of("model of the fidelity study", unknown[0], MODELS)
    for placement in options.distinct(arguments.placements, "--placements"):
        if placement != "random":
            placer_class(placement)
    settings: dict[str, object] = {
        "workers": options.whole_number(arguments.workers, "--workers", lowest=2),
        "steps": options.whole_number(arguments.steps, "--steps", lowest=1),
        "rounds": options.whole_number(arguments.rounds, "--rounds", lowest=1),
        "seed": options.whole_number(arguments.seed, "--seed", lowest=0),
    }
    limit = options.seconds(arguments.wait, "--wait")
    wait = None if arguments.busy else limit
    printed_record: dict[str, object] = {}
    costs = None
    if "study" in sections:
        report = _study(arguments, names, settings, wait)
        printed_record, costs = report.to_dict(), report.calibration
    if "speedup" in sections:
        printed_record["speed_up"] = _speed_up(arguments, settings, costs, wait)
    if arguments.json:
        output.print_json(printed_record)
    return 0


def _cases(names: list[str]) -> Iterator[Case]:
    """Yields the cases, each built when it is needed. A step from a file has its function's name."""
    from ..fidelity import Case
    from ..fidelity.study import MODELS, cases_of

    for name in names:
        if ".py:" not in name:
            yield from cases_of({name: MODELS[name]})
            continue
        step = step_of_file(name)
        if not isinstance(step, Step):
            raise InvalidInput(
                f"{name} returned a {type(step).__name__}; the study runs TensorFlow steps on workers that compute at the same "
                "time, while PyTorch's CPU devices are one process that works for one of them at a time: compare its peaks with "
                "bl.compare(..., step=step, measure=True)"
            )
        yield Case(name.rpartition(":")[2], step)


def _study(arguments: argparse.Namespace, names: list[str], settings: dict[str, Any], wait: float | None) -> Report:
    from ..fidelity import provenance, store, study
    from ..fidelity.study import MODELS

    models = {Path(name).name: MODELS.get(name, {}) for name in names}
    placements = options.distinct(arguments.placements, "--placements")
    about = provenance(models=models, **settings)

    def store_report(report: Report) -> None:
        if arguments.output:
            store(arguments.output, "study", output.plain({**about, **report.to_dict()}))

    report = study(
        _cases(names),
        placements,
        progress=not arguments.json,
        on_model=store_report,
        wait=wait,
        trusted_users=arguments.trusted_users,
        **settings,
    )
    if not arguments.json:
        print(report)
    return report


def _speed_up(
    arguments: argparse.Namespace, settings: dict[str, Any], costs: Calibration | None, wait: float | None
) -> list[Any]:
    from dataclasses import asdict

    from ..fidelity import Case, provenance, speed_up, store
    from ..fidelity.speedup import SPEED_UP
    from ..models import build

    name, size = SPEED_UP
    counts = {key: settings[key] for key in ("workers", "steps", "rounds")}
    about = provenance(model=name, size=size, **counts)
    case = Case(name, build(name, **size))
    speed_ups, costs = speed_up(case, calibration=costs, wait=wait, trusted_users=arguments.trusted_users, **counts)
    if not arguments.json:
        for speed_up_record in speed_ups:
            print(speed_up_record)
    rows = [speed_up_record.to_dict() for speed_up_record in speed_ups]
    if arguments.output:
        store(arguments.output, "speed_up", output.plain({**about, "calibration": asdict(costs), "rows": rows}))
    return rows
