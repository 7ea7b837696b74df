"""Standard Task Graphs, with and without communication costs."""

import gzip

import pytest

import baechi_lab as bl

PLAIN = """\
          4
          0          0          0
          1         20          1          0
          2          3          1          0
          3          5          2          1          2
          4          8          1          3
          5          0          1          4
# a comment
#  Tasks : 4
"""


def write_stg(tmp_path, text):
    path = tmp_path / "sample.stg"
    path.write_text(text)
    return path


def test_a_file_without_costs_has_control_edges(tmp_path):
    graph = bl.load_graph(write_stg(tmp_path, PLAIN))
    assert graph.names == ("task0", "task1", "task2", "task3", "task4", "task5")
    assert graph.duration_us.tolist() == [0, 20, 3, 5, 8, 0]
    assert graph.edge_source.tolist() == [0, 0, 1, 2, 3, 4]
    assert graph.consumers.tolist() == [1, 2, 3, 3, 4, 5]
    assert set(graph.tensor_bytes.tolist()) == {bl.graph.CONTROL_BYTES}
    assert graph.name == "sample"


def test_a_compressed_file_is_the_same_graph(tmp_path):
    plain = bl.load_graph(write_stg(tmp_path, PLAIN))
    (tmp_path / "sample.stg.gz").write_bytes(gzip.compress(PLAIN.encode()))
    assert bl.load_graph(tmp_path / "sample.stg.gz") == plain


def test_costs_on_the_same_line_and_on_their_own(tmp_path):
    one_line = "3\n0 0 0\n1 5 1 0 7\n2 6 1 0 9\n3 1 2 1 2 2 4\n4 0 1 3 0\n"
    several_lines = "5 2\n0 0 0\n1 5 1\n 0 7\n2 6 1\n 0 9\n3 1 2\n 1 2\n 2 4\n4 0 1\n 3 0\n"
    first, second = (bl.load_graph(write_stg(tmp_path, text)) for text in (one_line, several_lines))
    assert first == second
    # Task 0 sends 7 to task 1 and 9 to task 2: two tensors.
    assert first.tensor_bytes.tolist() == [7, 9, 2, 4, 0]
    assert first.edge_source.tolist() == [0, 0, 1, 2, 3]


def test_a_cost_of_one_unit_takes_one_microsecond_on_a_unit_link(tmp_path):
    graph = bl.load_graph(write_stg(tmp_path, "1\n0 3 0\n1 5 1 0 7\n2 0 1 1 0\n"))
    assert bl.Link(0, 1).cost_us(int(graph.tensor_bytes[0])) == 7


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", bl.FormatError, "empty"),
        ("# only a comment\n", bl.FormatError, "empty"),
        ("many\n", bl.FormatError, "line 1"),
        ("1 2 3\n", bl.FormatError, "line 1"),
        ("-1\n", bl.FormatError, "number of tasks"),
        ("nan\n", bl.FormatError, "number of tasks"),
        (PLAIN.replace("          5          0          1          4\n", ""), bl.FormatError, "truncated"),
        (PLAIN.replace("3          5          2          1          2", "3 5 2 1"), bl.FormatError, "line 5"),
        ("1\n0 0\n", bl.FormatError, "line 2"),
        ("1\n0 0 0\n1 x 0\n2 0 0\n", bl.FormatError, "line 3"),
        ("1\n0 0 0\n1 5 1 9\n2 0 1 1\n", bl.UnknownOpError, "9"),
        ("1\n0 0 0\n1 5 1 0\n1 0 0\n", bl.DuplicateNameError, "task 1"),
        ("1\n0 0 0\n1 5 1 2\n2 0 1 1\n", bl.CycleError, "cycle"),
        ("1\n0 0 0\n1 -5 1 0\n2 0 1 1\n", bl.CostError, "duration"),
        ("3 2\n0 0 0\n1 5 1\n0 7\n2 0 1\n", bl.FormatError, "end of the file"),
        ("1\n0 0 0\n1 5 0.5\n2 0 0\n", bl.FormatError, "whole number"),
    ],
)
def test_bad_files_are_rejected(tmp_path, text, error, message):
    with pytest.raises(error, match=message) as caught:
        bl.load_graph(write_stg(tmp_path, text))
    assert "sample.stg" in str(caught.value)
