"""The stored results of `planner.experiment` as the tables of Mirhoseini and of Jeon et al., and those of `--groupings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.planner.comparison import best_within

if TYPE_CHECKING:
    import pandas

TABLE_1 = {"cpu-only": "CPU only", "gpu-only": "GPU only", "expert": "expert", "scotch": "Scotch", "metis": "min-cut"}
"""Placers of Mirhoseini et al.'s Table 1 but the last, and its names for them."""
H_TABLE_1 = {
    "Inception-V3": (0.61, 0.15, 0.15, 0.93, 0.82, 0.13),
    "ResNet": (None, 1.18, 1.18, 6.27, 2.92, 1.18),
    "RNNLM": (6.89, 1.57, 1.57, 5.62, 5.21, 1.57),
    "NMT (2-layer)": (6.46, None, 2.13, 3.21, 5.34, 0.84),
    "NMT (4-layer)": (10.68, None, 3.64, 11.18, 11.63, 1.69),
    "NMT (8-layer)": (11.52, None, 3.88, 17.85, 19.01, 4.07),
}
"""H, Table 1, measured seconds per step: the columns of `TABLE_1`, then the Hierarchical Planner; None: out of memory."""
B_TABLE_2 = {"Inception-V3": (11 * 3600 + 50 * 60, 10.0), "GNMT": (45 * 3600 + 14 * 60, 48.0)}
"""B, Table 2, seconds to place: Hierarchical Planner, and m-SCT at its slowest."""
RIVALS = ("m-topo", "m-etf", "m-sct", "metis", "expert")


def _steps(cell: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per step by placer; NaN where nothing fits."""
    return {row["placer"]: row["step_seconds"] if row.get("feasible") else float("nan") for row in cell["rows"]}


def table_1(results: Mapping[str, Any]) -> pandas.DataFrame:
    """Simulated seconds per step per model (NaN: out of memory); `reduction` against the best of the others, as in the paper."""
    import pandas as pd

    rows = {}
    for cell in results["cells"]:
        step = _steps(cell)
        other_placers = {label: step[name] for name, label in TABLE_1.items()}
        learned_seconds = step["hierarchical"]
        best = np.nanmin(list(other_placers.values()))
        rows[cell["name"]] = {
            "GPUs": cell["gpus"],
            **other_placers,
            "hierarchical": learned_seconds,
            "reduction": 1 - learned_seconds / best,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def paper_table_1() -> pandas.DataFrame:
    """H's own Table 1."""
    import pandas as pd

    return pd.DataFrame(H_TABLE_1, index=[*TABLE_1.values(), "hierarchical"], dtype=float).T


def table_2(results: Mapping[str, Any]) -> pandas.DataFrame:
    """The planner on ops with random groupings (best, median, worst) and with learned ones, seconds per step."""
    import pandas as pd

    rows = {}
    for cell in results["cells"]:
        step = _steps(cell)
        drawn = [seconds for name, seconds in step.items() if name.startswith("random grouping")]
        learned, best = step["hierarchical on ops"], float(np.min(drawn))
        rows[cell["name"]] = {
            "best": best,
            "median": float(np.median(drawn)),
            "worst": float(np.max(drawn)),
            "learned": learned,
            "improvement": 1 - learned / best,
            "updates": [r for r in cell["rows"] if "updates" in r][3]["updates"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def compared_groupings(results: Mapping[str, Any]) -> pandas.DataFrame:
    """Per grouping: best seconds per step of every seed, their median, and the median at equal seconds of training, which
    are those of the fastest run with learned or random groups (random placement, which trains nothing, keeps its samples)."""
    import pandas as pd

    rows = {}
    for cell in results["cells"]:
        limit = min(row["train_seconds"] for row in cell["rows"] if row["grouping"] in ("learned", "random"))
        for name in dict.fromkeys(row["grouping"] for row in cell["rows"]):
            rows_of_grouping = [row for row in cell["rows"] if row["grouping"] == name]
            soon = [best_within(row, 1, limit if "updates" in row else float("inf")) for row in rows_of_grouping]
            rows[cell["on"], name] = {
                **{f"seed {row['seed']}": row["best_seconds"] for row in rows_of_grouping},
                "median": float(np.median([row["best_seconds"] for row in rows_of_grouping])),
                f"median after {limit:.0f} s": float(np.median(soon)),
                "samples": rows_of_grouping[0]["samples"],
                "seconds": float(np.median([row["train_seconds"] for row in rows_of_grouping])),
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["placed", "grouping"])


def placing_times(results: Mapping[str, Any]) -> pandas.DataFrame:
    """Per model and rival: seconds to place, how many times longer `hierarchical` took, and step time learned / rival."""
    import pandas as pd

    rows = {}
    for cell in results["cells"]:
        by_name = {row["placer"]: row for row in cell["rows"]}
        step, learned = _steps(cell), by_name["hierarchical"]
        for name in RIVALS:
            seconds = by_name[name]["place_seconds"]
            rows[cell["name"], name] = {
                "place_seconds": seconds,
                "learned_place_seconds": learned["place_seconds"],
                "samples": learned.get("samples", 0),
                "times_longer": learned["place_seconds"] / seconds,
                "step_learned_over_rival": step["hierarchical"] / step[name],
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "rival"])
