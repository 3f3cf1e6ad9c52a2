"""Several processes give the losses and gradients that one process gives on the whole batch.

Both processes run this module, whose argument is the JSON of a `Plan`. They start once for all.
"""

import json
import math
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict
from unittest.mock import patch

import pytest
from accelerate.utils.other import get_free_port
from datasets import load_dataset
from safetensors.torch import load_file, save_file
from torch import distributed
from transformers import set_seed

from modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainingArguments,
    ContrastiveTrainer,
)
from modeling_condenser.pretraining.corpus import load_documents
from modeling_condenser.pretraining.objectives import HEAD_SETTINGS, OBJECTIVES
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
from tests.models import assert_same, gradients
from tests.pretraining.short_runs import SETTINGS, column, interrupted_at
from tests.run_logs import read_log

pytestmark = pytest.mark.slow

CASES = {
    "budget": {"tokens_per_batch": 100},
    "uncached": {"objective": "cocondenser", "similarity": "dot", "packed": False},
    "cached": {"objective": "cocondenser", "cache_chunk_size": 4, "bow_weight": 1.0},
    "second masking": {"head_mlm_probability": 0.5, "bow_weight": 0.5},
    "mean pooling": {"objective": "ict", "pooling": "mean", "bow_weight": 1.0},
}
OWN_AVERAGES = "each process averages over its own tokens"
RUNS = {**CASES, OWN_AVERAGES: {"average_tokens_across_devices": False}}
# With dropout, so that the random state of each process matters.
RESUMED = {
    "encoder_changes": {"hidden_dropout_prob": 0.1},
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 1,
}
# Of objective, changes.
STREAMS: dict[str, dict[str, Any]] = {
    "condenser": {"dataloader_num_workers": 2},
    "mlm": {},
    "cocondenser": {"similarity": "dot"},
    "ict": {"bow_weight": 1.0},
    "RetroMAE-style": {"objective": "condenser", "head_mlm_probability": 0.5, "stream_lanes": 4},
    "budget": {"objective": "condenser"},
}
STREAM_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if name != "per_device_train_batch_size"},
    "max_length": 24,
    "max_steps": 5,
    "save_strategy": "steps",
    "save_steps": 1,
    "stream_buffer": 64,
}
TORCHRUN = "-m torch.distributed.run --master-port PORT"


class Plan(TypedDict):
    """What a process does: trainings and an evaluation, whose results go to a folder."""

    recipes: list[dict[str, Any]]
    interrupted: dict[str, Any]
    evaluation: dict[str, Any]
    streams: dict[str, Any]


def carry_out(plan: Plan) -> None:
    train(plan["recipes"])
    interrupt_and_resume(plan["interrupted"])
    evaluate(**plan["evaluation"])
    train_on_streams(**plan["streams"])


def train(recipes: list[dict[str, Any]]) -> None:
    """Run recipes, and save the gradients that their first optimiser steps are given."""
    clip = CondenserTrainer._clip_grad_norm

    def keep_gradients(self: Any, model: Any) -> Any:
        unwrapped = self.accelerator.unwrap_model(model)
        if self.state.global_step == 0 and self.is_world_process_zero():
            save_file(
                gradients(unwrapped), str(Path(self.args.output_dir) / "gradients.safetensors")
            )
        return clip(self, model)

    with patch.object(CondenserTrainer, "_clip_grad_norm", keep_gradients):
        for settings in recipes:
            pretrain(**settings)


def interrupt_and_resume(recipe: dict[str, Any]) -> None:
    """Run a recipe, and run it in a second folder, where it is killed in its third checkpoint."""
    pretrain(**recipe)
    run = {**recipe, "output_dir": f"{recipe['output_dir']}-resumed"}
    with interrupted_at(3):
        pretrain(**run)
    (Path(run["output_dir"]) / "checkpoint-3" / "trainer_state.json").unlink(missing_ok=True)
    pretrain(**run)


