"""Of many cases, a few for the fast tests."""

import pytest


def fast(values, count):
    """The values as parameters of a test, of which all but the first `count` are slow tests."""
    return [pytest.param(v, marks=pytest.mark.slow) if k >= count else v for k, v in enumerate(values)]


def slow(values, *slow_values):
    """The values as parameters of a test; those named are slow tests."""
    return [pytest.param(v, marks=pytest.mark.slow) if v in slow_values else v for v in values]
