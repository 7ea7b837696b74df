"""`bl.torch.measure_collective`: a table of a collective's times among processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.graph.collectives import MeasuredCollective
from baechi_lab.workers.forked import TORCH_PIPELINE
from baechi_lab.workers.pool import Pool

PROGRAM = """
import json
import torch.distributed as dist
import baechi_lab as bl

dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
tables = [bl.torch.measure_collective(kind, size_bytes=[4, 6, 1000, 4096], repeats=3) for kind in ("all_reduce", "all_gather")]
try:
    bl.torch.measure_collective("send_recv")
except bl.InvalidInput as error:
    refusal = str(error)
dist.destroy_process_group()
json.dump([[t.kind, t.devices, t.size_bytes.tolist(), t.us.tolist()] for t in tables] + [refusal], open(f"{store}{rank}", "w"))
"""


@pytest.mark.slow
def test_two_processes_measure_the_same_table(tmp_path: Path) -> None:
    """4 and 6 bytes are one float32 number each and become two numbers; 1,000 bytes are 125 numbers each."""
    store = str(tmp_path / "store")
    with Pool(2, tries=1, imports_main=False, imports=TORCH_PIPELINE) as processes:
        ranks = [processes.submit(exec, PROGRAM, {"store": store, "rank": rank}) for rank in range(2)]
        assert [rank.result(100) for rank in ranks] == [None, None]
    outputs = [json.loads(Path(f"{store}{rank}").read_text()) for rank in range(2)]
    assert outputs[0] == outputs[1]
    *tables, refusal = outputs[0]
    for (kind, devices, sizes, us), name in zip(tables, ("all_reduce", "all_gather"), strict=True):
        assert (kind, devices, sizes) == (name, 2, [8.0, 1000.0, 4096.0])
        assert all(time > 0 for time in us)
        table = MeasuredCollective(devices, sizes, us, kind)
        assert table.us_of(1000.0) == us[1]
    assert refusal.startswith("kind is 'send_recv'; it must be one of")


def test_without_a_process_group_it_is_refused() -> None:
    with pytest.raises(bl.InvalidInput, match="this process has no process group"):
        bl.torch.measure_collective()