def evaluate(encoder: str, corpus: str, **settings: Any) -> None:
    """Evaluate an encoder on text, and write its measures to a file."""
    model = CondenserForMaskedLM.from_encoder(encoder)
    arguments = CondenserTrainingArguments(**settings)
    texts = load_documents(corpus)
    metrics = ContrastiveTrainer(model, arguments, eval_dataset=texts).evaluate()
    names = ("eval_loss", "eval_bow_loss", "eval_contrastive_loss", "eval_contrastive_accuracy")
    Path(settings["output_dir"], "metrics").write_text(json.dumps([metrics[n] for n in names]))
    arguments = CondenserTrainingArguments(**{**settings, "objective": "condenser"})
    blocks = load_documents(corpus).select(range(11))  # the last batch is smaller
    condenser = CondenserForPreTraining.from_encoder(encoder)
    metrics = CondenserTrainer(condenser, arguments, eval_dataset=blocks).evaluate()
    names = ("eval_loss", "eval_head_loss", "eval_late_loss", "eval_bow_loss")
    Path(settings["output_dir"], "parts").write_text(json.dumps([metrics[n] for n in names]))


def stream_trainer(encoder: str, corpus: str, folder: Path, **options: Any) -> Any:
    set_seed(1)
    objective = OBJECTIVES[options["objective"]]
    head = {name: options.pop(name) for name in HEAD_SETTINGS if name in options}
    model_class: Any = CondenserForPreTraining if objective.has_head else CondenserForMaskedLM
    trainer_class = ContrastiveTrainer if objective.is_contrastive else CondenserTrainer
    return trainer_class(
        model_class.from_encoder(encoder, **head),
        CondenserTrainingArguments(str(folder), **options),
        train_dataset=load_dataset("json", data_files=corpus, streaming=True),
    )


def train_on_streams(encoder: str, corpus: str, output_dir: str, **settings: Any) -> None:
    """Train on a stream, whole and interrupted before the fourth step; write figures to files."""
    for name, changes in STREAMS.items():
        options = {"objective": name, **settings, **changes}
        if name == "budget":
            options["tokens_per_batch"] = 60 * options["per_device_train_batch_size"]
        runs = []
        for run in ("whole", "resumed"):
            folder = Path(output_dir, f"{name} {run}")
            if run == "resumed":
                with interrupted_at(3):
                    stream_trainer(encoder, corpus, folder, **options).train()
            trainer = stream_trainer(encoder, corpus, folder, **options)
            trainer.train()
            entries = [entry for entry in trainer.state.log_history if "loss" in entry]
            runs.append(
                [[entry[key] for key in ("loss", "grad_norm", "epoch")] for entry in entries]
            )
        Path(output_dir, f"{name}.json").write_text(json.dumps(runs))
    with interrupted_at(3):
        stream_trainer(
            encoder, corpus, Path(output_dir, "left"), objective="mlm", **settings
        ).train()


