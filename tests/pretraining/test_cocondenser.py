"""coCondenser runs: what they leave behind, that they can be killed, and what they refuse."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.export import export_encoder


@pytest.fixture
def settings(tmp_path, bert_folder, corpus_file):
    return {
        "objective": "cocondenser",
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 24,
        "similarity": "cosine",
        "cache_chunk_size": 6,
        "per_device_train_batch_size": 8,
        "max_steps": 6,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def log_of(run: Path) -> list[dict[str, float]]:
    return [entry for entry in json.loads((run / "log.json").read_text()) if "loss" in entry]


def test_a_run_logs_all_losses_and_records_what_was_left_out(settings, tmp_path):
    pretrain({**settings, "contrastive_weight": 0.5, "seed": 4})
    for entry in log_of(tmp_path / "run"):
        own = entry["head_loss"] + entry["late_loss"]
        assert entry["loss"] == pytest.approx(own + 0.5 * entry["contrastive_loss"], rel=1e-5)
        assert 0 <= entry["contrastive_accuracy"] <= 1
        assert isinstance(entry["swap_cost"], float)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["objective"], run["n_documents"]) == ("cocondenser", 300)
    assert 0 < run["n_documents_left_out"] < 100
    assert run["n_spans"] >= 2 * (300 - run["n_documents_left_out"])


def test_chunks_do_not_change_the_batches_or_the_losses(settings, tmp_path):
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = {**settings, "encoder_changes": no_dropout}
    pretrain(settings)
    whole = {n: v for n, v in settings.items() if n != "cache_chunk_size"}
    pretrain({**whole, "output_dir": str(tmp_path / "whole")})
    for a, b in zip(log_of(tmp_path / "run"), log_of(tmp_path / "whole"), strict=True):
        for name in ("head_loss", "late_loss", "contrastive_loss", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
        assert a["num_input_tokens_seen"] == b["num_input_tokens_seen"]


def test_it_learns_to_find_siblings_and_to_fill_masks(settings, tmp_path, write_jsonl):
    """On 16 documents whose two sentences name one and the same thing."""
    things = "river museum engine poet harbour theorem orchard railway café glacier fjord library"
    things += " citizen parliament telescope volcano"
    rows = [{"text": f"The {x} left the {x}. Why did the {x} hide a {x}?"} for x in things.split()]
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    changes = {"learning_rate": 5e-3, "max_steps": 60, "logging_steps": 20, "span_length": 12}
    pretrain(
        {
            **settings,
            **changes,
            "corpus": str(write_jsonl(rows)),
            "contrastive_weight": 5.0,
            "short_block_probability": 0.0,
            "encoder_changes": no_dropout,
        }
    )
    log = log_of(tmp_path / "run")
    assert log[-1]["contrastive_loss"] < 0.8 * log[0]["contrastive_loss"]
    assert log[-1]["contrastive_accuracy"] > log[0]["contrastive_accuracy"] + 0.2
    assert log[-1]["head_loss"] < 0.8 * log[0]["head_loss"]
    assert log[-1]["late_loss"] < 0.8 * log[0]["late_loss"]


def test_a_condenser_is_continued_with_its_head_and_exported_as_a_plain_encoder(settings, tmp_path):
    condenser = {n: v for n, v in settings.items() if n not in ("similarity", "cache_chunk_size")}
    condenser |= {"objective": "condenser", "n_head_layers": 1, "skip_from": 1}
    first = pretrain({**condenser, "output_dir": str(tmp_path / "condenser")})
    # No step changes anything at a learning rate of 0, so the head must be the Condenser's own.
    more = {**settings, "encoder": str(first), "learning_rate": 0.0}
    second = pretrain(more)
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert before.keys() == after.keys()
    assert any(name.startswith("head.0.") for name in after)
    assert all(before[name].equal(after[name]) for name in before)
    config = CondenserForPreTraining.from_pretrained(second).config
    assert (config.n_head_layers, config.skip_from) == (1, 1)
    encoder = AutoModel.from_pretrained(export_encoder(second, tmp_path / "encoder"))
    assert encoder.config.model_type == "bert"
    assert AutoTokenizer.from_pretrained(tmp_path / "encoder").mask_token == "[MASK]"


KILLED_RUN = """
import json, os, signal, sys
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
step = CondenserTrainer.training_step
def killed_step(self, *args, **kwargs):
    if self.state.global_step == 45:  # in the second epoch
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)
CondenserTrainer.training_step = killed_step
pretrain(json.loads(sys.argv[1]))
"""


def test_a_run_killed_and_restarted_by_the_same_settings_ends_bit_equal(settings, tmp_path):
    settings = {**settings, "max_steps": 50, "save_strategy": "steps", "save_steps": 20}
    command = [sys.executable, "-c", KILLED_RUN, json.dumps(settings)]
    killed = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not (tmp_path / "run" / "model").exists()
    again = pretrain({**settings, "dataloader_num_workers": 2})
    whole = pretrain({**settings, "output_dir": str(tmp_path / "whole")})

    def curve(name):
        names = ("step", "loss", "contrastive_loss", "contrastive_accuracy", "grad_norm")
        return [tuple(entry[n] for n in names) for entry in log_of(tmp_path / name)]

    assert len(curve("whole")) == 50
    assert curve("run") == curve("whole")
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, again))
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4"),
        ({"cache_chunk_size": 18}, "cache_chunk_size is 18, but a device's batch is 16 texts"),
        ({"cache_chunk_size": 5}, "texts come in pairs"),
        ({"per_device_train_batch_size": 1, "cache_chunk_size": 2}, "The batch is one pair"),
        ({"dataloader_drop_last": False}, "dataloader_drop_last is false"),
        ({"streaming": True}, "streaming is not for objective cocondenser"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"similarity": "euclidean"}, "similarity is 'euclidean', expected one of 'dot', 'cosine'"),
        ({"contrastive_weight": 0.0}, "contrastive_weight is 0.0"),
        ({"spans": "words"}, "spans is 'words'"),
        ({"span_length": 25}, "span_length is 25, but max_length is 24"),
        ({"span_length": 2}, "leaves no room for text"),
        ({"query_length": 8}, "query_length is only for objective ict, but .* cocondenser"),
        ({"removal_probability": 0.5}, "removal_probability is only for objective ict"),
        ({"objective": "condenser"}, "similarity is only for objective cocondenser and ict"),
        ({"objective": "mlm", "similarity": None}, "cache_chunk_size is only for objective"),
        ({"objective": "ict", "removal_probability": 1.5}, "removal_probability is 1.5"),
        ({"objective": "ict", "query_length": 99}, "query_length is 99.*max_length, 24"),
        ({"objective": "ict", "spans": "windows"}, "spans is only for objective cocondenser"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(settings, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        pretrain({**settings, **change})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("objective", ["cocondenser", "ict"])
def test_a_corpus_without_pairs_is_refused(settings, write_jsonl, objective):
    corpus = write_jsonl([{"text": "One sentence."}, {"text": "Another."}, {"text": " "}])
    with pytest.raises(ValueError, match="None of the 3 documents can be cut in two"):
        pretrain({**settings, "objective": objective, "corpus": str(corpus)})


def test_a_corpus_smaller_than_a_batch_is_refused(settings, write_jsonl, texts):
    corpus = write_jsonl([{"text": f"{texts[0]} {texts[1]} {texts[i]}"} for i in range(5)])
    with pytest.raises(ValueError, match="5 pairs to train on, but a batch is 8 of them"):
        pretrain({**settings, "corpus": str(corpus)})
