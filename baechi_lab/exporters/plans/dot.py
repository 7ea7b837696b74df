"""Graphviz: the graph with one box of ops per device, sizes on the edges."""

from __future__ import annotations

from .records import Request, Written


def write(request: Request) -> Written:
    """Returns a digraph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
    graph = request.graph
    lines = [f"digraph {_quote(graph.name or 'graph')} {{", "  node [shape=box];"]
    for d in sorted(set(request.device.tolist())):
        lines.append(f"  subgraph cluster_{d} {{")
        lines.append(f"    label={_quote('device ' + request.device_name(d))};")
        for i in (request.device == d).nonzero()[0]:
            lines.append(f"    n{i} [label={_quote(graph.names[i], f'{graph.duration_us[i]:g} us')}];")
        lines.append("  }")
    for source, tensor, target in zip(graph.edge_source, graph.edge_tensor, graph.consumers, strict=True):
        crosses = ", color=red" if request.device[source] != request.device[target] else ""
        lines.append(f'  n{source} -> n{target} [label="{graph.tensor_bytes[tensor]} B"{crosses}];')
    text = "\n".join([*lines, "}"]) + "\n"
    return Written(text, text, request.device)


def _quote(*lines: str) -> str:
    """Returns a DOT string; its only escapes are those of quotes, backslashes and line ends."""
    clean = [s.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for s in lines]
    return '"' + "\\n".join(clean) + '"'
