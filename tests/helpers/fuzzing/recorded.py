"""Small traces and programs of every kind, to be damaged."""

import io
import json
import zipfile

from onnx import TensorProto, helper

import baechi_lab as bl
from baechi_lab.graph.formats.traces import run_metadata, xplane
from baechi_lab.graph.formats.traces.protobuf import messages

from . import mutations


def traces():
    """Name of a file -> bytes: a small trace or program of each kind."""

    rich = mutations.graphs()[0]
    plan = bl.write_plan(rich, bl.Placement(device=[0, 1, 0, 1, 0]), "chakra", cluster=bl.Cluster.uniform(2))

    def happening(cat, name, ts, dur, **args):
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": ts,
            "dur": dur,
            "tid": 1,
            "args": args,
        }

    def op(k, ts):
        return happening(
            "cpu_op", "aten::mm", ts, 5, **{"Record function id": k, "Input Dims": [[2, 3]], "Input type": ["float"]}
        )

    runtime_rows = [
        happening("cuda_runtime", name, ts, 1, correlation=k)
        for k, (name, ts) in enumerate((("cudaLaunchKernel", 1), ("cudaDeviceSynchronize", 7)))
    ]
    kernel = happening("kernel", "gemm", 3, 8, device=0, stream=7, correlation=0)
    kineto = {"schemaVersion": 1, "traceEvents": [op(1, 0), op(2, 6), *runtime_rows, kernel]}

    def stats(k):
        return {
            "node_name": f"n{k}",
            "all_start_nanos": 1000 * k,
            "op_end_rel_nanos": 900,
            "timeline_label": f"n{k} = Relu(n{k - 1})",
        }

    step = messages(run_metadata.SCHEMA)["RunMetadata"](
        step_stats={"dev_stats": [{"device": "/job:a/device:CPU:0", "node_stats": [stats(1), stats(2)]}]}
    )
    names = [{"key": k, "value": {"id": k, "name": name}} for k, name in enumerate(("a:MatMul", "b:Relu"))]
    lines = [
        {
            "name": "t",
            "timestamp_ns": 5,
            "events": [{"metadata_id": k, "offset_ps": 10**6 * k, "duration_ps": 10**5} for k in (0, 1)],
        }
    ]
    space = messages(xplane.SCHEMA)["XSpace"](planes=[{"name": "/host:CPU", "lines": lines, "event_metadata": names}])
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"), helper.make_node("Relu", ["h"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:], [weight]))
    text = 'step_stats { dev_stats { device: "/device:CPU:0" node_stats { node_name: "a" op_end_rel_micros: 3 } } }'
    return {
        "pair.json": json.dumps(execution_trace()).encode(),
        "t.et": plan.files[".0.et"],
        "t.json": json.dumps(kineto).encode(),
        "chakra.json": plan.text.split('{"rank": 1')[0].encode(),
        "t.pb": step.SerializeToString(),
        "t.pbtxt": text.encode(),
        "t.xplane.pb": space.SerializeToString(),
        "t.onnx": model.SerializeToString(),
        "t.pt2": exported(),
    }


def execution_trace():
    """The tensors of the two products of the Kineto trace: the second one reads what the first one made."""

    def node(k, reads, makes):
        tensors = lambda storages: [[10 + s, s, 0, 6, 4, "cpu"] for s in storages]  # noqa: E731
        schema = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
        attrs = [{"name": "rf_id", "value": k}, {"name": "op_schema", "value": schema}]
        values = {"inputs": {"values": tensors(reads)}, "outputs": {"values": tensors(makes)}}
        return {"id": k, "name": "aten::mm", "attrs": attrs, **values}

    return {"schema": "1.1.1-chakra.0.0.4", "nodes": [node(1, (1, 2), (3,)), node(2, (3, 2), (4,))]}


CONFIGS = [
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "hidden_act": "silu",
    },
    {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": 0.1,
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
    },
    {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "id2label": {"0": "a", "1": "b"},
    },
]
"""Small Hugging Face models by configuration."""
LAYOUT_CONFIGS = [
    *(config for config in CONFIGS if config["model_type"] != "vit"),
    {
        "model_type": "deepseek_v3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "vocab_size": 100,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 100,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    {
        "model_type": "glm4_moe_lite",
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 16,
        "vocab_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "q_lora_rank": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
]
"""Small transformers by configuration: with latent attention, windows, and layers with and without experts."""


def exported():
    """A program of torch.export: an archive with its JSON alone."""
    tensor = lambda n: {"as_tensor": {"name": n}}  # noqa: E731
    value = {"dtype": 7, "sizes": [{"as_int": 4}, {"as_int": 4}], "requires_grad": True}
    node = {
        "target": "torch.ops.aten.mm.default",
        "inputs": [{"name": "self", "arg": tensor("x")}, {"name": "mat2", "arg": tensor("w")}],
        "outputs": [tensor("y")],
        "metadata": {"nn_module_stack": "L__self__,head,torch.nn.Linear"},
    }
    graph = {
        "inputs": [tensor("x"), tensor("w")],
        "outputs": [tensor("y")],
        "nodes": [node],
        "tensor_values": dict.fromkeys("xwy", value),
    }
    signature = {
        "input_specs": [
            {"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}},
            {"user_input": {"arg": tensor("x")}},
        ]
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        document = {
            "graph_module": {"graph": graph, "signature": signature},
            "schema_version": {"major": 8, "minor": 2},
        }
        archive.writestr("a/models/model.json", json.dumps(document))
    return buffer.getvalue()


def mutated_pt2(data, rng):
    """An archive whose JSON is changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w") as mutated:
        for name in archive.namelist():
            mutated.writestr(name, mutations.mutated_json(json.loads(archive.read(name)), rng))
    return buffer.getvalue()
