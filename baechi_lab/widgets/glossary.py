"""The glossary: tooltips of the workbench, and docs/glossary.md, which `python -m baechi_lab.widgets.glossary` prints."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GLOSSARY: Mapping[str, str] = MappingProxyType(
    {
        "1F1B": "A schedule: each device runs one forward pass, then one backward pass, in turns (`1f1b`).",
        "Activation": "An output of a forward op that the backward pass reads. The device holds it until then.",
        "All-reduce": (
            "Adding up a tensor of several devices, so that each device has the sum. Replicas do so with "
            "gradients, around a ring."
        ),
        "Allowed devices": "The devices, or kinds of device, on which an op may run. Empty means any.",
        "Assigner": (
            "The part of paper P that puts the layers of a PyTorch module where the placement says, and moves "
            "tensors between them."
        ),
        "Awake": (
            "A device in SCT that waits for the favourite child of its last op, because that op can start there "
            "first. Meanwhile it takes only *urgent* ops: those that any device could start at once."
        ),
        "Backward pass": "The ops that compute gradients. The forward pass computes the loss.",
        "Balance": "Mean busy time of the devices over that of the busiest device. 1 is even.",
        "Baseline": (
            "Of a policy: the usual reward. Choices above it become more likely, choices below it less likely. "
            "Of a table: a simple rule to compare with."
        ),
        "Bound, lower": "A step time that no placement and no schedule can beat: `bl.bounds`.",
        "Bubble": (
            "Idle time of a device between two of its ops. With micro-batches, the share of the step in which "
            "devices wait."
        ),
        "Budget": "The most bytes that one device may hold: an argument of `bl.recompute`.",
        "Calibration": "Fitting the constants of an estimate to a few measured steps: `bl.calibrate`.",
        "Checkmate": "An integer program that chooses what to recompute within a budget (Jain et al. 2020).",
        "Cluster": "The devices, the links between them and the communication mode: `bl.Cluster`.",
        "Co-placement": (
            "Putting ops on one device by choice, because a tensor between them hardly pays for its transfer "
            "(paper B, section 3.2)."
        ),
        "Coarse graph": (
            "The graph that passes make of another graph. Each of its ops is a group of original ops. "
            "`group_of` leads from original ops to groups, so a placement of a coarse graph is also a placement "
            "of the original."
        ),
        "Colocation": (
            "The rule that ops must run on one device, because the framework requires it: they share a variable."
        ),
        "Colocation group": "The ops of one colocation. They are placed together.",
        "Communication mode": (
            "How transfers share the links: `parallel`, `sequential` or `duplex`. See [what a simulated "
            "microsecond means](simulated-time.md#transfers)."
        ),
        "Contiguous": (
            "Consecutive in an order of the ops. The placer `contiguous` cuts such an order into one run of ops "
            "per device."
        ),
        "Control dependency": "An edge that only says that an op runs after another. It is a tensor of 4 bytes.",
        "Critical path": "A longest path through the graph, in microseconds. No step is shorter.",
        "Critical-path partitioning": (
            "The placers of paper C, which give priority to ops on long paths or look at traffic: `hash`, "
            "`batch-split`, `critical-path`, `heft`, `mite`, `dfs`."
        ),
        "DFS": (
            "Depth-first search: a placer that visits each op right after its producer, so that neighbours stay "
            "together (paper C, `dfs`)."
        ),
        "Earliest start": (
            "The first moment at which an op could begin on a device: its inputs are there and the device is free."
        ),
        "Estimated, measured, simulated": (
            "An *estimated* duration comes from a model of the hardware's kernels. A *measured* one comes from "
            "running the op (`bl.profile`). A *simulated* timeline comes from `bl.simulate`, a *measured* one "
            "from `bl.execute`."
        ),
        "ETF": (
            "Earliest Task First: the ready op that can start first, on the device where it can, is next (paper "
            "B, section 2.3). *m-ETF* keeps to memory limits."
        ),
        "F, B, W": (
            "The units of a micro-batch on a device: the forward pass, the gradients that another pipeline "
            "stage waits for, and the other gradients, mostly those of weights."
        ),
        "Favourite child": (
            "The successor that the SCT linear program wants to run right after an op, on the same device."
        ),
        "Feasible": "Of a placement: it breaks no rule and fits the memory of every device. Tables say *fits*.",
        "FIFO": "First in, first out: the scheduler that runs the op that has been ready for longest (`fifo`).",
        "Forward only": (
            "Only forward ops are placed, and every backward op goes where its forward op is. `auto` does so "
            "where the whole model would fit on one device."
        ),
        "Forward op": "For a backward op, the op whose gradient it computes (`forward_of`).",
        "Fusion": (
            "A pass: neighbours of one co-placement or colocation group become one op where that makes no cycle "
            "(paper B, section 3.2)."
        ),
        "Gantt chart": "A chart with a row per device, time to the right, and a bar per op.",
        "Gap": "How far a step is above the lower bound: `makespan / bound - 1`.",
        "GPipe": "A schedule: all forward passes, then all backward passes (`gpipe`).",
        "Group": "Ops that move together. An op of a coarse graph stands for them.",
        "HEFT": (
            "Heterogeneous Earliest Finish Time: ops by upward rank, each to the device on which it finishes "
            "first (`heft`)."
        ),
        "Host": "A device of kind `host`: it holds bytes for other devices and runs nothing else.",
        "Ideal": (
            "A set of ops that holds everything that comes before its members: a *downward-closed set*. The "
            "placer `ideals` searches pairs of them."
        ),
        "Interleaved": "A schedule with several pipeline stages on each device (`interleaved-1f1b`).",
        "Kind": "Of a device: `gpu`, `cpu`, `v100`, ... A graph may have a duration per kind.",
        "Layer": (
            "A module of a network, such as a linear layer or a decoder layer. In a layer graph each call of "
            "one is an op."
        ),
        "Linear program (LP)": (
            "A problem with linear inequalities, which a solver answers exactly. That of SCT is the schedule on "
            "endlessly many devices, where favourite children may be shares; rounding makes them whole (paper "
            "B, section 2.4). `lp_ops` is the number of ops up to which it is tried."
        ),
        "Link": (
            "The linear cost of moving bytes from one device to another: `latency_us + us_per_byte * "
            "size_bytes`, and `overhead_us` of processor time per message."
        ),
        "List scheduling": (
            "Building a schedule from left to right: one of the ready ops is next, on one device, and stays "
            "there (Graham 1969)."
        ),
        "LogGP": (
            "A model of messages: latency, overhead, gap and bytes (Alexandrov et al. 1995). Its overhead *o* "
            "is `overhead_us` of a link."
        ),
        "m-TOPO": (
            "The placer that fills the devices one after the other, in topological order (paper B, section 2.2, "
            "the strawman)."
        ),
        "Makespan": "The time from the start of a step to the end of its last op: the step time.",
        "Micro-batch": "A part of the batch of a step. Several of them are on the devices at once: `bl.unroll`.",
        "MILP": "Mixed-integer linear program: a linear program in which some variables must be whole numbers.",
        "MITE": (
            "A placer of paper C: the device with the least product of memory, importance, traffic and "
            "execution time (`mite`)."
        ),
        "Moved": "In tables: the bytes sent between devices in a step.",
        "MSR": (
            "Maximum Successor Rank: the scheduler that runs the op that does most for its successors and for "
            "devices that would otherwise idle (paper C, `msr`)."
        ),
        "Native": (
            "The undivided step as its framework runs it, with the framework's own optimizer of graphs, on one device."
        ),
        "Objective": (
            "What a placer minimises: `latency` (one step), `throughput` (the period) or `step` (a step of "
            "several micro-batches)."
        ),
        "Offloading": (
            "Outputs, or state of the optimizer, wait in the memory of the host and come back before they are "
            "read: `bl.offload`."
        ),
        "Op, operator": "A node of the graph: a matrix product, a convolution, an update of a variable.",
        "OpGraph": "The record of a step: its ops, the tensors between them, and what each costs.",
        "Optimum": (
            "The shortest step that any placement and order have. It is known only where it is proven: `exact`."
        ),
        "Pass": "A function from a graph to a smaller or otherwise better graph: `bl.optimize`.",
        "PCT": (
            "Path Computation Time: the scheduler that runs the op with the longest path to the end of the step "
            "under this placement (paper C, `pct`)."
        ),
        "Peak": "The most bytes that a device holds at any moment of the step.",
        "Period": "The time from one micro-batch to the next when they never end: `bl.throughput`.",
        "Persistent bytes": "The bytes that an op keeps throughout the step, mostly parameters.",
        "Pipeline": (
            "Stages joined by `|`: `bl.Pipeline`. What one device does for micro-batches is a *pipeline stage*."
        ),
        "Pipeline parallelism": "Devices work on several micro-batches at once, each on its pipeline stage.",
        "Pipeline stage": (
            "The ops that one device runs for every micro-batch, or one of several such parts. It is not a "
            "*stage* of the library."
        ),
        "Placement": "A device for every op and, where the placer planned one, an order.",
        "Placer": (
            "An algorithm that makes placements: `bl.place`, `bl.list_placers`. One that *improves* goes on "
            "until a time limit."
        ),
        "Policy": "Probabilities of the next choice, which learning changes: `hierarchical`.",
        "Portfolio": "Several placers asked for the same graph. The fastest answer that fits is taken: `auto`.",
        "Profile": "A graph with the cost of each op. Also: to make one.",
        "Rank": (
            "Of an op: the longest path from it to the end (*upward rank*), from the start to it (*downward "
            "rank*), or through it (*total rank*)."
        ),
        "Ratio": (
            "How many times the optimum a rule takes at most. It is proven for all graphs that meet its "
            "premises: `bl.ratios`."
        ),
        "Ready": "An op whose inputs are all on its device.",
        "Recomputation": (
            "Outputs of forward ops are dropped, and computed again before the backward pass reads them. It "
            "saves memory and takes time: `bl.recompute`."
        ),
        "Repair": "Moving ops off devices whose memory a placement exceeds.",
        "Replica": (
            "One of several devices that share a pipeline stage. Each takes its share of the micro-batches. "
            "Their gradients are added up around a ring."
        ),
        "Reservation": (
            "A device keeps memory free for a whole colocation group once the first op of the group is placed there."
        ),
        "Reuse": (
            "An output that has no bytes of its own (`OpGraph.reuse`): it is a *view* that lies in its input, "
            "or it overwrites an input."
        ),
        "Reward": "The number by which a policy learns from a placement; in paper H, minus the root of the step time.",
        "rho": "The longest transfer over the shortest op. The *SCT assumption* is that it is at most 1.",
        "Roofline": (
            "An estimate of an op's time: the larger of its FLOPs over the device's rate and its bytes over the "
            "device's bandwidth."
        ),
        "Samples per second": "The batch size over the step time.",
        "Schedule": (
            "The order in which devices work on the units of micro-batches: `gpipe`, `1f1b`, `zb-h1`, ... A "
            "simulated step has one too: which op runs when."
        ),
        "Scheduler": "How a device chooses among its ready ops: `fifo`, `planned`, `pct`, `msr`.",
        "SCT": (
            "Small Communication Times: like ETF, but a device waits for the favourite child of its last op "
            "(paper B, section 2.4). *m-SCT* keeps to memory limits."
        ),
        "Speedup": (
            "The step time of the whole graph on one device, the fastest one, whether or not it fits there, over that of "
            "the placement."
        ),
        "Stage": (
            "One of profile, optimize, place, simulate and execute: a function from records to a new record. On "
            "devices, see *pipeline stage*."
        ),
        "Step": "One training step: forward pass, loss, gradients, update. `bl.Step` is a traced one.",
        "Strawman": "A rule that is kept simple, to compare others with it.",
        "Temporary bytes": "The bytes that an op holds only while it runs.",
        "Tensor": "What one op produces and any number of ops read.",
        "TF32": "A number format of GPUs for matrix products of float32 tensors: fewer digits, higher speed.",
        "Threshold": (
            "Of SCT: up to which share of a transfer the answer of the linear program counts as no transfer, "
            "and the reader as favourite child."
        ),
        "Throughput": "Samples per second in the long run: the batch size of a micro-batch over the period.",
        "Timeline": "The record of one step: what ran where and when, the transfers and the memory.",
        "Transfer": "The sending of a tensor to another device. It may wait in the *queue* of a link that is taken.",
        "Undivided": "The whole step on one device.",
        "Unit": (
            "What a device does for one micro-batch without a break: F, B or W. Of a placer: the ops that it moves as "
            "one, such as a colocation group."
        ),
        "Unroll": "To make the graph of a step of several micro-batches from the graph of one: `bl.unroll`.",
        "View": "In the workbench, a chart of a record. Of memory, see *reuse*.",
        "Zero bubble": "Schedules that run W where devices would wait (`zb-h1`, `zb-h2`, `zb-auto`, `zb-v`).",
    }
)
"""Terms and what they mean, in Markdown, in the order of the page."""

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "awake": "Awake",
        "balance": "Balance",
        "bubbles?": "Bubble",
        "lower bounds?": "Bound, lower",
        "gap": "Gap",
        "colocation": "Colocation",
        "colocated": "Colocation",
        "co-?placement": "Co-placement",
        "critical path": "Critical path",
        "earliest starts?": "Earliest start",
        "favourite child(?:ren)?": "Favourite child",
        "favourites?": "Favourite child",
        "forward only": "Forward only",
        "forward-only": "Forward only",
        "fusion": "Fusion",
        "list scheduling": "List scheduling",
        "linear programs?": "Linear program (LP)",
        "SCT LP": "Linear program (LP)",
        "lp ops": "Linear program (LP)",
        "makespan": "Makespan",
        "micro-batch(?:es)?": "Micro-batch",
        "native": "Native",
        "offloading": "Offloading",
        "pipeline stages?": "Pipeline stage",
        "portfolio": "Portfolio",
        "recomputation": "Recomputation",
        "replicas?": "Replica",
        "reservation": "Reservation",
        "roofline": "Roofline",
        "strawman": "Strawman",
        "threshold": "Threshold",
        "undivided": "Undivided",
        "upward ranks?": "Rank",
        "urgent": "Awake",
        "rho": "rho",
        "SCT assumption": "rho",
        "policy": "Policy",
        "reward": "Reward",
        "baseline": "Baseline",
        "speed-?ups?": "Speedup",
        "optimum": "Optimum",
        "period": "Period",
        "repair": "Repair",
        "schedulers?": "Scheduler",
    }
)
"""Patterns that are marked in the texts of the workbench, and their terms."""
_MARK = re.compile(r"(?<![\w/.-])(?:" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")(?![\w/-])", re.IGNORECASE)


def meaning(term: str) -> str:
    """Returns the meaning of a term as plain text.

    >>> meaning("Bubble")
    'Idle time of a device between two of its ops. With micro-batches, the share of the step in which devices wait.'
    """
    linked = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", GLOSSARY[term])
    return re.sub(r"[`*]", "", linked)


def tip(word: str) -> str:
    """Returns the meaning of a word in a text; empty if the glossary has no term for it.

    >>> tip("lower bound")[:40], tip("blue")
    ('A step time that no placement and no sch', '')
    """
    definition = next(
        (term for pattern, term in WORDS.items() if re.fullmatch(pattern, word.strip(), re.IGNORECASE)), None
    )
    return "" if definition is None else meaning(definition)


def explained(text: str) -> str:
    """Returns a plain text as HTML in which the first use of every term has its meaning as tooltip.

    >>> explained("<the makespan>")
    '&lt;the <abbr title="The time from the start of a step to the end of its last op: the step time.">makespan</abbr>&gt;'
    """
    explained_terms: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        definition = tip(match[0])
        if not definition or definition in explained_terms:
            return match[0]
        explained_terms.add(definition)
        return f'<abbr title="{html.escape(definition)}">{match[0]}</abbr>'

    return _MARK.sub(mark, html.escape(text))


def page() -> str:
    """Returns the page docs/glossary.md."""
    head = "# Glossary\n\nNames of records and functions are those of the [reference](api/index.md).\n"
    fold: dict[str, Any] = {
        "width": 118,
        "initial_indent": ":   ",
        "subsequent_indent": "    ",
        "break_on_hyphens": False,
    }
    return head + "".join(f"\n{term}\n{textwrap.fill(text, **fold)}\n" for term, text in GLOSSARY.items())


if __name__ == "__main__":
    print(page(), end="")
