"""Train a placed step with TensorFlow and NumPy alone. Exported by baechi_lab; yours to change.

python train.py --steps 100              trains, printing what the step returns
python train.py --worker 10.0.0.2:2222   serves as one worker of a cluster (see README.md)
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

os.environ.setdefault("GRPC_FAIL_FAST", "true")  # or TensorFlow waits for ever for a worker that died
import tensorflow as tf

HERE = Path(__file__).resolve().parent
v1 = tf.compat.v1


def batches(plan: dict) -> Iterator[tuple]:
    """Yields one tuple of arrays per step, shaped as `plan["inputs"]` says, or longer by micro-batches (see `split_batch`)."""
    with np.load(HERE / "example_inputs.npz", allow_pickle=False) as stored:
        example = tuple(with_dtype(stored[f"input_{i}"], x["dtype"]) for i, x in enumerate(plan["inputs"]))
    # >>> PLUG IN YOUR INPUT ITERATOR HERE: replace the next line by your own source of batches <<<
    yield from itertools.repeat(example)


def split_batch(plan: dict, batch: tuple) -> list:
    """Returns the inputs of every micro-batch: an array is cut along the axis on which it is longer than the step's."""
    count, cuts = plan["micro_batches"], []
    for spec, value in zip(plan["inputs"], batch, strict=True):
        longer = [a for a, (want, have) in enumerate(zip(spec["shape"], np.shape(value), strict=True)) if want != have]
        cuts.append(np.split(value, count, longer[0]) if longer else [value] * count)
    return [cut[k] for k in range(count) for cut in cuts]


def with_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns an array as stored in a .npz, in its TensorFlow type (NumPy alone does not know bfloat16)."""
    return array.view(tf.dtypes.as_dtype(dtype).as_numpy_dtype) if array.dtype.kind == "V" else array


def devices(plan: dict) -> tuple[list[str], dict[str, int]]:
    """Returns the TensorFlow devices of this run: the cluster's, else GPUs if there are enough, else logical CPU devices."""
    if plan["workers"]:
        return plan["devices"], {}
    count = len(plan["devices"])
    kind = "GPU" if len(tf.config.list_physical_devices("GPU")) >= count else "CPU"
    return [f"/job:localhost/replica:0/task:0/device:{kind}:{i}" for i in range(count)], {kind: count}


def config(plan: dict, counts: dict[str, int]) -> tf.compat.v1.ConfigProto:
    """Returns a session configuration that leaves every op where the placement put it."""
    options = v1.ConfigProto(allow_soft_placement="GPU" in counts or any("GPU" in d for d in plan["devices"]))
    options.device_count["CPU"] = counts.get("CPU", 1)
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    options.graph_options.optimizer_options.opt_level = -1
    options.gpu_options.allow_growth = True
    if plan["workers"]:
        options.isolate_session_state = True
        job = options.cluster_def.job.add(name="worker")
        for task, address in enumerate(plan["workers"]):
            job.tasks[task] = address
    return options


def placed_graph(plan: dict, names: list[str]) -> tf.Graph:
    """Returns the step's graph, with this run's devices in place of the exported ones."""
    definition = v1.GraphDef.FromString((HERE / "placed_graph.pb").read_bytes())
    device_names = dict(zip(plan["devices"], names, strict=True))
    for node in definition.node:
        node.device = device_names.get(node.device, node.device)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    return graph


def train(plan: dict, steps: int) -> None:
    """Runs `steps` steps of the placed graph from the stored values, and prints what each returns."""
    names, counts = devices(plan)
    target = f"grpc://{plan['workers'][0]}" if plan["workers"] else ""
    with v1.Session(target, placed_graph(plan, names), config(plan, counts)) as session:
        with np.load(HERE / "initial_values.npz", allow_pickle=False) as stored:
            for first in range(0, len(plan["variables"]), 50):
                chunk = list(enumerate(plan["variables"]))[first : first + 50]
                values = {v["value"]: with_dtype(stored[f"variable_{i}"], v["dtype"]) for i, v in chunk}
                session.run([v["assign"] for _, v in chunk], values)
        step = session.make_callable([*plan["fetches"], *plan["targets"]], plan["feeds"])
        for number, batch in enumerate(itertools.islice(batches(plan), steps)):
            start = time.perf_counter()
            outputs = step(*split_batch(plan, batch))[: len(plan["fetches"])]
            numbers = (x for x in outputs if np.ndim(x) == 0 and np.asarray(x).dtype.kind not in "cOSU")  # no texts
            text = " ".join(f"{float(x):.9g}" for x in numbers)
            print(f"step {number} {time.perf_counter() - start:.6f} s {text}", flush=True)
        save(plan, session)


def save(plan: dict, session: tf.compat.v1.Session) -> None:
    """Writes the trained variables; the same keys as in initial_values.npz."""
    values = session.run([v["read"] for v in plan["variables"]])
    np.savez(HERE / "trained_values.partial.npz", **{f"variable_{i}": value for i, value in enumerate(values)})
    os.replace(HERE / "trained_values.partial.npz", HERE / "trained_values.npz")


def main() -> None:
    """Trains, or serves as one worker of the cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps to run")
    parser.add_argument("--worker", metavar="HOST:PORT", help="serve as a worker of the cluster instead of training")
    parser.add_argument("--secret", metavar="FILE", help="the file that all machines of the cluster have (README.md)")
    parser.add_argument("--trusted-network", action="store_true", help="let everyone on the network run code as you")
    parser.add_argument("--trusted-users", action="store_true", help="let all users of this machine run code as you")
    arguments = parser.parse_args()
    plan = json.loads((HERE / "placement.json").read_text())
    if not plan["workers"] and (arguments.worker or arguments.secret or arguments.trusted_network):
        parser.error(
            "this step was exported for the devices of one machine, without workers; run it with --steps alone"
        )
    sys.path.append(str(HERE))  # not there under `python -I`
    if arguments.secret and not arguments.worker:
        from tunnel import go_through

        go_through(arguments.secret)
    if arguments.worker:
        from worker import serve

        threads = 2 if plan["schedule"] else 1  # the second one sends
        serve(arguments.worker, arguments.trusted_network, arguments.secret, threads, arguments.trusted_users)
    elif plan["workers"]:
        from watch import watch_workers

        with watch_workers(plan["workers"], arguments.secret):
            train(plan, arguments.steps)
    else:
        train(plan, arguments.steps)


if __name__ == "__main__":
    main()
