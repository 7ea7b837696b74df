"""Generated graphs for tests and examples; every generator takes a `seed`, and equal arguments give equal graphs."""

from .backward import with_backward
from .graphs import chain, fork_join, layered_dag, pipeline, random_dag
from .homework import homework
from .recurrent import gnmt, unrolled_rnn

__all__ = [
    "chain",
    "fork_join",
    "gnmt",
    "homework",
    "layered_dag",
    "pipeline",
    "random_dag",
    "unrolled_rnn",
    "with_backward",
]
