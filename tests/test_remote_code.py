"""Published checkpoints in a process where this package is not installed."""

import json
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, set_seed

from modeling_condenser import CondenserForPreTraining
from tests.backbones.encoders import BACKBONES
from tests.publishing.making import run_isolated

TEXTS = ["The glacier visits Oslo.", "Why?", "A violin measures the old orchard near Kyoto."]
MEASURE = """
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

def measure(folder, texts, **kwargs):
    batch = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, return_tensors="pt", return_token_type_ids=False
    )
    labels = batch["input_ids"].clone()
    labels[:, ::2] = -100
    whole = AutoModelForPreTraining.from_pretrained(folder, **kwargs).eval()
    output = whole(**batch, labels=labels)
    output.loss.backward()
    model = AutoModel.from_pretrained(folder, **kwargs).eval()
    masked_lm = AutoModelForMaskedLM.from_pretrained(folder, **kwargs).eval()
    return {
        "losses": [output.head_loss.item(), output.late_loss.item()],
        "cls": model(**batch).last_hidden_state[:, 0].tolist(),
        "logits": masked_lm(**batch).logits[0, 1].tolist(),
    }
"""
OPEN = f"""{MEASURE}
import json
from sentence_transformers import SentenceTransformer
kwargs = {{"trust_remote_code": True}}
texts, *folders = json.loads(sys.argv[1])
whole = AutoModelForPreTraining.from_pretrained(folders[0], **kwargs)
assert type(whole).__module__.split(".")[0] == "transformers_modules"
whole.save_pretrained("again")
AutoTokenizer.from_pretrained(folders[0]).save_pretrained("again")
found = [measure(folder, texts, **kwargs) for folder in (*folders, "again")]
whole.save_encoder("plain")
for folder, how in (("again", kwargs), ("plain", {{}})):
    vectors = SentenceTransformer(folder, device="cpu", **how).encode(texts)
    found.append({{"cls": vectors.tolist()}})
assert "modeling_condenser" not in sys.modules
print("RESULT" + json.dumps(found))
"""


@pytest.mark.slow
def test_every_checkpoint_opens_without_this_package_and_saves_itself_again(texts, tmp_path):
    """All encoders in one process, whose start takes longer than the rest."""
    names: dict[str, Any] = {}
    exec(MEASURE, names)
    folders, expected = [], []
    for backbone in BACKBONES.values():
        set_seed(0)
        encoder = backbone.save(tmp_path / "encoder" / backbone.title, texts)
        folders.append(str(tmp_path / backbone.title.replace("-", "_")))
        model = CondenserForPreTraining.from_encoder(str(encoder), n_head_layers=2, skip_from=1)
        model.save_pretrained(folders[-1])
        AutoTokenizer.from_pretrained(encoder).save_pretrained(folders[-1])
        expected.append(names["measure"](folders[-1], TEXTS))
    expected += [expected[0]] * 3  # of the copy, and by sentence-transformers, also plain
    printed = run_isolated(OPEN, json.dumps([TEXTS, *folders]), scratch=tmp_path / "elsewhere")
    found = json.loads(printed.partition("RESULT")[2])
    titles = [*BACKBONES, "copy", "vectors", "plain"]
    for title, one, other in zip(titles, found, expected, strict=True):
        for name, values in one.items():
            message = f"{title}, {name}"
            np.testing.assert_allclose(values, other[name], rtol=0, atol=1e-5, err_msg=message)
