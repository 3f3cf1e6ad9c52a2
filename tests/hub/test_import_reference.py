"""Importing checkpoints of the reference implementation, which are made here by hand.

The expected losses come from a Condenser put together of the library's masked LM and layers, with
the reference's names: no code of the package.
"""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer, BertForMaskedLM, RobertaForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer

from hub_scripts.main import main
from modeling_condenser import CondenserForPreTraining
from modeling_condenser.hub.import_reference import import_reference
from tests.hub.loopback_hub import contents

KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (BertForMaskedLM, BertLayer),
    "roberta": (RobertaForMaskedLM, RobertaLayer),
}
SKIP_FROM, N_HEAD_LAYERS = 1, 2


class NaiveReference(nn.Module):
    """A masked LM `lm` and a head `c_head` beside it, every position projected."""

    def __init__(self, kind: str, encoder: Path) -> None:
        super().__init__()
        masked_lm, layer = KINDS[kind]
        torch.manual_seed(1)
        self.lm = masked_lm.from_pretrained(encoder)
        self.c_head = nn.ModuleList(layer(self.lm.config) for _ in range(N_HEAD_LAYERS))
        with torch.no_grad():  # norms and biases too, which begin alike
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.eval()

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids, attended, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        out = self.lm(
            input_ids=ids, attention_mask=attended, labels=labels, output_hidden_states=True
        )
        blocked = (1.0 - attended[:, None, None, :].float()) * torch.finfo(torch.float32).min
        cls_late, early = out.hidden_states[-1][:, 0], out.hidden_states[SKIP_FROM]
        hidden = torch.stack([cls_late, *early.unbind(1)[1:]], dim=1)  # (B, T, H)
        for layer in self.c_head:
            hidden = layer(hidden, blocked)
        project = self.lm.cls if hasattr(self.lm, "cls") else self.lm.lm_head
        head_loss = F.cross_entropy(project(hidden).flatten(0, 1), labels.flatten())
        return {"loss": head_loss + out.loss, "head_loss": head_loss, "late_loss": out.loss}

    def save(self, folder: Path, encoder: Path) -> Path:
        """Write what the reference's trainer leaves, its pickled arguments turned into traps."""
        folder.mkdir()
        self.lm.config.save_pretrained(folder)
        weights = {name: value.clone() for name, value in self.lm.state_dict().items()}
        n_positions = self.lm.config.max_position_embeddings
        name = f"{self.lm.base_model_prefix}.embeddings.position_ids"
        torch.save({**weights, name: torch.arange(n_positions)[None]}, folder / "pytorch_model.bin")
        head = {f"c_head.{name}": value for name, value in self.c_head.state_dict().items()}
        torch.save({**head, "co_target": torch.tensor([1, 0, 3, 2])}, folder / "model.pt")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(encoder / name, folder / name)
        for name in ("args.pt", "training_args.bin"):
            (folder / name).write_bytes(pickle.dumps({"a": Trap(folder / "executed")}, protocol=2))
        return folder


