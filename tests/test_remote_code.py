"""Published checkpoints in a process where this package is not installed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, set_seed

from modeling_condenser import condenser_from_encoder
from tests.backbones.encoders import BACKBONES
from tests.hub.making import run_isolated

TEXTS = ["The glacier visits Oslo.", "Why?", "A violin measures the old orchard near Kyoto."]
OPEN = """
import json, torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
kwargs = {"trust_remote_code": True}

def measure(folder):
    batch = AutoTokenizer.from_pretrained(folder)(
        json.loads(sys.argv[1]), padding=True, return_tensors="pt", return_token_type_ids=False
    )
    labels = batch["input_ids"].clone()
    labels[:, ::2] = -100
    whole = AutoModelForPreTraining.from_pretrained(folder, **kwargs).eval()
    assert type(whole).__module__.split(".")[0] == "transformers_modules"
    output = whole(**batch, labels=labels)
    output.loss.backward()
    model = AutoModel.from_pretrained(folder, **kwargs).eval()
    masked_lm = AutoModelForMaskedLM.from_pretrained(folder, **kwargs).eval()
    return whole, {
        "losses": [output.head_loss.item(), output.late_loss.item()],
        "cls": model(**batch).last_hidden_state[:, 0].tolist(),
        "logits": masked_lm(**batch).logits[0, 1].tolist(),
    }

found = [measure(folder) for folder in sys.argv[2:]]
whole, _ = found[0]
whole.save_pretrained("again")
AutoTokenizer.from_pretrained(sys.argv[2]).save_pretrained("again")
found.append(measure("again"))
vectors = SentenceTransformer("again", device="cpu", **kwargs).encode(json.loads(sys.argv[1]))
assert "modeling_condenser" not in sys.modules
print("RESULT" + json.dumps([[figures for _, figures in found], vectors.tolist()]))
"""


@pytest.mark.slow
def test_every_checkpoint_opens_without_this_package_and_saves_itself_again(
    texts: list[str], tmp_path: Path
) -> None:
    """All encoders in one process, whose start takes longer than the rest."""
    folders, expected = [], []
    for backbone in BACKBONES.values():
        set_seed(0)
        encoder = backbone.save(tmp_path / "encoder" / backbone.title, texts)
        model = condenser_from_encoder(str(encoder), n_head_layers=2, skip_from=1).eval()
        saved = tmp_path / backbone.title.replace("-", "_")
        model.save_pretrained(saved)
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        tokenizer.save_pretrained(saved)
        folders.append(saved)
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
        labels = batch["input_ids"].clone()
        labels[:, ::2] = -100
        output = model(**batch, labels=labels)
        figures = {
            "losses": torch.stack([output.head_loss, output.late_loss]),
            "cls": output.cls_late,
            "logits": model(**batch).logits[0, 1],
        }
        expected.append({name: tensor.detach().numpy() for name, tensor in figures.items()})
    printed = run_isolated(OPEN, json.dumps(TEXTS), *folders, scratch=tmp_path / "elsewhere")
    found, vectors = json.loads(printed.partition("RESULT")[2])
    titles = [*BACKBONES, "saved again"]
    for title, one, other in zip(titles, found, [*expected, expected[0]], strict=True):
        for name, values in other.items():
            np.testing.assert_allclose(one[name], values, rtol=0, atol=1e-5, err_msg=title + name)
    np.testing.assert_allclose(vectors, expected[0]["cls"], rtol=0, atol=1e-5)
