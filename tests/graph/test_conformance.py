"""The package's reading of its JSON Schema agrees with that of the package `jsonschema`."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.formats.conformance import mismatches
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
def test_documents_pass_that_the_schema_allows_and_no_others(name):
    """Also the fields are the same that are said to be wrong."""
    with without_modules("rfc3987_syntax"):  # grammars of addresses take a second
        from jsonschema import Draft202012Validator
    definitions = schema()["$defs"]
    document = json.loads(json.dumps(to_document(records()[name])))
    rule = definitions[document["kind"]]
    assert not list(mismatches(document, rule, definitions))
    validator = Draft202012Validator({**rule, "$defs": definitions})
    passing = 0
    for changed_document in changed_documents(document):
        expected = {path for error in validator.iter_errors(changed_document) for path in places_of(error)}
        assert {path for path, _, _ in mismatches(changed_document, rule, definitions)} == expected
        passing += not expected
    assert passing > 3


def places_of(error):
    """The fields that an error of `jsonschema` is about: those that are too many, or those within the only possible form."""
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        return [(*path, key) for key in error.instance.keys() - error.schema["properties"].keys()]
    forms = [[e for e in error.context if e.schema_path[0] == k] for k in {e.schema_path[0] for e in error.context}]
    possible = [form for form in forms if all(path not in places_of(e) for e in form)]
    return [place for form in possible for e in form for place in places_of(e)] or [path]


def test_an_unknown_keyword_is_an_error():
    with pytest.raises(NotImplementedError, match="'pattern'"):
        list(mismatches("a", {"pattern": "b"}, {}))
    assert KINDS.keys() <= schema()["$defs"].keys()
