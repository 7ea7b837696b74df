"""Measure what transfers between the devices of a cluster cost: one link per ordered pair, and the communication mode.

Without --servers, starts --workers single-threaded TensorFlow workers on this machine, and also measures how
much time of the devices' own processors a message takes. -o writes the cluster, for --cluster of the other commands.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import InvalidInput
from ..graph import Cluster, Device, save_cluster
from ..graph.device import short_device
from ..graph.units import parse_bytes
from . import console, options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--workers", default="2", metavar="N", help="workers of this machine, one core each (2)")
    parser.add_argument(
        "--servers",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="running workers to measure instead, as `baechi-lab worker` prints them",
    )
    parser.add_argument("--secret", metavar="FILE", help="file with which the --servers were started")
    parser.add_argument("--memory", metavar="SIZE", help="memory to write for each device (a share of this machine)")
    parser.add_argument(
        "--trusted-users",
        action="store_true",
        help="let all users of this machine run code as you, if the system cannot keep them out (without --servers)",
    )
    parser.add_argument("--repeats", default="11", metavar="N", help="timed transfers per size (11)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the cluster (.json, .json.gz)")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, writes."""
    from ..executors import LocalCluster, measure_cluster

    options.check_output(arguments.output, (".json", ".json.gz"))
    options_of_measurement: dict[str, Any] = {
        "repeats": options.whole_number(arguments.repeats, "--repeats", lowest=1),
        "progress": console.shows_progress(),
    }
    memory = None if arguments.memory is None else parse_bytes(arguments.memory, "--memory")
    if arguments.servers is not None:
        servers = options.names(arguments.servers, "--servers")
        if len(servers) < 2:
            raise InvalidInput(
                f"--servers is {arguments.servers!r}; it must name at least 2 workers, as HOST:PORT,HOST:PORT"
            )
        from ..executors.tensorflow.devices import cpu_memory

        device_bytes = cpu_memory() if memory is None else memory
        first_devices = [Device(f"/job:worker/task:{i}/device:CPU:0", "cpu", device_bytes) for i in range(len(servers))]
        measured_cluster = measure_cluster(
            Cluster(tuple(first_devices)), workers=servers, secret=arguments.secret, **options_of_measurement
        )
    elif arguments.secret is not None:
        raise InvalidInput("--secret is given without --servers; workers of this machine ask for none")
    else:
        count = options.whole_number(arguments.workers, "--workers", lowest=2)
        with LocalCluster(count, memory_bytes=memory, trusted_users=arguments.trusted_users) as local:
            measured_cluster = measure_cluster(local, **options_of_measurement)
    if arguments.output:
        save_cluster(measured_cluster, arguments.output)
    pairs = [(a, b) for a in range(measured_cluster.n) for b in range(measured_cluster.n) if a != b]
    links = {pair: measured_cluster.link_between(*pair) for pair in pairs}
    if arguments.json:
        rows = [
            {
                "source": measured_cluster.names[a],
                "target": measured_cluster.names[b],
                "latency_us": link.latency_us,
                "us_per_byte": link.us_per_byte,
                "overhead_us": link.overhead_us,
            }
            for (a, b), link in links.items()
        ]
        output.print_json({"comm": measured_cluster.comm, "links": rows, "file": arguments.output})
    else:
        output.print_rows(
            ["from", "to", "latency us", "us per byte", "overhead us"],
            [
                [
                    short_device(measured_cluster.names[a]),
                    short_device(measured_cluster.names[b]),
                    f"{link.latency_us:.1f}",
                    f"{link.us_per_byte:.3g}",
                    f"{link.overhead_us:.1f}",
                ]
                for (a, b), link in links.items()
            ],
        )
        output.print_facts({"mode": measured_cluster.comm})
    return 0
