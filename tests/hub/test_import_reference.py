"""Importing checkpoints of the reference implementation, which are made here by hand.

The expected losses come from a Condenser put together of the library's masked LM and layers, with
the reference's names: no code of the package.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer, BertForMaskedLM, RobertaForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer

from hub_scripts.import_reference import run as run_command
from modeling_condenser import CondenserForPreTraining
from modeling_condenser.hub.import_reference import import_reference

KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (BertForMaskedLM, BertLayer),
    "roberta": (RobertaForMaskedLM, RobertaLayer),
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SKIP_FROM, N_HEAD_LAYERS = 1, 2
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"
# Which of our names a name of the reference's becomes.
RENAMED = {
    "bert": {"lm.bert.": "condenser.encoder.", "lm.cls.": "lm_head.", "c_head.": "head."},
    "roberta": {"lm.roberta.": "condenser.encoder.", "lm.lm_head.": "lm_head.", "c_head.": "head."},
}


class NaiveReference(nn.Module):
    """A masked LM `lm` and a head `c_head` beside it, every position projected."""

    def __init__(self, kind: str, encoder: Path, *, late_mlm: bool = True) -> None:
        super().__init__()
        masked_lm, layer = KINDS[kind]
        self.lm = masked_lm.from_pretrained(encoder)
        self.c_head = nn.ModuleList(layer(self.lm.config) for _ in range(N_HEAD_LAYERS))
        self.late_mlm = late_mlm
        with torch.no_grad():  # norms and biases too, which begin alike
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))

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
        loss = head_loss + out.loss if self.late_mlm else head_loss
        return {"loss": loss, "head_loss": head_loss, "late_loss": out.loss}

    def save(self, folder: Path, encoder: Path, *, is_co: bool = False) -> Path:
        """Write what the reference's trainer leaves, its pickled arguments turned into traps."""
        folder.mkdir()
        self.lm.config.save_pretrained(folder)
        weights = {name: value.clone() for name, value in self.lm.state_dict().items()}
        prefix = self.lm.base_model_prefix
        n_positions = self.lm.config.max_position_embeddings
        weights[f"{prefix}.embeddings.position_ids"] = torch.arange(n_positions)[None]
        torch.save(weights, folder / "pytorch_model.bin")
        extra = {f"c_head.{name}": value for name, value in self.c_head.state_dict().items()}
        if is_co:
            extra["co_target"] = torch.tensor([1, 0, 3, 2])
        torch.save(extra, folder / "model.pt")
        for name in TOKENIZER_FILES:
            shutil.copyfile(encoder / name, folder / name)
        for name in ("args.pt", "training_args.bin", "optimizer.pt", "scheduler.pt"):
            (folder / name).write_bytes(trap(folder / "executed"))
        return folder


class _Trap:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.sentinel), "w")


