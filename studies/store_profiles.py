"""`python -m studies.store_profiles FOLDER`: the profiled graphs that the notebooks start from.

Every profile is the roofline estimate for the GPU of Jeon et al. 2020, so that the files are the same on every machine with
the same TensorFlow; it takes a few minutes. `FOLDER/README.md` is rewritten with what each file holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baechi_lab.errors import InvalidInput, UnknownNameError
from baechi_lab.graph import OpGraph, save_graph
from baechi_lab.graph.hardware import Hardware
from baechi_lab.graph.units import format_bytes

HARDWARE = "rtx2080"


@dataclass(frozen=True)
class Stored:
    """One file: `<name>.json.gz` holds the profile of `model` with `params`."""

    name: str
    model: str
    params: dict[str, Any]
    purpose: str


PROFILES = (
    Stored("inception_v3-batch16", "inception_v3", {"batch_size": 16}, "exploring batch sizes"),
    Stored("inception_v3-batch32", "inception_v3", {"batch_size": 32}, "Jeon et al. 2020, Tables 2-5 and Figure 9"),
    Stored("inception_v3-batch64", "inception_v3", {"batch_size": 64}, "Jeon et al. 2020, Table 3"),
    Stored("inception_v3-batch128", "inception_v3", {"batch_size": 128}, "exploring batch sizes"),
    Stored("gnmt-length40-batch64", "gnmt", {"sequence_length": 40, "batch_size": 64}, "exploring batch sizes"),
    Stored(
        "gnmt-length40-batch128",
        "gnmt",
        {"sequence_length": 40, "batch_size": 128},
        "Jeon et al. 2020, Tables 2-5, Figures 8 and 9",
    ),
    Stored(
        "gnmt-length40-batch256",
        "gnmt",
        {"sequence_length": 40, "batch_size": 256},
        "Jeon et al. 2020, Table 3 and Figure 8",
    ),
    Stored("gnmt-length40-batch512", "gnmt", {"sequence_length": 40, "batch_size": 512}, "exploring batch sizes"),
    Stored(
        "gnmt-length50-batch128", "gnmt", {"sequence_length": 50, "batch_size": 128}, "Jeon et al. 2020, Tables 3 and 5"
    ),
    Stored("gnmt-length50-batch256", "gnmt", {"sequence_length": 50, "batch_size": 256}, "Jeon et al. 2020, Table 3"),
    Stored(
        "gnmt-steps-length40-batch128",
        "gnmt",
        {"projection": "steps"},
        "output layer unrolled (Mirhoseini et al., Figure 2)",
    ),
)


def make_profile(profile_to_store: Stored) -> OpGraph:
    """Build, trace and profile one of them. Needs TensorFlow."""
    from baechi_lab.models.building import build
    from baechi_lab.profilers import profile

    step = build(profile_to_store.model, **profile_to_store.params)
    return profile(step, mode="estimated", hardware=Hardware.named(HARDWARE).as_roofline()).replace(
        name=profile_to_store.name
    )


def store(folder: Path, names: Iterable[str] = ()) -> None:
    """Write the profiles named (default all) into `folder`, then the README if all are there.

    Raises `UnknownNameError` for a name that is none of `PROFILES`, `InvalidInput` when `folder` is no folder.
    """
    from tqdm.auto import tqdm

    profile_of_name = {profile_to_store.name: profile_to_store for profile_to_store in PROFILES}
    chosen_names = [*names] or [*profile_of_name]
    for name in chosen_names:
        if name not in profile_of_name:
            raise UnknownNameError.of("profile", name, profile_of_name)
    if not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; it must be an existing folder")
    for name in tqdm(chosen_names, desc="profile"):
        save_graph(make_profile(profile_of_name[name]), folder / f"{name}.json.gz")
    if all((folder / f"{name}.json.gz").exists() for name in profile_of_name):
        (folder / "README.md").write_text(_readme(folder), encoding="utf-8")


def _readme(folder: Path) -> str:
    from baechi_lab.graph import load_graph

    rows = []
    for stored_profile in PROFILES:
        path = folder / f"{stored_profile.name}.json.gz"
        graph = load_graph(path)
        call = ", ".join([repr(stored_profile.model), *(f"{k}={v!r}" for k, v in stored_profile.params.items())])
        rows.append(
            f"| `{path.name}` | `bl.models.build({call})` | {graph.n:,} | {graph.edge_count:,} "
            f"| {graph.duration_us.sum() / 1e6:.3f} | {format_bytes(path.stat().st_size)} | {stored_profile.purpose} |"
        )
    return _README.format(rows="\n".join(rows), hardware=HARDWARE)


_README = """# Profiled graphs

