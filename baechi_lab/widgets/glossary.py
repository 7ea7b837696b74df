"""The words of the field as they are used here: tooltips of the workbench, and docs/glossary.md, which is printed by
`python -m baechi_lab.widgets.glossary`."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GLOSSARY: Mapping[str, str] = MappingProxyType(
    {
        "Against one device": (
            "The step beside that of the whole graph on one device, the fastest one, whether or not it fits there."
        ),
        "Allowed devices": "The devices, or kinds of device, on which an op may run. Empty means any.",
        "Assigner": (
            "The part of paper P that puts a PyTorch module's layers where the placement says and moves tensors "
            "between them."
        ),
        "Awake": (
            "Of a device in SCT: the favourite child of its last op can start there first, so it waits for it, and meanwhile "
            "takes only *urgent* ops, those that any device could start at once."
        ),
        "Balance": "Mean busy time of the devices over that of the busiest; 1 is even.",
        "Baseline": "Of a policy: the reward that is usual. What is better becomes more likely, what is worse less.",
        "Bound, lower": (
            "A step time that no placement and no schedule can beat: `bl.bounds`. *Gap* is `makespan / bound - 1`."
        ),
        "Bubble": "Idle time of a device between two of its ops; of a pipeline, the share of the step in which devices wait.",
        "Co-placement": (
            "Ops that run on one device by choice: a tensor that hardly pays for its transfer (paper B, section 3.2)."
        ),
        "Coarse graph": (
            "What passes make of a graph: its ops stand for groups of the original ones. `group_of` leads from "
            "original ops to groups, so a placement of a coarse graph is a placement of the original too."
        ),
        "Colocation group": "Ops that must run on one device, because the framework says so (they share a variable).",
        "Communication mode": (
            "How transfers share the links: `parallel`, `sequential` or `duplex`. See [what a simulated microsecond "
            "means](simulated-time.md#transfers)."
        ),
        "Critical path": "A longest path through the graph, in microseconds. No step is shorter.",
        "Earliest start": "When an op could begin on a device: its inputs are there and the device is free.",
        "Estimated, measured, simulated": (
            "An *estimated* duration comes from a roofline over FLOPs and bytes and a *measured* one from running the "
            "op (`bl.profile`). A *simulated* timeline comes from `bl.simulate`, a *measured* one from `bl.execute`."
        ),
        "Favourite child": "The successor that the SCT linear program wants to run right after an op, on the same device.",
        "Forward only": (
            "Only forward ops are placed, and every backward op goes where its forward op is; `auto` does so where "
            "the whole model would fit on one device."
        ),
        "Forward op": (
            "For a backward op, the op whose gradient it computes (`forward_of`). The pass `forward-only` places "
            "forward ops only; backward ops follow."
        ),
        "Fusion": (
            "A pass: neighbours of one co-placement or colocation group become one op where that makes no cycle (paper B, "
            "section 3.2)."
        ),
        "Gantt chart": "Devices as rows, time to the right, an op as a bar.",
        "Group": "Ops that move together: an op of a coarse graph stands for them.",
        "Kind": "Of a device: `gpu`, `cpu`, `v100`, ... A graph may have a duration per kind.",
        "Linear program (LP)": (
            "Of SCT: the schedule on endlessly many devices as linear inequalities, solved with shares of favourite "
            "children; what is rounded tells the favourites (paper B, section 2.4). `lp_ops` is the number of ops up "
            "to which it is tried."
        ),
        "Link": (
            "The linear cost of moving bytes from one device to another: `latency_us + us_per_byte * size_bytes`, and "
            "`overhead_us` of processor time per message."
        ),
        "List scheduling": (
            "Building a schedule from left to right: of the ready ops one is next, on one device, and stays there "
            "(Graham 1969)."
        ),
        "Makespan": "The time from the start of a step to the end of its last op; the step time.",
        "Micro-batch": "A part of a step's batch. Several flow through the devices one behind the other: `bl.unroll`.",
        "Native": (
            "The undivided step as its framework runs it, with the framework's own optimizer of graphs, on one device."
        ),
        "Offloading": (
            "Outputs, or state of the optimizer, wait in the memory of the host, and come back before they are read."
        ),
        "Op, operator": "A node of the graph: a matrix product, a convolution, an update of a variable.",
        "Optimum": "The shortest step that any placement and order have. Known only where it is proven: `exact`.",
        "Pass": "A function from a graph to a smaller or otherwise better one: `bl.optimize`.",
        "Peak": "The most bytes that a device holds at any moment of the step.",
        "Period": "Microseconds from one micro-batch to the next when they never end: `bl.throughput`.",
        "Persistent bytes": (
            "What an op keeps throughout the step, parameters above all. *Temporary* bytes live while it runs."
        ),
        "Placement": "A device for every op, and where the placer planned one, an order.",
        "Placer": (
            "An algorithm that makes placements: `bl.place`, `bl.list_placers`. One that *improves* goes on until a "
            "time limit."
        ),
        "Policy": "Probabilities of the next choice, which learning changes: `hierarchical`.",
        "Portfolio": "Several placers asked for the same graph, of whose answers the fastest that fits is taken: `auto`.",
        "Profile": "A graph with what each op costs; to make one.",
        "Rank": (
            "Of an op: the longest path from it to the end (*upward*), from the start to it (*downward*), or through "
            "it (*total*)."
        ),
        "Ratio": (
            "How many times the optimum a rule takes at most, proven for all graphs that meet its premises: "
            "`bl.ratios`."
        ),
        "Ready": "An op whose inputs are all on its device.",
        "Recomputation": (
            "Outputs of forward ops are dropped and computed again before the backward pass reads them: memory for "
            "time."
        ),
        "Repair": "Moving ops off devices whose memory a placement exceeds.",
        "Replica": (
            "A copy of a placement on devices of its own, with its share of the micro-batches; gradients are added up "
            "over a ring."
        ),
        "Reservation": (
            "A device keeps memory free for the whole of a colocation group once the group's first op is placed there."
        ),
        "Reward": "What a policy is told about a placement; in paper H minus the root of the step time.",
        "rho": "The longest transfer over the shortest op. The *SCT assumption* is that it is at most 1.",
        "Roofline": (
            "An estimate of an op's time: the larger of its FLOPs over the device's rate and its bytes over the "
            "device's bandwidth."
        ),
        "Samples per second": "The batch size over the step time.",
        "Schedule": (
            "The order in which devices work on micro-batches: `gpipe` all forward passes first, `1f1b` one forward "
            "one backward, `zb-h1` with the gradients of weights put into bubbles."
        ),
        "Scheduler": "How a device chooses among its ready ops: `fifo`, `planned`, `pct`, `msr`.",
        "Stage": (
            "What one device does for one micro-batch of a pipeline. Of the library: one of profile, optimize, place, "
            "simulate, execute."
        ),
        "Step": "One training step: forward pass, loss, gradients, update. `bl.Step` is a traced one.",
        "Strawman": "A rule that is kept simple to hold others against it.",
        "Tensor": "What one op produces and any number of ops read. A control dependency is a tensor of 4 bytes.",
        "Threshold": (
            "Of SCT: up to which share of a transfer the linear program's answer counts as no transfer, and the "
            "reader as favourite child."
        ),
        "Timeline": "What ran where and when, the transfers and the memory, of one step. ",
        "Transfer": "The sending of a tensor to another device. It may wait in the *queue* of a link that is taken.",
        "Undivided": "The whole step on one device.",
    }
)
"""Terms and what they mean, in Markdown, in the order of the page."""

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "awake": "Awake",
        "balance": "Balance",
        "bubbles?": "Bubble",
        "lower bounds?": "Bound, lower",
        "gap": "Bound, lower",
        "colocation": "Colocation group",
        "colocated": "Colocation group",
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
        "against one device": "Against one device",
        "optimum": "Optimum",
        "period": "Period",
        "repair": "Repair",
        "schedulers?": "Scheduler",
    }
)
"""What is marked in the texts of the workbench: a pattern of letters, and its term."""
_MARK = re.compile(r"(?<![\w/.-])(?:" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")(?![\w/-])", re.IGNORECASE)


def meaning(term: str) -> str:
    """What a term means, as plain text.

    >>> meaning("Bubble")
    'Idle time of a device between two of its ops; of a pipeline, the share of the step in which devices wait.'
    """
    linked = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", GLOSSARY[term])
    return re.sub(r"[`*]", "", linked)


def tip(word: str) -> str:
    """The meaning of a word as it is used in a text; empty of words that everybody knows.

    >>> tip("lower bound")[:40], tip("blue")
    ('A step time that no placement and no sch', '')
    """
    definition = next(
        (term for pattern, term in WORDS.items() if re.fullmatch(pattern, word.strip(), re.IGNORECASE)), None
    )
    return "" if definition is None else meaning(definition)


def explained(text: str) -> str:
    """A plain text as HTML in which the first use of every term says what it means.

    >>> explained("<the makespan>")
    '&lt;the <abbr title="The time from the start of a step to the end of its last op; the step time.">makespan</abbr>&gt;'
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
    """The page docs/glossary.md."""
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
