"""The numbers of the search: all in one object, each with what it means; compiled code reads them from there."""

import ast
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

import baechi_lab
from baechi_lab.graph import Cluster, generators
from baechi_lab.placers.evaluation.anneal import NO_STEPS, Schedule, anneal
from baechi_lab.placers.evaluation.cost import make_objective
from baechi_lab.placers.evaluation.model import make_model
from baechi_lab.placers.evaluation.moves import make_state, make_units
from baechi_lab.placers.evaluation.parameters import EVALUATION
from baechi_lab.placers.evaluation.work import make_work
from baechi_lab.placers.search.parameters import SEARCH

ROOMS = Path(baechi_lab.__file__).parent / "placers"
NOT_TUNED = {"MOST_ASSIGNMENTS", "SURELY", "_ABOVE_ROUNDING", "PROHIBITIVE", "MOST_WORKERS"}
"""Against rounding (two), larger than any time, a limit of what is asked for."""


@pytest.mark.parametrize("numbers", [EVALUATION, SEARCH])
def test_every_number_says_what_it_is(numbers):
    for name, value, unit, meaning, origin in numbers.describe():
        assert value is getattr(numbers, name) and unit and len(meaning) > 10 and origin, name
    with pytest.raises(FrozenInstanceError):
        numbers.order_share = 0.5


def test_no_other_module_of_the_rooms_holds_a_number():
    numbers_in_code = set()
    for path in [*(ROOMS / "search").glob("*.py"), *(ROOMS / "evaluation").glob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and path.stem != "parameters":
                values = (x.value for x in ast.walk(node.value) if isinstance(x, ast.Constant))
                if any(isinstance(x, (int, float)) for x in values):
                    numbers_in_code |= {
                        name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                    }
    assert numbers_in_code - {"_ONE", "NO_BITS", "NO_STEPS"} == NOT_TUNED


def annealed(parameters, steps=300):
    graph, cluster = generators.layered_dag(40, seed=1), Cluster.uniform(3)
    model = make_model(graph, cluster)
    objective = make_objective(model, track=False)._replace(work=make_work(model, parameters))
    state = make_state(np.zeros(graph.n, dtype=np.int32), np.arange(graph.n), parameters)
    units = make_units(np.arange(graph.n), np.arange(graph.n), np.ones((graph.n, 3), dtype=bool))
    anneal(objective, state, units, NO_STEPS, np.random.default_rng(0))
    time = float(state.cost[0])
    anneal(
        objective,
        state,
        units,
        Schedule(0.01 * time, 0.001 * time, steps, moves=parameters.moves),
        np.random.default_rng(0),
    )
    return state


def test_moves_are_drawn_with_the_shares_that_are_given():
    """Orders alone leave every op where it is; devices alone leave the order as it is."""
    orders, devices = (annealed(replace(EVALUATION, order_share=share)) for share in (1.0, 0.0))
    assert not orders.device.any() and orders.position.tolist() != list(range(40))
    assert devices.device.any() and devices.position.tolist() == list(range(40))
