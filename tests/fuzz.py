"""Fuzz files, traces, configurations, commands and arguments for some hours, and keep what failed:

    python -m tests.fuzz --hours 2 --output fuzz-results

Every answer must be a result or one sentence of our own, and soon. One run has one seed, which is printed and makes the same
cases again; the kinds take turns. For every failure the folder gets a text, and beside it the file that was read, if the case
reads one; `summary.json` counts. Exit code 1 where something failed.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES_PER_TURN = {"graphs": 200, "files": 100, "commands": 4, "configs": 4, "layouts": 10, "arguments": 100}
"""Cases of a kind before the next kind has its turn: more of the cheap ones, so that no kind takes most of the time."""
CASES_OF_OTHERS = 20
MEMORY_FOLDER = Path("/dev/shm")
"""Cases write files of a few kilobytes and replace them at once: on a disk, every such write waits for the disk."""
ENDLESS = 10**9


def fuzz(kinds, seed, seconds, folder):
    """(answers by kind, failures); what failed is in `folder` as soon as it did."""
    from fuzzing.run import CASES, tried

    until, failures = time.monotonic() + seconds, 0
    answers = {kind: Counter() for kind in kinds}
    running = {kind: CASES[kind](ENDLESS, seed) for kind in kinds}
    while time.monotonic() < until:
        for kind, cases in running.items():
            for _ in range(CASES_PER_TURN.get(kind, CASES_OF_OTHERS)):
                case = next(cases)
                answer = tried(case)
                answers[kind][answer if answer in ("taken", "refused") else "failed"] += 1
                if answer not in ("taken", "refused"):
                    failures += 1
                    keep(folder, f"{kind}-{failures}", answer, case.path)
                if time.monotonic() >= until:
                    break
    for cases in running.values():
        cases.close()
    return answers, failures


def keep(folder, name, answer, path):
    """Write the failure, and the file that the case read."""
    print(f"{name}: {answer[:300]}", flush=True)
    (folder / f"{name}.txt").write_text(answer + "\n", encoding="utf-8", errors="backslashreplace")
    if path is not None and path.is_file():
        shutil.copyfile(path, folder / f"{name}{''.join(path.suffixes)}")


def main(argv=None):
    """The command."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from fuzzing.run import CASES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, help="(drawn)")
    parser.add_argument(
        "--output", type=Path, default=Path("fuzz-results"), help="folder for what failed (%(default)s)"
    )
    parser.add_argument("--kinds", default=",".join(CASES), help="(%(default)s)")
    options = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    options.output.mkdir(parents=True, exist_ok=True)
    if MEMORY_FOLDER.is_dir() and "TMPDIR" not in os.environ:
        tempfile.tempdir = str(MEMORY_FOLDER)
    print(f"seed {seed}, {options.hours:g} hours, failures go to {options.output}", flush=True)
    began = time.time()
    answers, failures = fuzz(options.kinds.split(","), seed, options.hours * 3600, options.output)
    summary = {
        "seed": seed,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(time.time() - began),
        "answers": answers,
        "failures": failures,
    }
    (options.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
