"""Of many cases, a few for the fast tests."""

import pytest


def fast(values, count):
    """The values as parameters of a test, of which all but the first `count` are slow tests."""
    return [pytest.param(v, marks=pytest.mark.slow) if k >= count else v for k, v in enumerate(values)]


def slow(values, *which):
    """The values as parameters of a test; those named are slow tests."""
    return [pytest.param(v, marks=pytest.mark.slow) if v in which else v for v in values]
