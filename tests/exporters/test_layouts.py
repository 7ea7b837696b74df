"""Layouts written for programs that train: values by hand, files that other readers take, a script that trains alike."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import baechi_lab as bl
from baechi_lab.exporters.layouts import LAYOUT_FORMATS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 64}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def written(layout, format, model=LLAMA, **options):
    return bl.write_layout(layout, format, model=model, **{"global_batch": 16, "sequence_length": 32} | options)


def test_megatron_arguments_say_the_layout():
    layout = bl.Layout(tp=2, pp=2, dp=4, zero=1, micro_batch=2, sequence_parallel=True, recompute="full")
    plan = written(layout, "megatron")
    assert plan.value["--num-query-groups"] == 2 and plan.value["--num-layers"] == 4
    assert plan.value["--tensor-model-parallel-size"] == plan.value["--pipeline-model-parallel-size"] == 2
    for switch in ("--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--bf16"):
        assert switch in plan.text.split()
    assert "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" in plan.text
    assert plan.unsupported == ()
    uneven = written(bl.Layout(pp=2, stage_layers=(3, 1), schedule="gpipe"), "megatron")
    assert uneven.value["--pipeline-model-parallel-layout"] == "Et*3|tL"
    assert "--pipeline-model-parallel-layout 'Et*3|tL'" in uneven.text  # a shell reads it as it is
    assert uneven.unsupported == ("Megatron has no schedule gpipe; these arguments run 1f1b",)
    experts = written(bl.Layout(dp=4, ep=4), "megatron", MIXTRAL).value
    assert (experts["--num-experts"], experts["--expert-model-parallel-size"], experts["--moe-router-topk"]) == (
        8,
        4,
        2,
    )
    assert (experts["--hidden-dropout"], experts["--norm-epsilon"]) == (0.0, 1e-6)
    dropped = written(bl.Layout(), "megatron", GPT2 | {"resid_pdrop": 0.2, "activation_function": "relu"})
    assert (dropped.value["--hidden-dropout"], dropped.value["--attention-dropout"]) == (0.2, 0.0)
    assert dropped.unsupported == ("activation_function is relu; these arguments train with gelu",)
    sharded = written(bl.Layout(dp=4, zero=3), "megatron").value
    assert sharded["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert sharded["--ckpt-format"] == "fsdp_dtensor"  # Megatron's FSDP starts with no other
    assert "--overlap-grad-reduce" in written(bl.Layout(dp=4), "megatron").value


def test_megatron_arguments_of_windows_and_positions():
    """A window of 8 tokens is 7 before the own one; of four layers, every second attends to the whole sequence."""
    gemma = LLAMA | {"model_type": "gemma2", "sliding_window": 8, "rope_theta": 1e6}
    plan = written(bl.Layout(dp=4), "megatron", gemma)
    assert (plan.value["--window-size"], plan.value["--window-attn-skip-freq"]) == ("7,0", 2)
    assert plan.value["--rotary-base"] == 1_000_000
    (sentence,) = plan.unsupported
    assert sentence.startswith("gemma2 models may have norms, biases, residual paths or routers")
    mpt = {"model_type": "mpt", "d_model": 32, "n_layers": 4, "n_heads": 4, "vocab_size": 256}
    plan = written(bl.Layout(dp=4), "megatron", mpt)
    assert plan.value["--position-embedding-type"] == "none"
    assert plan.unsupported == ("Megatron has no ALiBi; these arguments train without positions",)
    scaled = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 32.0}}
    plan = written(bl.Layout(dp=4), "megatron", LLAMA | scaled)
    assert (plan.value["--rotary-base"], plan.value["--rope-scaling-factor"], plan.unsupported) == (500_000, 32.0, ())
    assert "--use-rope-scaling --rope-scaling-factor 32.0" in plan.text
    longer = LLAMA | {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}}
    plan = written(bl.Layout(dp=4), "megatron", longer)
    assert "--add-qkv-bias" in plan.value and "does not scale rotary positions" in plan.unsupported[0]


@pytest.mark.parametrize("format", ["megatron", "torchtitan", "torchrun"])
def test_stages_are_those_that_were_simulated(format):
    """Of six layers in four stages, the two in the middle have two: the first has the embedding, the last the head."""
    pytest.importorskip("transformers")
    plan = written(bl.Layout(pp=4, micro_batch=2), format, LLAMA | {"num_hidden_layers": 6})
    counts = {
        "megatron": lambda: [s.strip("EL") for s in plan.value["--pipeline-model-parallel-layout"].split("|")],
        "torchtitan": lambda: [
            sum(name.startswith("layers") for name in stage)
            for stage in plan.value["parallelism"]["module_fqns_per_model_part"]
        ],
        "torchrun": lambda: plan.value["stage_layers"],
    }[format]()
    assert counts == (["t", "t*2", "t*2", "t"] if format == "megatron" else [1, 2, 2, 1])


def test_the_torchtitan_file_says_the_layout():
    tomllib = pytest.importorskip("tomllib")
    plan = written(bl.Layout(tp=2, pp=2, dp=4, zero=1, stage_layers=(3, 1)), "torchtitan")
    assert tomllib.loads(plan.text) == plan.value
    parallelism = plan.value["parallelism"]
    assert parallelism["data_parallel_shard_degree"] == 4 and parallelism["data_parallel_replicate_degree"] == 1
    assert parallelism["module_fqns_per_model_part"][1] == ["layers.3", "norm", "output"]
    assert plan.value["training"]["local_batch_size"] == 16 // 4
    assert any("ZeRO-1" in sentence for sentence in plan.unsupported)
    assert any("'gpt2'" in sentence for sentence in written(bl.Layout(), "torchtitan", GPT2).unsupported)
    # Undivided copies run only where nothing else is divided.
    copies = written(bl.Layout(dp=4), "torchtitan").value["parallelism"]
    assert (copies["data_parallel_replicate_degree"], copies["data_parallel_shard_degree"]) == (4, 1)
    plan = written(bl.Layout(tp=2, dp=4), "torchtitan")
    assert plan.value["parallelism"]["data_parallel_shard_degree"] == 4
    assert any("torchtitan has no ZeRO-0 there" in sentence for sentence in plan.unsupported)
    experts = written(bl.Layout(dp=4, ep=4), "torchtitan", MIXTRAL).value["parallelism"]
    assert (
        experts["data_parallel_shard_degree"] * experts["context_parallel_degree"] % experts["expert_parallel_degree"]
        == 0
    )
    assert any("trains in float32" in sentence for sentence in written(bl.Layout(tp=2), "torchtitan").unsupported)


def test_the_deepspeed_file_says_the_layout():
    plan = written(bl.Layout(dp=4, zero=2, micro_batch=2), "deepspeed")
    assert json.loads(plan.text) == plan.value
    assert plan.value["train_batch_size"] == 16 and plan.value["train_micro_batch_size_per_gpu"] == 2
    assert plan.value["gradient_accumulation_steps"] == 16 // (4 * 2)
    assert plan.value["zero_optimization"]["stage"] == 2 and plan.unsupported == ()
    # DeepSpeed 0.19.8 requires train_batch_size = micro-batch * accumulation * all processes, whatever they share.
    divided = written(bl.Layout(tp=2, dp=4, micro_batch=2), "deepspeed").value
    assert "train_batch_size" not in divided and divided["gradient_accumulation_steps"] == 2
    experts = written(bl.Layout(dp=4, ep=4, zero=1), "deepspeed", MIXTRAL)
    assert experts.value["expert_parallel"] == {"enabled": True, "autoep_size": 4} and experts.unsupported == ()
    assert any("num_stages=2" in sentence for sentence in written(bl.Layout(pp=2), "deepspeed").unsupported)


def test_the_accelerate_file_says_the_layout():
    plan = written(bl.Layout(tp=2, dp=8, zero=3), "accelerate")
    assert yaml.safe_load(plan.text) == plan.value
    assert plan.value["num_processes"] == 16 and plan.value["num_machines"] == 2
    sizes = plan.value["parallelism_config"]
    assert sizes["parallelism_config_dp_shard_size"] == 8 and sizes["parallelism_config_tp_size"] == 2
    assert plan.value["fsdp_config"]["fsdp_reshard_after_forward"] is True
    # 16 sequences of 8 copies; no key of the file says so.
    assert "GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)" in plan.unsupported[-1]
    assert any("--main_process_ip" in sentence for sentence in plan.unsupported)  # two machines
    known_keys = {
        "compute_environment",
        "distributed_type",
        "mixed_precision",
        "machine_rank",
        "num_machines",
        "num_processes",
    }
    assert set(plan.value) == known_keys | {"fsdp_config", "parallelism_config"}  # accelerate refuses other keys
    undivided = written(bl.Layout(tp=2, dp=2), "accelerate")
    assert any("gather the logits on every rank" in sentence for sentence in undivided.unsupported)
    assert undivided.value["parallelism_config"]["parallelism_config_dp_shard_size"] == 2
    assert undivided.unsupported[0].startswith("FSDP 2 has no ZeRO-0")
    assert "gradient_accumulation_steps=8 to the Accelerator" in undivided.unsupported[-1]
    for layout, kind in ((bl.Layout(dp=4), "MULTI_GPU"), (bl.Layout(), "NO")):  # FSDP needs an axis to divide along
        value = written(layout, "accelerate").value
        assert value["distributed_type"] == kind and set(value) == known_keys
    assert set(written(bl.Layout(tp=2), "accelerate").value) == known_keys | {"parallelism_config"}


def test_gradients_are_reduced_in_the_number_format_that_was_simulated():
    copies, sharded = bl.Layout(dp=4, zero=1), bl.Layout(dp=4, zero=3)
    halves = {"reduce_precision": "half"}
    assert written(sharded, "megatron").value["--megatron-fsdp-grad-comm-dtype"] == "fp32"
    assert written(sharded, "megatron", **halves).value["--megatron-fsdp-grad-comm-dtype"] == "bf16"
    assert "--grad-reduce-in-bf16" in written(copies, "megatron", **halves).value
    assert written(sharded, "deepspeed").value["communication_data_type"] == "fp32"
    assert written(sharded, "deepspeed", **halves).value["communication_data_type"] == "bf16"
    for format, options in (("accelerate", {}), ("torchtitan", halves)):  # each has one number format for FSDP
        other = {} if options else halves
        assert any("reduces gradients in" in text for text in written(sharded, format, **options).unsupported)
        assert not any("reduces gradients in" in text for text in written(sharded, format, **other).unsupported)
    with pytest.raises(bl.InvalidInput, match="reduce_precision is 'half' and precision is 'float32'"):
        written(sharded, "megatron", precision="float32", **halves)
    with pytest.raises(bl.InvalidInput, match="reduce_precision is 'bf16'"):
        written(sharded, "megatron", reduce_precision="bf16")


def test_programs_that_do_not_pad_the_vocabulary_say_so():
    """The simulated vocabulary is a multiple of 128 per device with tensor parallelism, and not padded without it."""
    model = LLAMA | {"vocab_size": 250}
    for format in ("accelerate", "deepspeed", "torchtitan"):
        assert not any("vocab" in text for text in written(bl.Layout(dp=2), format, model).unsupported)
        sentences = written(bl.Layout(tp=2), format, model).unsupported
        assert any("the vocabulary of 250 is divided unevenly, which is slower than the 256" in s for s in sentences)
    assert not any("vocab" in text for text in written(bl.Layout(tp=2), "megatron", model).unsupported)
    assert any(
        "Megatron pads the vocabulary" in text for text in written(bl.Layout(dp=2), "megatron", model).unsupported
    )


@pytest.mark.parametrize("format", ["accelerate", "megatron", "torchtitan"])
def test_an_early_and_a_late_piece_of_the_sequence_are_equally_long(format):
    sentences = written(bl.Layout(cp=2), format, sequence_length=30).unsupported
    assert "sequence_length is 30; it must be a multiple of 4 there" in sentences
    assert not any("sequence_length" in text for text in written(bl.Layout(cp=2), format).unsupported)


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        (bl.Layout(dp=3), {}, r"dp \* micro_batch is 3 \* 1; it must divide global_batch, which is 16"),
        (bl.Layout(tp=8), {}, "tp is 8; it must divide the model's heads, which is 4"),
        (bl.Layout(dp=2, ep=2), {}, "ep is 2 and the model has no experts"),
        (bl.Layout(cp=3), {}, "cp is 3; it must divide sequence_length, which is 32"),
        (bl.Layout(pp=8), {}, "pp is 8; the schedule .1f1b. makes 8 stages of 4 layers"),
        (bl.Layout(pp=2, stage_layers=(1, 1)), {}, "stage_layers is .1, 1.; they must add up to the model.s 4 layers"),
        (bl.Layout(dp=4), {"per_machine": 3}, "the layout has 4 devices; above one machine"),
        (bl.Layout(), {"global_batch": 0}, "global_batch is 0"),
        (bl.Layout(), {"precision": "fp8"}, "precision is 'fp8'"),
        (5, {}, "layout is int; it must be a bl.Layout"),
    ],
)
@pytest.mark.parametrize("format", ["megatron", "torchrun"])
def test_what_the_model_cannot_be_divided_by(layout, options, message, format):
    with pytest.raises(bl.BaechiLabError, match=message):
        written(layout, format, **options)


def test_a_configuration_that_cannot_be_read(tmp_path):
    with pytest.raises(bl.FormatError, match=r"no such file; name the config\.json"):
        written(bl.Layout(), "megatron", tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(bl.FormatError, match="not JSON"):
        written(bl.Layout(), "megatron", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert written(bl.Layout(), "megatron", tmp_path).value["--num-layers"] == 4


def test_unknown_formats_are_rejected():
    with pytest.raises(bl.UnknownNameError, match="did you mean 'megatron'"):
        written(bl.Layout(), "megatorn")
    assert {written(bl.Layout(), format).format for format in LAYOUT_FORMATS if format != "torchrun"} <= set(
        LAYOUT_FORMATS
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("layout", "model", "message"),
    [
        (bl.Layout(cp=2), LLAMA, "cp is 2; the script runs layouts with cp 1"),
        (
            bl.Layout(pp=2, schedule="zb-h1"),
            LLAMA,
            "schedule is 'zb-h1'; the script runs gpipe, 1f1b, interleaved-1f1b",
        ),
        (bl.Layout(pp=2), LLAMA | {"model_type": "granite"}, "pp is 2; the script divides only these models"),
        (bl.Layout(tp=2), GPT2, "tp is 2; transformers has no tensor-parallel plan for 'gpt2'"),
        (bl.Layout(tp=2), MIXTRAL, r"tp is 2; the script cannot divide model\.layers\.\*\.mlp\.experts"),
        (bl.Layout(tp=4), LLAMA, "tp is 4; it must divide the model's kv_heads, which is 2"),
        (bl.Layout(recompute="selective"), LLAMA, "recompute is 'selective'"),
        (bl.Layout(), LLAMA | {"model_type": "vit"}, "model_type is 'vit', which has no causal language model"),
        (bl.Layout(), LLAMA | {"model_type": "lama"}, "model_type is 'lama'"),
    ],
)
@pytest.mark.filterwarnings("ignore:model_type .* is not among those whose sizes were checked")
def test_what_the_script_does_not_run(layout, model, message):
    with pytest.raises(bl.BaechiLabError, match=message):
        written(layout, "torchrun", model)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "qwen3", "olmo", "phi"])
def test_stages_compute_what_the_model_computes(kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from baechi_lab.exporters.layouts import train

    fields = GPT2 if kind == "gpt2" else LLAMA | {"model_type": kind, "head_dim": 8}
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tokens = torch.randint(3, 64, (2, 16))
    expected = copy.deepcopy(model)(input_ids=tokens, use_cache=False).logits
    first = train.StageModel(copy.deepcopy(model), range(3), first=True, last=False)
    last = train.StageModel(copy.deepcopy(model), range(3, 4), first=False, last=True)
    assert torch.allclose(last(first(tokens)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
def test_the_script_exchanges_what_is_simulated(tmp_path, monkeypatch):
    """Four micro-batches of four layers and the rest: ZeRO-1 reduces and gathers once a step, ZeRO-2 once a micro-batch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    from baechi_lab.exporters.layouts import train

    class Exchanges(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.outputs = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                self.outputs.setdefault(func.__name__.split(".")[0], []).append(args[0].dtype)
            return func(*args, **kwargs or {})

    monkeypatch.setattr(train, "FOLDER", tmp_path / "training")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        for zero, reductions, gatherings in ((1, 1, 1), (2, 4, 4), (3, 4, 8)):
            precision = "float32" if zero < 3 else "half"
            layout = bl.Layout(dp=2, zero=zero)
            plan = written(layout, "torchrun", global_batch=8, folder=train.FOLDER, reduce_precision=precision)
            trainer = train.Trainer(plan.value, torch.device("cpu"))
            with Exchanges() as exchanges:
                trainer.backward(train.batch(plan.value, 0))
            reduced = [torch.float32 if zero < 3 else torch.bfloat16] * (reductions * 5)
            assert exchanges.outputs == {
                "_reduce_scatter_base_": reduced,
                "_allgather_base_": [torch.bfloat16] * (gatherings * 5),
            }
            assert plan.unsupported == ()
            shutil.rmtree(train.FOLDER)
    finally:
        torch.distributed.destroy_process_group()


CHECK = """
import json, pathlib, torch, torch.distributed as dist, train
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
layout = json.loads(pathlib.Path("layout.json").read_text())
dist.init_process_group("gloo", **GROUP)
trainer = train.Trainer(layout, torch.device("cpu"))
torch.manual_seed(layout["seed"])
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("."), dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=layout["learning_rate"])
gradients = 0
for step in range(2):
    tokens = train.batch(layout, step)
    optimizer.zero_grad()
    loss = train.next_token_loss(model(input_ids=tokens, use_cache=False).logits, tokens)
    loss.backward()
    trainer.optimizer.zero_grad()
    of_copy = trainer.backward(tokens)
    own = torch.tensor([of_copy if trainer.last else 0.0])
    dist.all_reduce(own)
    assert abs(float(own) / (layout["tp"] * layout["dp"]) - float(loss.detach())) < 1e-5
    table = trainer.modules[0].model.get_input_embeddings()
    if trainer.first and not layout["tied"]:
        assert train.local(table.weight).numel() <= model.get_input_embeddings().weight.numel() / layout["tp"]
    expected = dict(model.named_parameters(remove_duplicate=False))
    for module in trainer.modules:
        for name, parameter in module.model.named_parameters():
            gradient = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            worst = float((gradient - expected[name].grad).abs().max() / expected[name].grad.abs().max())
            assert worst < 1e-3, (name, worst)
            gradients += 1
    optimizer.step()
    trainer.optimizer.step()
dist.barrier()
if dist.get_rank() == 0:
    print("compared", gradients)
dist.destroy_process_group()
"""

FORKED = """
import gc, os, sys, runpy
gc.disable()
from pathlib import Path
import torch, train, transformers
transformers.Qwen3ForCausalLM, transformers.GPT2LMHeadModel

for folder, size in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    os.chdir(folder)
    train.FOLDER = Path(folder)
    ranks = set()
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
            group = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": size}
            runpy.run_path("check.py", init_globals={"GROUP": group})
            sys.stdout.flush()
            os._exit(0)
        ranks.add(pid)
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status:
            for other in ranks:
                os.kill(other, 9)
            sys.exit(f"a rank in {folder} ended with status {status}")
"""
"""As torchrun starts them, but PyTorch and transformers are imported once: ten imports take 50 seconds of a processor."""

TRAINED_LAYOUTS = [
    # The first stage has the embedding, and 9 parameters and the norms of queries and keys of each of its two layers; two
    # steps. Each tensor-parallel rank has the gradients of these norms for its own heads only.
    (bl.Layout(tp=2, pp=2, dp=2, zero=1), LLAMA | {"model_type": "qwen3", "head_dim": 8}, 2 * (1 + 2 * 11)),
    # Tied: both ends hold the embedding. Two layers on each device, in two stages; 12 parameters of a layer.
    (bl.Layout(pp=2, schedule="interleaved-1f1b"), GPT2, 2 * (2 + 2 * 12)),
]
"""Layout, model, and how many gradients rank 0 compares."""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.subprocess
def test_the_scripts_train_as_the_undivided_models_do(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folders_and_sizes, scripts = [], set()
    for k, (layout, model, _) in enumerate(TRAINED_LAYOUTS):
        folder = tmp_path / f"training{k}"
        written(layout, "torchrun", model, global_batch=8, precision="float32", folder=folder)
        command = f"    torchrun --nproc-per-node {layout.devices} train.py"
        assert Path(folder, "README.md").read_text().startswith(command)
        Path(folder, "check.py").write_text(CHECK)
        scripts.add(Path(folder, "train.py").read_text())
        folders_and_sizes += [str(folder), str(layout.devices)]
    assert len(scripts) == 1  # so that one import of it serves all
    Path(folders_and_sizes[0], "forked.py").write_text(FORKED)
    command = [sys.executable, "forked.py", *folders_and_sizes]
    ended = subprocess.run(command, cwd=folders_and_sizes[0], capture_output=True, text=True, timeout=250)
    assert ended.stdout.splitlines() == [f"compared {count}" for _, _, count in TRAINED_LAYOUTS], ended.stderr[-3000:]


def test_products_in_pieces_are_written_where_the_program_has_them():
    layout = bl.Layout(tp=2, dp=2, zero=2, sequence_parallel=True)
    assert "--tp-comm-overlap" in written(layout, "megatron", overlap_products=True).value
    plan = written(layout, "torchtitan", overlap_products=True)
    assert plan.value["parallelism"]["enable_async_tensor_parallel"] and plan.value["compile"]["enable"]
    for format in ("accelerate", "deepspeed", "torchrun"):
        sentences = written(layout, format, overlap_products=True).unsupported
        assert sum("products in pieces" in sentence for sentence in sentences) == 1
    # Without sequence parallelism there are no such collectives.
    whole_norms = bl.Layout(tp=2, dp=2, zero=2)
    for format in LAYOUT_FORMATS:
        assert written(whole_norms, format, overlap_products=True) == written(whole_norms, format)
