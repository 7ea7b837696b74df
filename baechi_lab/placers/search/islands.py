"""Searches on other processes or machines: islands search separately and exchange their results (`executor=`).

The stepping-stone model (Tanese 1989, in Proc. ICGA 3; Cantu-Paz 1998, "A survey of parallel genetic algorithms"): every
island searches for a round from its candidate. Then it continues from the better of its own result and that of its neighbour in
a ring, so that good candidates spread slowly. Every island has its own seeds and its share of the budget. So with `evaluations`
the result depends neither on the machines nor on their number. The graph is sent once to each process, if the executor can keep
it there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ...errors import ExecutionError
from ...graph import Cluster, OpGraph, Placement
from ...graph.formats.wire import decode_graph, encode_graph
from ...workers.executors import Calls, open_calls
from .budget import Budget, SearchReport
from .parameters import SEARCH

Search = Any
"""A `search.placer.Search`, whose module imports this one."""


def search_on_islands(
    search: Search,
    graph: OpGraph,
    cluster: Cluster,
    start: Placement | None,
    report_progress: Callable[[Budget, int, float], None],
) -> Placement:
    """Runs `search` on the islands of its executor; returns the best placement.

    Each island has the time of `search`, and its share of the evaluations. `report_progress` is called after
    every round, with the budget, the evaluations so far and the best cost in microseconds. Raises the errors of a search, and
    `ExecutionError` if a call is lost with its machine repeatedly.
    """
    budget, evaluations = Budget(search.time_limit, search.evaluations), 0
    placements: list[Placement | None] = [start] * search.islands
    history: list[tuple[float, int, float]] = []
    with open_calls(search.executor, search.islands) as calls:
        shared_graph = calls.share(encode_graph(graph))
        for round_number in range((search.numbers or SEARCH).island_rounds):
            seconds = None if search.time_limit is None else max(search.time_limit - budget.elapsed, 0.0)
            island_searches = [
                _island_search(search, round_number, island, placements[island], seconds)
                for island in range(search.islands)
            ]
            # One round: the result of each search, one at a time per process of the executor.
            futures = [
                calls.submit(search_once, shared_graph, cluster, island_search) for island_search in island_searches
            ]
            results = [
                _result(calls, future, shared_graph, cluster, island_search)
                for future, island_search in zip(futures, island_searches, strict=True)
            ]
            evaluations += sum(SearchReport.of(result).evaluations for result in results)
            if round_number == 0:
                report = SearchReport.of(results[0])
            best = min(_cost(result) for result in results)
            history.append((budget.elapsed, evaluations, best))
            report_progress(budget, evaluations, best)
            placements = [min(results[island - 1], results[island], key=_cost) for island in range(len(results))]
            if budget.stopped:
                break
    best_result = min(results, key=_cost)
    total = report._replace(
        evaluations=evaluations, seconds=budget.elapsed, interrupted=budget.interrupted, history=tuple(history)
    )
    info = {**best_result.info, **total._asdict(), "islands": search.islands}
    return best_result.replace(info=info, interrupted=budget.interrupted)


def _island_search(
    search: Search, round_number: int, island: int, start: Placement | None, seconds_left: float | None
) -> Search:
    """Returns the search of an island in round `round_number`: the first starts like `search`, later ones from the last results.

    `seconds_left` are divided among this and the following rounds, so that the time of starting processes does not count.
    """
    rounds = (search.numbers or SEARCH).island_rounds
    evaluations = None if search.evaluations is None else max(search.evaluations // (search.islands * rounds), 1)
    seconds = None if seconds_left is None else seconds_left / (rounds - round_number)
    seed = search.seed + 1_000_003 * (round_number * search.islands + island)
    return replace(
        search, executor=None, callback=None, evaluations=evaluations, time_limit=seconds, seed=seed, start=start
    )


def _result(
    calls: Calls, future: Future[Placement], shared_graph: object, cluster: Cluster, island_search: Search
) -> Placement:
    """Returns the result of a search, which is submitted again each time its machine is lost, up to `island_losses` times."""
    losses = (island_search.numbers or SEARCH).island_losses
    for _ in range(losses):
        try:
            return future.result()
        except calls.retryable_errors:
            future = calls.submit(search_once, shared_graph, cluster, island_search)
    try:
        return future.result()
    except calls.retryable_errors as error:
        raise ExecutionError(
            f"an island of the search was lost with its machine {losses + 1} times, perhaps for want of memory ({error})"
        ) from error


def search_once(graph: bytes, cluster: Cluster, search: Search) -> Placement:
    """Runs one search on the executor; `graph` is its compressed JSON."""
    return search.assign(decode_graph(graph), cluster)


def _cost(placement: Placement) -> float:
    """Returns the final objective of a search, in us."""
    return SearchReport.of(placement).history[-1][2]
