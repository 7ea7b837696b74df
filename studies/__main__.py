"""`python -m studies table3`: a table of Jeon et al. 2020 from the stored profiles."""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.baechi_tables import TABLE_3, TABLE_4
from studies.runs import outcomes, paper_cluster, ratio_table, step_table, stored


def main() -> None:
    """Print the table, ours above the paper's."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    parser.add_argument("table", choices=("table3", "table4"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the stored profiles")
    parser.add_argument("--comm", default="sequential", help="parallel, sequential or duplex")
    options = parser.parse_args()
    paper, memory = (TABLE_3, "8GB") if options.table == "table3" else (TABLE_4, "2.4GB")
    cluster = paper_cluster(memory, options.comm)
    outcomes_by_model = {name: outcomes(stored(name, options.data), cluster) for name in paper}
    print(step_table(outcomes_by_model, paper).to_string(), end="\n\n")
    print(ratio_table(outcomes_by_model, paper, "single" if options.table == "table3" else "m-etf").to_string())


if __name__ == "__main__":
    main()
