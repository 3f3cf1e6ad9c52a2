"""A published checkpoint in a process that never heard of this package."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch

from modeling_condenser import condenser_from_encoder
from tests.publishing.making import BLOCKER

OPEN = """
import json, pathlib, torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining
folder, again, out = sys.argv[1:]
ids = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 3, 0, 0]])
batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
labels = torch.tensor([[-100, 7, -100, 11, -100], [-100, 12, -100, -100, -100]])

def measure(folder):
    kwargs = {"trust_remote_code": True}
    config = AutoConfig.from_pretrained(folder, **kwargs)
    model = AutoModel.from_pretrained(folder, **kwargs)
    masked_lm = AutoModelForMaskedLM.from_pretrained(folder, **kwargs)
    whole = AutoModelForPreTraining.from_pretrained(folder, **kwargs)
    loss = whole(**batch, labels=labels)
    loss.loss.backward()
    return whole, {
        "classes": [type(m).__name__ for m in (config, model, masked_lm, whole)],
        "modules": sorted({type(m).__module__.split(".")[0] for m in (model, masked_lm, whole)}),
        "late_cls": model(**batch).last_hidden_state[:, 0].tolist(),
        "logits": masked_lm(**batch).logits[0, 1].tolist(),
        "losses": [loss.loss.item(), loss.head_loss.item(), loss.late_loss.item()],
    }

whole, first = measure(folder)
whole.save_pretrained(again)
_, second = measure(again)
pathlib.Path(out).write_text(json.dumps([first, second]))
"""


@pytest.fixture
def measured(tmp_path, bert_folder):
    torch.manual_seed(0)
    model = condenser_from_encoder(str(bert_folder), n_head_layers=1).eval()
    model.save_pretrained(tmp_path / "checkpoint")
    script = tmp_path / "open.py"
    script.write_text(BLOCKER + textwrap.dedent(OPEN))
    out = tmp_path / "out.json"
    process = subprocess.run(
        [sys.executable, script, tmp_path / "checkpoint", tmp_path / "again", out],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return model, json.loads(out.read_text())


def test_every_auto_class_gives_the_same_outputs_without_this_package(measured):
    model, rounds = measured
    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 3, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    labels = torch.tensor([[-100, 7, -100, 11, -100], [-100, 12, -100, -100, -100]])
    output = model(**batch, labels=labels)
    expected = {
        "classes": [
            "CondenserConfig",
            "CondenserModel",
            "CondenserForMaskedLM",
            "CondenserForPreTraining",
        ],
        "modules": ["transformers_modules"],
        "late_cls": model.condenser(**batch).last_hidden_state[:, 0].tolist(),
        "logits": model(**batch).logits[0, 1].tolist(),
        "losses": [output.loss.item(), output.head_loss.item(), output.late_loss.item()],
    }
    # The second time from what the other process saved again.
    assert rounds == [expected, expected]
