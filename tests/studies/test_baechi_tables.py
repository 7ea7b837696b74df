"""The shared parts of Jeon et al.'s experiments; the tables themselves are notebooks 20 to 25."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.generators import chain
from studies import baechi_tables, search_quality
from studies.runs import outcome, outcomes, paper_cluster, ratio_table, step_table, stored
from studies.sensitivity import perturbed


def test_lack_of_memory_is_an_outcome():
    graph = chain(3, duration_us=2.0).replace(persistent_bytes=[10, 10, 10])
    short = outcome(graph, paper_cluster(20), "single")
    assert short.step_s is None
    assert "30 B" in short.why or "needs" in short.why
    assert outcome(graph, paper_cluster(1 << 20), "single").step_s == pytest.approx(6e-6)


def test_published_tables_by_hand():
    graph = chain(2, duration_us=1e6)
    outcome_table = {"x": outcomes(graph, paper_cluster(), ["single"])}
    outcome_table["x"] |= dict.fromkeys(baechi_tables.PLACERS, outcome_table["x"]["single"])
    published = {"x": (4.0, None, 6.0, 3.0, 4.0)}
    assert step_table(outcome_table, published).iloc[0].tolist() == ["2.000"] * 5
    assert step_table(outcome_table, published).iloc[1].tolist() == [
        "4.000",
        "out of memory",
        "6.000",
        "3.000",
        "4.000",
    ]
    # 6 / 4 - 1 = 50%, 3 / 4 - 1 = -25%
    assert ratio_table(outcome_table, published).iloc[1].tolist() == ["+0.0%", "", "+50.0%", "-25.0%", "+0.0%"]


def test_perturbed_factors_stay_in_their_range():
    graph = chain(200, duration_us=10.0, size_bytes=1000)
    wrong, link = perturbed(graph, bl.Link(100.0, 0.5), 0.2, seed=1)
    factor = wrong.duration_us / 10.0
    assert 0.8 <= factor.min() < 0.85 and 1.15 < factor.max() <= 1.2
    assert wrong.tensor_bytes.min() >= 800 and wrong.tensor_bytes.max() <= 1200
    assert 80 <= link.latency_us <= 120
    assert link.us_per_byte == 0.5
    assert np.array_equal(perturbed(graph, link, 0.2, seed=1)[0].duration_us, wrong.duration_us)


@pytest.mark.parametrize("error", [-0.1, 1.0])
def test_a_bad_error_is_rejected(error):
    with pytest.raises(bl.InvalidInput, match="error is"):
        perturbed(chain(2), bl.Link(1.0, 1.0), error, 0)


def test_quality_is_summed_up_over_all_and_by_kind():
    generated, profile = (
        {"search_over_bound": 1.0, "search_over_simple_bound": 1.0, "transfers_dominate": False} for _ in "ab"
    )
    generated |= {"graph": f"{search_quality.GENERATED}rnn", "search_over_rule": 0.5}
    profile |= {"graph": "bert", "search_over_rule": 0.98, "search_over_bound": 1.21, "transfers_dominate": True}
    summary = search_quality.summary([generated, profile])
    assert summary["search_over_rule"] == pytest.approx(0.7)
    assert summary["search_over_rule_generated"] == pytest.approx(0.5)
    assert summary["search_over_rule_profiles"] == pytest.approx(0.98)
    assert summary["search_over_bound"] == pytest.approx(1.1)
    assert summary["search_over_bound_where_transfers_dominate"] == pytest.approx(1.21)


def test_quality_of_a_small_graph_against_rules_and_bounds():
    graph, cluster = chain(6, duration_us=10.0), bl.Cluster.uniform(2, memory_bytes=1 << 30, link=bl.Link(5.0, 0.0))
    row = search_quality.quality(graph, cluster, 0.05, [0], effort_seconds=0.0)
    assert row["search_over_rule"] == row["search_over_bound"] == 1.0 and row["search_us"] == [60.0]


def test_a_missing_profile_is_named(tmp_path):
    with pytest.raises(bl.InvalidInput, match=r"gnmt.json.gz"):
        stored("gnmt", tmp_path)
