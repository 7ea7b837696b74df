"""The quick test of documents agrees with the JSON Schema: it passes every good document and no bad one."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.formats.conformance import conforms
from baechi_lab.graph.formats.json_format import KINDS, schema, to_document
from baechi_lab.importing import without_modules

WRONG_VALUES = (None, True, -1, 0.5, "", [], [None], {"other": 1}, float("nan"))


def records():
    graph = bl.generators.random_dag(6, colocation_groups=2, persistent_bytes=8, seed=1)
    cluster = bl.Cluster.uniform(2)
    placement = bl.Placement(device=[0, 1] * 3, priority=[1.0, -np.inf, 2.0, 3.0, 4.0, 5.0])
    links = [[bl.Link(1.0, 0.5), bl.Link(2.0, 0.5)], [bl.Link(1.0, 0.5), bl.Link(2.0, 0.5)]]
    return {
        "graph": graph,
        "cluster": cluster,
        "cluster with links": bl.Cluster(cluster.devices, links, "duplex"),
        "placement": placement,
        "timeline": bl.simulate(bl.generators.chain(2), cluster, bl.Placement(device=[0, 1])),
    }


def changed_documents(document):
    """Yields copies of `document` that have one value replaced, or one field removed or added."""

    def places(value, path=()):
        yield path
        for key in (
            list(value) if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ()
        ):
            yield from places(value[key], (*path, key))

    for path in list(places(document))[1:]:
        for wrong_value in (*WRONG_VALUES, "remove", "add"):
            changed_document = copy.deepcopy(document)
            owner = changed_document
            for key in path[:-1]:
                owner = owner[key]
            if wrong_value == "remove":
                del owner[path[-1]]
            elif wrong_value == "add" and isinstance(owner, dict):
                owner["colour"] = 1
            else:
                owner[path[-1]] = wrong_value
            yield changed_document


@pytest.mark.parametrize("name", records())
def test_good_documents_pass_and_no_bad_one(name):
    with without_modules("rfc3987_syntax"):  # grammars of addresses take a second
        from jsonschema import Draft202012Validator
    definitions = schema()["$defs"]
    document = json.loads(json.dumps(to_document(records()[name])))
    rule = definitions[document["kind"]]
    assert conforms(document, rule, definitions)
    validator = Draft202012Validator({**rule, "$defs": definitions})
    passing = [d for d in changed_documents(document) if conforms(d, rule, definitions)]
    assert len(passing) > 3 and all(map(validator.is_valid, passing))


def test_keywords_that_the_test_does_not_know_fail():
    assert not conforms("a", {"pattern": "b"}, {})
    assert not conforms("a", {"$ref": "#/$defs/nonsense"}, {})
    assert KINDS.keys() <= schema()["$defs"].keys()
