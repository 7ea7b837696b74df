"""Run a traced Step from its GraphDef and initial values alone, as an executor does."""

from __future__ import annotations

import numpy as np


def run_step(step, steps=5, inputs=None):
    """The outputs of `steps` steps, float64[steps, outputs], and the variables' values afterwards by name."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        tf1.import_graph_def(tf1.GraphDef.FromString(step.graph_def), name="")
        set_ops, reads, feed = [], {}, {}
        for spec, value in zip(step.variables, step.initial_values, strict=True):
            handle = graph.get_tensor_by_name(spec.name + ":0")
            fed = tf1.placeholder(spec.dtype, spec.shape)
            feed[fed] = value
            set_ops.append(tf.raw_ops.AssignVariableOp(resource=handle, value=fed))
            reads[spec.name] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    values = {s.name: v for s, v in zip(step.inputs, inputs or step.example_inputs, strict=True)}
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # rewriting takes longer than these steps
    with tf1.Session(graph=graph, config=config) as session:
        session.run(set_ops, feed)
        fetches = [[s.name for s in step.outputs], list(step.updates)]
        outputs = [[float(np.sum(x)) for x in session.run(fetches, values)[0]] for _ in range(steps)]
        return np.array(outputs), session.run(reads)


def nodes_of(step):
    """NodeDefs of the step by name."""
    import tensorflow as tf

    return {n.name: n for n in tf.compat.v1.GraphDef.FromString(step.graph_def).node}


def eager_losses(model, data, steps=5):
    """The loss of each batch, from Keras's own training loop, op by op: tracing a large model takes longer than three steps."""
    model.run_eagerly = True
    losses = []
    for _ in range(steps):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*data)))
    return losses
