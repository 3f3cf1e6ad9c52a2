"""Two processes give the loss and the gradient that one process gives on the batch of both."""

import json
import math
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForMaskedLM

from modeling_condenser.pretraining.arguments import CONTRASTIVE

# Runs recipes and leaves the gradients that their first optimiser steps are given.
RUN = """
import json, sys
from pathlib import Path
from safetensors.torch import save_file
from modeling_condenser.pretraining import objectives
from modeling_condenser.pretraining.pretrain import pretrain

def keeping_gradients(Trainer):
    def _clip_grad_norm(self, model):
        own = self.accelerator.unwrap_model(model)
        if self.state.global_step == 0 and self.is_world_process_zero():
            gradients = {n: p.grad.clone() for n, p in own.named_parameters() if p.grad is not None}
            save_file(gradients, str(Path(self.args.output_dir) / "gradients.safetensors"))
        return Trainer._clip_grad_norm(self, model)
    return type(Trainer.__name__, (Trainer,), {"_clip_grad_norm": _clip_grad_norm})

for name in ("CondenserTrainer", "ContrastiveTrainer", "DenoisingTrainer"):
    setattr(objectives, name, keeping_gradients(getattr(objectives, name)))
for settings in json.loads(sys.argv[1]):
    pretrain(settings)
"""


def run(recipes: list[dict], *, n_processes: int) -> None:
    """Run recipes in processes that talk to each other by gloo, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(n_processes):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        if n_processes > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(n_processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RUN, json.dumps(recipes)],
                env=environment,
                cwd=Path.cwd(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=240)[0][-3000:] for process in processes]
        assert [process.returncode for process in processes] == [0] * n_processes, outputs
    finally:
        for process in processes:
            process.kill()


CASES = {
    "condenser": {"objective": "condenser"},
    "budget": {"objective": "condenser", "tokens_per_batch": 100},
    "streamed": {"objective": "condenser", "streaming": True},
    "streamed, padded": {
        "objective": "condenser",
        "streaming": True,
        "packed": False,
        # So that batches differ in width.
        "max_length": 64,
        "short_block_probability": 1.0,
    },
    "cached": {"objective": "cocondenser", "cache_chunk_size": 4, "similarity": "cosine"},
    "uncached": {"objective": "cocondenser", "similarity": "dot", "packed": False},
    "ict": {"objective": "ict", "cache_chunk_size": 6},
    "bag of words": {"objective": "mlm", "bow_weight": 1.0, "bow_weight_end": 0.1},
    "second masking": {
        "objective": "condenser",
        "head_mlm_probability": 0.5,
        "bow_weight": 0.5,
        "packed": False,
    },
    "bag of words, cached": {
        "objective": "cocondenser",
        "cache_chunk_size": 4,
        "similarity": "cosine",
        "bow_weight": 1.0,
    },
    "tsdae": {"objective": "tsdae"},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, bert_folder) -> Path:
    """The tiny BERT with larger weights: else the vectors of texts would hardly differ."""
    folder = tmp_path_factory.mktemp("large-weights") / "encoder"
    shutil.copytree(bert_folder, folder)
    model = BertForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 4
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory, encoder, corpus_file) -> dict[int, Path]:
    """Folders of all runs: number of processes -> their common folder."""
    settings = {
        "encoder": str(encoder),
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "corpus": str(corpus_file),
        "max_length": 24,
        "max_steps": 3,
        "max_grad_norm": 1e6,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    folders = {n: tmp_path_factory.mktemp(f"processes-{n}") for n in (1, 2)}
    for n_processes, folder in folders.items():
        batch = {"per_device_train_batch_size": 8 // n_processes}
        recipes = [
            {**settings, **batch, **changes, "output_dir": str(folder / case)}
            for case, changes in CASES.items()
        ]
        # Of a budget each process has a whole one, so one alone takes two batches a step.
        recipes[list(CASES).index("budget")]["gradient_accumulation_steps"] = 2 // n_processes
        run(recipes, n_processes=n_processes)
    return folders


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_loss_and_gradient_of_one_on_both_batches(folders, case):
    alone, together = (folders[n] / case for n in (1, 2))
    log, expected_log = (
        [entry for entry in json.loads((folder / "log.json").read_text()) if "loss" in entry]
        for folder in (together, alone)
    )
    names = {"loss", "grad_norm", "num_input_tokens_seen"}
    losses = {"head_loss", "late_loss", "contrastive_loss", "bow_loss", "bow_weight"}
    names |= losses & expected_log[0].keys()
    assert ("bow_loss" in names) == ("bow_weight" in CASES[case])
    assert ("contrastive_loss" in names) == (CASES[case]["objective"] in CONTRASTIVE)
    assert len(log) == 3
    for name in names:
        assert log[0][name] == pytest.approx(expected_log[0][name], rel=1e-5), name
        for a, b in zip(log, expected_log, strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-3), name
    gradients, expected = (load_file(f / "gradients.safetensors") for f in (together, alone))
    assert gradients.keys() == expected.keys()
    largest = float(max(gradient.abs().max() for gradient in expected.values()))
    assert largest > 0.01
    # float32 sums in another order: what is small beside the largest is off by as much as that.
    close = {"rtol": 1e-5, "atol": 1e-5 * max(1.0, largest)}
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, msg=name, **close)


def test_a_contrast_over_two_processes_is_not_that_of_one_of_them(folders):
    """So that the test above would fail if each process kept its vectors to itself."""
    log = [e for e in json.loads((folders[2] / "uncached" / "log.json").read_text()) if "loss" in e]
    # 16 spans, 15 candidates each; 8 spans would begin near log(7) = 1.95.
    assert log[0]["contrastive_loss"] > 0.9 * math.log(15)
