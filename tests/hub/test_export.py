"""What an export holds, and what others get who open it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, RobertaModel

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.hub.making import make_run, plain_vectors, run_isolated

KINDS = {"bert": ("BertModel", BertModel), "roberta": ("RobertaModel", RobertaModel)}
# Of different lengths, so that batches are padded.
SENTENCES = ["The glacier visits Oslo.", "Why?", "A violin measures the old orchard near Kyoto."]


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(kind: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{kind}_run")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_encoder(run, tmp_path_factory.mktemp("exports") / "encoder")


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_an_export_is_a_plain_encoder_of_its_own_model_type(exported: Path, kind: str) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == kind
    assert config["architectures"] == [KINDS[kind][0]]
    assert "auto_map" not in config
    names = set(contents(exported))
    assert {name for name in names if name.endswith(".py")} == {"evaluate_retrieval.py"}
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pkl", ".pickle"))}
    assert names >= {
        "README.md",
        "encoding_contract.json",
        "model.safetensors",
        "modules.json",
        "provenance.json",
        "tokenizer.json",
    }


def test_no_file_of_an_export_names_a_folder_of_this_machine(
    exported: Path, run: Path, bert_folder: Path
) -> None:
    for path in (run, exported.parent, bert_folder):
        holders = [name for name, data in contents(exported).items() if str(path).encode() in data]
        assert holders == []
    assert "local_files_only" not in (exported / "tokenizer_config.json").read_text()


def test_hidden_states_are_bit_identical_to_the_backbones(exported: Path, run: Path) -> None:
    backbone = CondenserForPreTraining.from_pretrained(run / "model").condenser.encoder.eval()
    plain = AutoModel.from_pretrained(exported).eval()
    batch = AutoTokenizer.from_pretrained(exported)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = backbone(**batch, output_hidden_states=True).hidden_states
        found = plain(**batch, output_hidden_states=True).hidden_states
    assert len(found) == len(expected) == 5
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_tokenizer_passes_no_segment_ids_and_cuts_only_when_told(exported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert list(tokenizer(SENTENCES[0])) == ["input_ids", "attention_mask"]
    assert tokenizer.model_max_length == 64
    saved = json.loads((exported / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_a_run_folder_and_its_model_give_the_same_export(bert_run: Path, tmp_path: Path) -> None:
    of_run = contents(export_encoder(bert_run, tmp_path / "a" / "encoder"))
    of_model = contents(export_encoder(bert_run / "model", tmp_path / "b" / "encoder"))
    assert of_run == of_model
    [stage] = json.loads(of_run["provenance.json"])
    assert stage["recipe"]["corpus"] == "owner/corpus"
    assert stage["run"]["steps"] == 11


def test_a_folder_with_something_else_is_refused_and_left_alone(
    bert_run: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not an earlier export"):
        export_encoder(bert_run, mine)
    with pytest.raises(ValueError, match="not an earlier export"):
        export_encoder(bert_run, mine / "notes.txt")
    assert contents(tmp_path) == {"mine/notes.txt": b"mine"}


def test_an_earlier_export_is_replaced_whole(bert_run: Path, tmp_path: Path) -> None:
    out = export_encoder(bert_run, tmp_path / "out")
    (out / "left_over.json").write_text("{}")
    export_encoder(bert_run, out, contract=EncodingContract(8, 16))
    assert EncodingContract.load(out) == EncodingContract(8, 16)
    assert not (out / "left_over.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_without_all_weights_is_refused(bert_run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name, data in contents(bert_run / "model").items():
        (broken / name).parent.mkdir(exist_ok=True)
        (broken / name).write_bytes(data)
    weights = load_file(broken / "model.safetensors")
    lost = "condenser.encoder.encoder.layer.2.output.dense.weight"
    del weights[lost]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights of the encoder.*layer\.2\.output"):
        export_encoder(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_default_lengths_fit_the_encoders_positions(
    run: Path, kind: str, tmp_path: Path
) -> None:
    """RoBERTa has two positions more than it can use; its tokenizer here says no limit."""
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    for name, data in contents(run / "model").items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(data)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["model_max_length"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    folder = export_encoder(tmp_path / "run", tmp_path / "out")
    assert EncodingContract.load(folder) == EncodingContract(64, 64)
    long_text = " ".join(["river"] * 200)
    vectors = SentenceTransformer(str(folder)).encode([long_text])
    np.testing.assert_allclose(vectors, plain_vectors(folder, [long_text]), rtol=0, atol=2e-6)


def test_an_encoder_without_a_pooler_gives_the_tanh_of_its_cls_vector(exported: Path) -> None:
    batch = AutoTokenizer.from_pretrained(exported)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = AutoModel.from_pretrained(exported)(**batch)
    expected = torch.tanh(output.last_hidden_state[:, 0])
    torch.testing.assert_close(output.pooler_output, expected, rtol=0, atol=1e-6)


def test_an_encoders_own_pooler_is_kept(wordpiece_tokenizer, tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=len(wordpiece_tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    torch.manual_seed(3)
    original = BertModel(config)
    original.save_pretrained(tmp_path / "original")
    wordpiece_tokenizer.save_pretrained(tmp_path / "original")
    folder = export_encoder(make_run(tmp_path / "original", tmp_path / "run"), tmp_path / "out")
    pooler = AutoModel.from_pretrained(folder).pooler.dense
    assert torch.equal(pooler.weight, original.pooler.dense.weight)
    assert torch.equal(pooler.bias, original.pooler.dense.bias)


OPEN = """
import json
import torch
from transformers import AutoModel, AutoTokenizer, BertModel, RobertaModel
from sentence_transformers import SentenceTransformer

sentences = json.loads(sys.argv[1])
found = []
for folder, plain_class in zip(sys.argv[2:], (BertModel, RobertaModel)):
    batch = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    vectors = {}
    for opener in (AutoModel, plain_class):
        model, info = opener.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        with torch.no_grad():
            vectors[opener.__name__] = model(**batch).last_hidden_state[:, 0].tolist()
    vectors["sentence-transformers"] = SentenceTransformer(folder).encode(sentences).tolist()
    found.append(vectors)
assert "modeling_condenser" not in sys.modules
print("RESULT" + json.dumps(found))
"""


@pytest.mark.slow
def test_an_export_gives_the_same_vectors_where_this_package_is_unknown(
    bert_run: Path, roberta_run: Path, tmp_path: Path
) -> None:
    folders, expected = [], []
    for run in (bert_run, roberta_run):
        folders.append(export_encoder(run, tmp_path / run.name))
        backbone = CondenserForPreTraining.from_pretrained(run / "model").condenser.eval()
        tokenizer = AutoTokenizer.from_pretrained(run / "model")
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            expected.append(backbone(**batch).last_hidden_state[:, 0].numpy())
    output = run_isolated(OPEN, json.dumps(SENTENCES), *folders, scratch=tmp_path / "elsewhere")
    found = json.loads(output.partition("RESULT")[2])
    assert [list(vectors) for vectors in found] == [
        ["AutoModel", "BertModel", "sentence-transformers"],
        ["AutoModel", "RobertaModel", "sentence-transformers"],
    ]
    for vectors, values in zip(found, expected, strict=True):
        for opened in vectors.values():
            np.testing.assert_allclose(np.array(opened), values, rtol=0, atol=2e-6)