Training steps (forward, backward, update) of the benchmark models, as operator graphs with costs, so that the
notebooks need neither TensorFlow nor a GPU. Load one with `bl.load_graph("data/gnmt-length40-batch128.json.gz")`.

| file | step | ops | edges | work (s) | size | for |
|---|---|---|---|---|---|---|
{rows}

`pipedream/vgg16_graph.txt`: PipeDream's published profile of VGG-16 (Narayanan et al. 2019,
doi:10.1145/3341301.3359646; MIT licence beside it): times in ms of a forward and a backward pass, sizes in bytes. It
says what `tests/placers/test_pipeline_stages.py` holds the dynamic programmes of stages against.

`vtrain/a100_single_node_even.csv`: 720 measured iterations of GPT training on one to eight A100 (vTrain, MICRO 2024; MIT
licence beside it), in ms; `studies.vtrain` predicts those without tensor parallelism.

`vtrain/all_reduce_a100.csv`: microseconds of 336 all-reduces over two to eight A100 of one machine (vTrain, the same licence);
`studies.links` fits a link to them.

`neusight/`: measured kernels and whole models on GPUs (NeuSight, ASPLOS 2025, doi:10.1145/3669940.3707265; MIT licence beside
them), in ms; float32 without TF32, PyTorch 2.1, CUDA 12.1. `studies.kernels` fits the constants of the kernel model to them.

- `kernels.csv.gz`: single forward kernels: `count` products of `rows` x `inner` by `inner` x `columns` (`bmm`; `linear` has
  `count * rows` rows), and `count` rows of `length` numbers for all others (`addu` and the like take a tensor and a number).
  The source names the columns b, m, n, k. That `n` is the summed dimension follows from the times: one tile size per
  generation then explains batched products (error 6 instead of 31 % on an A100), and GPT-2's output layer on a P100 takes
  what it does within whole models.
- `convolutions.csv.gz`: forward convolutions on square images.
- `models.csv`, `configs/`: a forward pass (`inf`), or a forward and a backward pass (`train`), of Hugging Face models;
  `fusion` rows were compiled.

**Origin.** Made by this project from its own models (`baechi_lab.models`; Inception-V3 is Keras' own, random weights)
with TensorFlow 2.21. No training data, weights or third-party measurements are in them.

**Estimated, not measured.** `bl.profile(step, hardware=Hardware.named("{hardware}").as_roofline())`: a roofline over FLOPs and
bytes for the GPU of Jeon et al. 2020 (NVIDIA RTX 2080). Kernels reach a part of their peak, so real steps are slower.

**Units.** `duration_us` microseconds on one `{hardware}`; `temp_bytes`, `persistent_bytes` and tensor sizes bytes;
"work" above is the sum of all durations in seconds, which is the step time on one device. The format is described by
`baechi_lab/graph/formats/baechi_lab.schema.json`.

**Licence.** Apache-2.0, as the project.

**Make them again** (a few minutes; the same TensorFlow gives the same files):

    python -m studies.store_profiles data
"""


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.store_profiles", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write, usually data/")
    parser.add_argument("names", nargs="*", help="profiles to make (default: all)")
    options = parser.parse_args(arguments)
    store(options.folder, options.names)


if __name__ == "__main__":
    main()
