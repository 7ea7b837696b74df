"""Every number of the search is measured, or says why equal counts of simulations do not measure it."""

from dataclasses import fields

from baechi_lab.placers.search.parameters import SearchParameters
from studies.results import result
from studies.search_numbers import NEUTRAL, UNMEASURED, variants


def test_every_number_is_measured_or_says_why_not():
    names = {field.name for field in fields(SearchParameters)}
    assert names == set(NEUTRAL) | set(UNMEASURED)
    assert not set(NEUTRAL) & set(UNMEASURED)


def test_every_change_differs_from_the_default():
    defaults = SearchParameters()
    for name, (_, changes) in variants().items():
        for number, value in changes.items():
            assert value != getattr(defaults, number), name


def test_dropped_numbers_are_gone_and_were_worth_less_than_the_noise():
    names = {field.name for field in fields(SearchParameters)}
    for change, row in result("search_numbers")["dropped"].items():
        assert change.split(" ")[0] not in names
        assert row["ratio"] < 1 + row["noise"], change
