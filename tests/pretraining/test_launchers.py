"""Pre-training as torchrun and accelerate start it, on one node and two, and with FSDP's shards."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from modeling_condenser import CondenserForPreTraining

_TORCHRUN = "-m torch.distributed.run --master-port PORT"
# accelerate starts several processes by --multi_gpu only; the recipe keeps them on the CPU.
LAUNCHERS = {
    "torchrun": [f"{_TORCHRUN} --nproc-per-node 2"],
    "accelerate": [
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no --main_process_port PORT"
    ],
    "two nodes": [
        f"{_TORCHRUN} --nnodes 2 --nproc-per-node 1 --node-rank {rank} --master-addr 127.0.0.1"
        for rank in (0, 1)
    ],
}
# Shards each layer, as accelerate's FSDP 2 does, which it will not do without an accelerator.
SHARDED = """
import sys
from pathlib import Path
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from modeling_condenser.packing import use_packing
from tests.backbones.encoders import BACKBONES
from tests.test_packing import assert_same, losses_and_gradients, make_model, pack

distributed.init_process_group("gloo")
rank = distributed.get_rank()
mesh = init_device_mesh("cpu", (2,))
for name, is_packed in (("BERT", True), ("ModernBERT", False), ("DeBERTa-v3", False)):
    model, batch = make_model(name), BACKBONES[name].batch(6, 40)
    n_masked = (batch["labels"] != -100).sum()
    expected = losses_and_gradients(model, batch)
    model.zero_grad()
    if is_packed:
        use_packing(model)
    layers = {type(layer) for layer in (*model.condenser.layers, *model.head)}
    for module in model.modules():
        if type(module) in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    half = {key: value[3 * rank : 3 * rank + 3].contiguous() for key, value in batch.items()}
    output = model(**(pack(half) if is_packed else half), num_items_in_batch=n_masked)
    (output.loss * 2).backward()  # of which FSDP takes the mean over processes
    gradients = {
        key: parameter.grad.full_tensor()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    losses = torch.stack([output.head_loss, output.late_loss]).detach()
    distributed.all_reduce(losses)
    assert_same((losses.tolist(), gradients), expected)
    Path(__file__).with_name(f"{name}, process {rank}, equal").touch()
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(commands: list[list[str]]) -> None:
    """Run commands side by side, all of which must succeed."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, *(port if word == "PORT" else word for word in command)],
            env=dict(os.environ, OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(commands), [text[-3000:] for text in printed]


@pytest.fixture(scope="module")
def recipe(bert_folder: Path, corpus_file: Path, tmp_path_factory) -> Path:
    settings = {
        "encoder": str(bert_folder),
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "corpus": str(corpus_file),
        "max_length": 24,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    file = tmp_path_factory.mktemp("recipe") / "pretrain.yaml"
    file.write_text("# for tests\n" + yaml.safe_dump(settings))
    return file


def pretrain_words(recipe: Path, out: Path, batch: int) -> list[str]:
    words = ["-m", "hub_scripts.main", "pretrain", str(recipe), "--output_dir", str(out)]
    return [*words, "--per_device_train_batch_size", str(batch)]


def losses(run: Path) -> list[float]:
    log = json.loads((run / "log.json").read_text())
    return [entry["loss"] for entry in log if "loss" in entry]


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    launch([pretrain_words(recipe, out, 8)])
    return out


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_trains_as_one_process_does_on_the_whole_batch(
    launcher: str, recipe: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = pretrain_words(recipe, out, 4)
    launch([[*command.split(), *words] for command in LAUNCHERS[launcher]])
    assert losses(out) == pytest.approx(losses(alone), rel=1e-4)
    assert sorted(f.name for f in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    state = (out / "checkpoint-3", alone / "checkpoint-3")
    n_states = [len(list(folder.glob("rng_state*.pth"))) for folder in state]
    assert n_states == [2, 1]  # so that there were two processes
    model, expected = (
        CondenserForPreTraining.from_pretrained(folder / "model").state_dict()
        for folder in (out, alone)
    )
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=0, atol=1e-4, msg=name)


def test_sharded_parameters_give_the_loss_and_gradient_of_whole_ones(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{SHARDED}")
    launch([[*LAUNCHERS["torchrun"][0].split(), str(script)]])
    assert len(list(tmp_path.glob("*equal"))) == 3 * 2
