"""`python -m studies.memory -o memory.json`: simulated against measured peaks of memory."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from baechi_lab.fidelity.stored_results import provenance
from baechi_lab.fidelity.study import MODELS, Case, cases_of
from baechi_lab.graph.formats.files import write_atomically
from studies.memory.report import Row, summarize_rows
from studies.memory.study import study

NAMES = (
    "inception_v3",
    "resnet50",
    "gnmt",
    "transformer",
    "bert",
    "gpt2",
    "llama",
    "t5",
    "vit",
    "convnext",
)
"""Of `torch_steps`, which loads PyTorch."""
UNSEEN = ("densenet121", "efficientnet_v2_b0", "mobilenet_v2", "xception", "vgg16", "encoder", "gpt")
"""Of `studies/unseen.py`, which loads TensorFlow."""


def main() -> None:
    """Study, print, and store after every model."""
    parser = argparse.ArgumentParser(prog="python -m studies.memory", description=__doc__)
    parser.add_argument("--torch", action="store_true", help="ten PyTorch models instead of TensorFlow's")
    parser.add_argument("--models", nargs="+", choices=tuple(dict.fromkeys((*MODELS, *UNSEEN, *NAMES))))
    parser.add_argument("--seed", type=int, default=0, help="of the random placement")
    parser.add_argument("-o", "--output", help="a .json file to write")
    options = parser.parse_args()
    known_names = NAMES if options.torch else (*MODELS, *UNSEEN)
    if strange := [name for name in options.models or () if name not in known_names]:
        parser.error(
            f"--models has {strange[0]!r}; {'with' if options.torch else 'without'} --torch there are {', '.join(known_names)}"
        )

    def keep(rows: Sequence[Row]) -> None:
        for row in (row for row in rows if row.model == rows[-1].model):
            print(
                f"{row.model} {row.placement} {row.device}: {row.simulated} simulated, {row.measured} measured, {row.error:+.1%}"
            )
        if options.output:
            write_atomically(options.output, (json.dumps(document(rows, options.seed), indent=1) + "\n").encode())

    if options.torch:
        from studies.memory.torch_study import torch_study

        rows = torch_study(options.models or NAMES, seed=options.seed, on_model=keep)
    else:
        rows = study(_cases(options.models or MODELS), seed=options.seed, on_model=keep)
    print(summarize_rows(rows))


def _cases(names: Iterable[str]) -> Iterator[Case]:
    """Every model when its turn comes."""
    for name in names:
        if name in MODELS:
            yield from cases_of({name: MODELS[name]})
        else:
            from studies import unseen

            yield Case(name, getattr(unseen, name)())


def document(rows: Sequence[Row], seed: int) -> dict[str, object]:
    """Everything, ready for JSON."""
    summary = summarize_rows(rows)
    origin = provenance(seed=seed)
    origin["command"] = origin["command"].replace("__main__.py", "python -m studies.memory")
    origin["machine"] = f"{os.cpu_count()} cores"
    return {
        **origin,
        "summary": {**asdict(summary), "met": summary.met},
        "rows": [{**asdict(r), "error": r.error} for r in rows],
    }


if __name__ == "__main__":
    main()