class Trap:
    """Makes a file when its pickle is opened."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.sentinel), "w")


@pytest.fixture
def reference(bert_folder: Path, tmp_path: Path) -> Path:
    """A whole reference checkpoint of a BERT, for the tests to damage."""
    return NaiveReference("bert", bert_folder).save(tmp_path / "reference", bert_folder)


def make_batch(encoder: Path) -> dict[str, torch.Tensor]:
    """Three padded rows; a quarter of the tokens is to be predicted."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    sentences = ["The glacier visits Oslo.", "Why?", "A museum measures the old river near Kyoto."]
    tokens = tokenizer(sentences, padding=True, return_tensors="pt")
    ids, attended = tokens["input_ids"], tokens["attention_mask"]
    places = torch.arange(ids.numel()).reshape(ids.shape)
    is_masked = (places % 4 == 1) & attended.bool()
    labels = torch.where(is_masked, ids, -100)
    ids = torch.where(is_masked & (places % 8 == 1), tokenizer.mask_token_id, ids)
    return {"input_ids": ids, "attention_mask": attended, "labels": labels}


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_has_the_losses_and_all_the_gradients_of_the_reference(kind, request, tmp_path):
    encoder = request.getfixturevalue(f"{kind}_folder")
    naive = NaiveReference(kind, encoder)
    folder = naive.save(tmp_path / "reference", encoder)
    out = import_reference(folder, tmp_path / "ours", skip_from=SKIP_FROM)
    model = CondenserForPreTraining.from_pretrained(out).eval()
    assert (model.config.n_head_layers, model.config.skip_from) == (N_HEAD_LAYERS, SKIP_FROM)
    pooler = model.condenser.encoder.pooler.dense
    assert torch.equal(pooler.weight, torch.eye(32)) and not pooler.bias.any()

    batch = make_batch(encoder)
    expected, got = naive(batch), model(**batch)
    for name, loss in expected.items():
        # Sums in float32 are rounded otherwise on other processors, and losses are above 10.
        torch.testing.assert_close(got[name], loss, atol=0, rtol=1e-6)
    expected["loss"].backward()
    got.loss.backward()
    lm_head = naive.lm.cls if kind == "bert" else naive.lm.lm_head
    for theirs, own in (
        (naive.lm.base_model, model.condenser.encoder),
        (lm_head, model.lm_head),
        (naive.c_head, model.head),
    ):
        weights = {n: w for n, w in own.named_parameters() if not n.startswith("pooler.")}
        expected_weights = dict(theirs.named_parameters())
        assert weights.keys() == expected_weights.keys()
        for name, weight in expected_weights.items():
            assert torch.equal(weights[name], weight), name
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name
            torch.testing.assert_close(weights[name].grad, weight.grad, atol=1e-6, rtol=1e-5)


def test_the_command_writes_a_whole_checkpoint_that_names_no_folder_of_this_machine(
    reference, tmp_path, capsys
):
    out = tmp_path / "ours"
    words = [str(reference), str(out), "--skip_from", "3", "--late_mlm", "false"]
    assert main(["import-reference", *words]) == 0
    assert f"next: condenser export {out} ENCODER" in capsys.readouterr().out
    config = CondenserForPreTraining.from_pretrained(out).config
    assert (config.skip_from, config.late_mlm) == (3, False)
    files = contents(out)
    assert files.keys() >= {"tokenizer.json", "provenance.json", "README.md", "losses.py"}
    assert not [name for name in files if name.endswith((".pt", ".bin"))]
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]


@pytest.mark.parametrize(
    ("name", "is_zip"), [("model.pt", False), ("model.pt", True), ("pytorch_model.bin", True)]
)
def test_a_pickle_with_code_is_refused_and_not_executed(
    reference, tmp_path, monkeypatch, name, is_zip
):
    # The library's switch for all programs at once must not open ours.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    weights = {**torch.load(reference / name, weights_only=True), "more": Trap(tmp_path / "trap")}
    torch.save(weights, reference / name, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(ValueError, match="nothing in them was executed"):
        import_reference(reference, tmp_path / "ours", skip_from=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["reference"]


@pytest.mark.parametrize(
    ("file", "lost", "words"),
    [
        ("model.pt", "c_head.1.output.dense.bias", "1.output.dense.bias"),
        ("pytorch_model.bin", "bert.embeddings.LayerNorm.bias", "LayerNorm.bias"),
        ("tokenizer.json", None, "no tokenizer.*--tokenizer"),
        ("model.pt", None, "plain encoder without a Condenser head"),
    ],
)
def test_a_missing_weight_or_file_is_named(reference, tmp_path, file, lost, words):
    if lost:
        weights = torch.load(reference / file, weights_only=True)
        del weights[lost]
        torch.save(weights, reference / file)
    else:
        (reference / file).unlink()
    with pytest.raises(ValueError, match=f"(?s){reference}.*{words}"):
        import_reference(reference, tmp_path / "ours", skip_from=1)
    with pytest.raises(FileNotFoundError, match="There is no folder owner/condenser: download"):
        import_reference("owner/condenser", tmp_path / "ours", skip_from=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["reference"]