def launch(*commands: str) -> None:
    """Run commands side by side, all of which must succeed."""
    port = str(get_free_port())

    def run(command: str) -> None:
        words = [sys.executable, *shlex.split(command.replace("PORT", port))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, commands))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, large_weights, corpus_file):
    """Number of processes -> the folder of its runs. Two are two nodes, and one is this process."""
    places = {"encoder": str(large_weights), "corpus": str(corpus_file)}
    shared = {**SETTINGS, **places, "max_length": 24, "max_grad_norm": 1e6}
    folders, plans = {n: tmp_path_factory.mktemp(f"processes-{n}") for n in (1, 2)}, []
    for n_processes, folder in folders.items():
        batch = {"per_device_train_batch_size": 8 // n_processes}
        recipes = [
            {**shared, **batch, **changes, "output_dir": str(folder / case)}
            for case, changes in RUNS.items()
        ]
        # Of a budget each process has a whole one, so one alone takes two batches a step.
        recipes[list(RUNS).index("budget")]["gradient_accumulation_steps"] = 2 // n_processes
        measured = {"per_device_eval_batch_size": 16 // n_processes, "output_dir": str(folder)}
        measured |= {"objective": "ict", "max_length": 32, "bow_weight": 1.0, "use_cpu": True}
        plan = Plan(
            recipes=recipes,
            interrupted={**shared, **batch, **RESUMED, "output_dir": str(folder / "whole")},
            evaluation={**places, **measured},
            streams={**STREAM_SETTINGS, **places, **batch, "output_dir": str(folder)},
        )
        plans.append(plan)
    carry_out(plans[0])
    nodes = f"{TORCHRUN} --nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --node-rank"
    command = f"-m tests.pretraining.test_distributed {shlex.quote(json.dumps(plans[1]))}"
    launch(*(f"{nodes} {rank} {command}" for rank in (0, 1)))
    return folders


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_loss_and_gradient_of_one_on_both_batches(folders, case):
    log, expected_log = (read_log(folders[n] / case) for n in (2, 1))
    names = {"loss", "grad_norm", "num_input_tokens_seen"}
    names |= {"head_loss", "late_loss", "contrastive_loss", "bow_loss"}
    names &= expected_log[0].keys()
    assert len(log) == 3 and len(names) >= 3
    for name in names:
        assert log[0][name] == pytest.approx(expected_log[0][name], rel=1e-5), name
        for a, b in zip(log, expected_log, strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-3), name
    if case == "uncached":  # 16 spans, 15 candidates each; 8 spans would begin near log(7) = 1.95
        assert log[0]["contrastive_loss"] > 0.9 * math.log(15)
    found, expected = (load_file(folders[n] / case / "gradients.safetensors") for n in (2, 1))
    largest = float(max(gradient.abs().max() for gradient in expected.values()))
    assert largest > 0.01
    # float32 sums in another order: what is small beside the largest is off by as much as that.
    assert_same(found, expected, 1e-5 * max(1.0, largest))


@pytest.mark.parametrize("name", STREAMS)
def test_two_processes_on_a_stream_have_the_losses_of_one_killed_or_not(folders, name):
    runs = {n: json.loads((folder / f"{name}.json").read_text()) for n, folder in folders.items()}
    for whole, resumed in runs.values():
        assert resumed == whole and len(whole) == 5
    for one, two in zip(runs[1][0], runs[2][0], strict=True):
        assert two == pytest.approx(one, rel=1e-4)


def test_one_process_continues_the_stream_of_two_by_accumulation(
    folders, large_weights, corpus_file
):
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    settings = {**STREAM_SETTINGS, **batch, "objective": "mlm"}
    trainer = stream_trainer(str(large_weights), str(corpus_file), folders[2] / "left", **settings)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    [expected, _] = json.loads((folders[1] / "mlm.json").read_text())
    assert losses == pytest.approx([loss for loss, *_ in expected], rel=1e-4)


def test_an_interrupted_run_resumes_bit_equal(folders):
    for folder in folders.values():
        resumed, whole = folder / "whole-resumed", folder / "whole"
        assert column(resumed, "step", "loss") == column(whole, "step", "loss")
        weights = [load_file(run / "model" / "model.safetensors") for run in (resumed, whole)]
        assert_same(*weights, 0)


def test_the_parts_of_the_loss_add_up_where_each_process_averages_over_its_own_tokens(folders):
    for entry in read_log(folders[2] / OWN_AVERAGES):
        assert entry["head_loss"] + entry["late_loss"] == pytest.approx(entry["loss"], rel=1e-5)


def test_an_evaluation_has_the_same_loss_in_two_processes(folders):
    one, two = (json.loads((folders[n] / "metrics").read_text()) for n in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)
    assert one[0] == pytest.approx(one[1] + one[2], rel=1e-5)


def test_the_parts_of_an_evaluation_add_up_where_the_last_batch_is_smaller(folders):
    for folder in folders.values():
        loss, *parts = json.loads((folder / "parts").read_text())
        assert loss == pytest.approx(sum(parts), rel=1e-6)


if __name__ == "__main__":
    carry_out(json.loads(sys.argv[1]))
    # Threads that still wait for the other process would abort this one when it exits.
    distributed.destroy_process_group()