def trap(sentinel: Path) -> bytes:
    """A pickle that makes a file when it is opened."""
    return pickle.dumps({"c_head.0.output.dense.bias": _Trap(sentinel)}, protocol=2)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def encoder(kind: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{kind}_folder")


@pytest.fixture
def naive(kind: str, encoder: Path) -> NaiveReference:
    torch.manual_seed(1)
    return NaiveReference(kind, encoder).eval()


@pytest.fixture
def bert_reference(bert_folder: Path, tmp_path: Path) -> Path:
    """A whole reference checkpoint of a BERT, for the tests to damage."""
    torch.manual_seed(1)
    return NaiveReference("bert", bert_folder).save(tmp_path / "reference", bert_folder)


@pytest.fixture
def batch(encoder: Path) -> dict[str, torch.Tensor]:
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


def ours(name: str, kind: str) -> str:
    for theirs, renamed in RENAMED[kind].items():
        if name.startswith(theirs):
            return renamed + name.removeprefix(theirs)
    raise KeyError(name)


def change(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    weights = torch.load(file, weights_only=True)
    edit(weights)
    torch.save(weights, file)


@pytest.mark.parametrize("is_co", [False, True], ids=["condenser", "cocondenser"])
def test_an_import_has_the_losses_and_all_the_gradients_of_the_reference(
    kind: str,
    encoder: Path,
    naive: NaiveReference,
    batch: dict[str, torch.Tensor],
    tmp_path: Path,
    is_co: bool,
) -> None:
    folder = naive.save(tmp_path / "reference", encoder, is_co=is_co)
    out = import_reference(folder, tmp_path / "ours", skip_from=SKIP_FROM)
    model = CondenserForPreTraining.from_pretrained(out).eval()
    assert (model.config.n_head_layers, model.config.skip_from) == (N_HEAD_LAYERS, SKIP_FROM)
    for name, value in naive.state_dict().items():
        assert torch.equal(model.state_dict()[ours(name, kind)], value), name
    (stage,) = json.loads((out / "provenance.json").read_text())
    left_out = [*(["co_target"] if is_co else []), f"{kind}.embeddings.position_ids"]
    assert stage["run"]["left_out"] == sorted(left_out)

    expected, got = naive(batch), model(**batch)
    for name, loss in expected.items():
        # Sums in float32 are rounded otherwise on other processors, and losses are above 10.
        torch.testing.assert_close(got[name], loss, atol=0, rtol=1e-6)
    expected["loss"].backward()
    got.loss.backward()
    theirs = {ours(name, kind): p.grad for name, p in naive.named_parameters()}
    gradients = {n: p.grad for n, p in model.named_parameters() if ".pooler." not in n}
    assert gradients.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert gradient is not None and gradient.abs().sum() > 0, name
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-5, msg=name)


def test_an_import_holds_a_whole_checkpoint_and_names_no_folder_of_this_machine(
    bert_reference: Path, bert_folder: Path, tmp_path: Path
) -> None:
    out = import_reference(bert_reference, tmp_path / "ours", skip_from=SKIP_FROM)
    assert {file.name for file in out.iterdir()} >= {
        *("config.json", "model.safetensors", "tokenizer.json", "provenance.json", "README.md"),
        *("modeling_condenser.py", "configuration_condenser.py"),
    }
    assert not list(out.glob("*.pt")) + list(out.glob("*.bin"))
    pooler = CondenserForPreTraining.from_pretrained(out).condenser.encoder.pooler.dense
    assert torch.equal(pooler.weight, torch.eye(32)) and not pooler.bias.any()
    files = [file for file in out.rglob("*") if file.is_file()]
    assert not [file for file in files if str(tmp_path).encode() in file.read_bytes()]
    text = "The glacier visits Oslo."
    expected = AutoTokenizer.from_pretrained(bert_folder)(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == expected


def test_a_backbone_in_safetensors_is_read_before_a_pickled_one(
    bert_folder: Path, tmp_path: Path
) -> None:
    naive = NaiveReference("bert", bert_folder)
    folder = naive.save(tmp_path / "reference", bert_folder)
    naive.lm.save_pretrained(folder)  # current libraries write safetensors
    (folder / "pytorch_model.bin").write_bytes(trap(tmp_path / "executed"))
    out = import_reference(folder, tmp_path / "ours", skip_from=1)
    assert not (tmp_path / "executed").exists()
    model = CondenserForPreTraining.from_pretrained(out)
    for name, value in naive.state_dict().items():
        assert torch.equal(model.state_dict()[ours(name, "bert")], value), name


def test_half_precision_becomes_single(bert_reference: Path, tmp_path: Path) -> None:
    def halve(weights: dict[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            weights[name] = value.half() if value.is_floating_point() else value

    for name in ("model.pt", "pytorch_model.bin"):
        change(bert_reference / name, halve)
    config = json.loads((bert_reference / "config.json").read_text())
    config.pop("dtype", None)
    config["torch_dtype"] = "float16"  # as the libraries of that time called it
    (bert_reference / "config.json").write_text(json.dumps(config))
    halved = torch.load(bert_reference / "model.pt", weights_only=True)
    out = import_reference(bert_reference, tmp_path / "ours", skip_from=1)
    got = load_file(out / "model.safetensors")
    assert {value.dtype for value in got.values()} == {torch.float32}
    for name, value in halved.items():
        assert torch.equal(got[name.removeprefix("c_")], value.float())


@pytest.mark.parametrize(
    ("name", "is_zip"), [("model.pt", False), ("model.pt", True), ("pytorch_model.bin", True)]
)
def test_a_pickle_with_code_is_refused_and_not_executed(
    bert_reference: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_zip: bool,
) -> None:
    # The library's switch for all programs at once must not open ours.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    sentinel, file = tmp_path / "executed", bert_reference / name
    if is_zip:
        weights = torch.load(file, weights_only=True)
        torch.save({**weights, "more": _Trap(sentinel)}, file)
    else:
        file.write_bytes(trap(sentinel))
    with pytest.raises(ValueError, match=f"{name} cannot be read .*nothing in it was executed"):
        import_reference(bert_reference, tmp_path / "ours", skip_from=1)
    assert not sentinel.exists()
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("file", "edit", "words"),
    [
        ("model.pt", lambda w: w.pop("c_head.1.output.dense.bias"), "Missing.*head.1.output.dense"),
        ("model.pt", lambda w: w.update({"mlm_head.x": torch.ones(1)}), "Unexpected.*mlm_head.x"),
        ("model.pt", lambda w: [w.pop(name) for name in list(w)], "no Condenser head"),
        ("pytorch_model.bin", lambda w: w.update({WORDS: w[WORDS][:-1]}), "size mismatch"),
        ("pytorch_model.bin", lambda w: w.update({DECODER: w[WORDS] + 1}), "tie_word_embeddings"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    bert_reference: Path,
    tmp_path: Path,
    file: str,
    edit: Callable[[dict[str, Any]], Any],
    words: str,
) -> None:
    change(bert_reference / file, edit)
    with pytest.raises(ValueError, match=f"(?s){words}") as caught:
        import_reference(bert_reference, tmp_path / "ours", skip_from=1)
    assert str(bert_reference) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["reference"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.pt", None, "plain encoder without a Condenser head"),
        ("pytorch_model.bin", None, "is no reference checkpoint"),
        ("tokenizer.json", None, "no tokenizer.*--tokenizer"),
        ("config.json", '{"model_type": "albert"}', "type 'albert'"),
        ("model.safetensors", "", "model.safetensors cannot be read"),
    ],
)
def test_a_file_that_is_missing_or_of_another_kind_is_named(
    bert_reference: Path, tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    if content is None:
        (bert_reference / name).unlink()
    else:
        (bert_reference / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        import_reference(bert_reference, tmp_path / "ours", skip_from=1)


def test_the_files_of_an_old_tokenizer_are_enough(
    bert_reference: Path, bert_folder: Path, tmp_path: Path
) -> None:
    """The reference saves a slow tokenizer: vocab.txt and its settings."""
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    for name in TOKENIZER_FILES:
        (bert_reference / name).unlink()
    (bert_reference / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in vocabulary))
    settings = {"do_lower_case": True, "model_max_length": 64, "tokenizer_class": "BertTokenizer"}
    (bert_reference / "tokenizer_config.json").write_text(json.dumps(settings))
    out = import_reference(bert_reference, tmp_path / "ours", skip_from=1)
    imported = AutoTokenizer.from_pretrained(out)
    for text in ("The glacier visits Zürich.", "Don't re-read the café's résumé!"):
        assert imported(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert imported.model_max_length == 64


def test_the_command_says_what_was_read_and_what_comes_next(
    bert_reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ours"
    run_command([str(bert_reference), str(out), "--skip_from", "3", "--late_mlm", "false"])
    # 4 layers of 16 tensors, 5 of the embeddings, 7 of the LM head, and the positions.
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint: {out}",
        "  backbone: 77 tensors of pytorch_model.bin",
        "  head: 32 tensors of model.pt",
        "  left out: bert.embeddings.position_ids",
        f"next: condenser export {out} ENCODER",
    ]
    config = CondenserForPreTraining.from_pretrained(out).config
    assert (config.skip_from, config.late_mlm) == (3, False)
