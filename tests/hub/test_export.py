"""What an export holds, and which vectors each way of opening it gives."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    pipeline,
)

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.hub.loopback_hub import contents
from tests.hub.making import make_run, plain_vectors
from tests.hub.test_evaluate_retrieval import open_script

CLASSES = {"bert": "BertModel", "roberta": "RobertaModel"}
# One batch of them is padded; the last but one is cut, and the last is empty.
TEXTS = [
    "The glacier visits Oslo.",
    "Why?",
    "A violin measures the naïve orchard near Kyoto.",
    "In 1987, the museum's poet cost $12.50; nobody knew why! " * 12,
    "",
]


@pytest.fixture(scope="module", params=list(CLASSES))
def run(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_encoder(run, tmp_path_factory.mktemp("exports") / "encoder")


def test_an_export_is_a_plain_encoder_without_folders_of_this_machine(
    exported: Path, run: Path, bert_folder: Path
) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == [CLASSES[config["model_type"]]]
    assert "auto_map" not in config
    files = contents(exported)
    assert {name for name in files if name.endswith(".py")} == {"evaluate_retrieval.py"}
    assert not {name for name in files if name.endswith((".bin", ".pt", ".pkl", ".pickle"))}
    assert files.keys() >= {
        *("README.md", "encoding_contract.json", "model.safetensors", "modules.json"),
        *("provenance.json", "tokenizer.json"),
    }
    [stage] = json.loads(files["provenance.json"])
    assert (stage["recipe"]["corpus"], stage["run"]["steps"]) == ("owner/corpus", 11)
    for path in (run, exported.parent, bert_folder):
        assert not [name for name, data in files.items() if str(path).encode() in data]
    assert b"local_files_only" not in files["tokenizer_config.json"]


def test_hidden_states_are_bit_identical_to_the_backbones(exported: Path, run: Path) -> None:
    backbone = CondenserForPreTraining.from_pretrained(run / "model").condenser.encoder.eval()
    plain = AutoModel.from_pretrained(exported).eval()
    batch = AutoTokenizer.from_pretrained(exported)(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = backbone(**batch, output_hidden_states=True).hidden_states
        found = plain(**batch, output_hidden_states=True)
    assert len(found.hidden_states) == len(expected) == 5
    for hidden, other in zip(found.hidden_states, expected, strict=True):
        assert torch.equal(hidden, other)
    # The encoder had no pooler, so it became the identity.
    cls = torch.tanh(found.last_hidden_state[:, 0])
    torch.testing.assert_close(found.pooler_output, cls, rtol=0, atol=1e-6)


def test_the_tokenizer_passes_no_segment_ids_and_cuts_only_when_told(exported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert list(tokenizer(TEXTS[0])) == ["input_ids", "attention_mask"]
    assert tokenizer.model_max_length == 64
    saved = json.loads((exported / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_an_earlier_export_is_replaced_and_another_folder_refused(
    bert_run: Path, tmp_path: Path
) -> None:
    out = export_encoder(bert_run, tmp_path / "out")
    (out / "left_over.json").write_text("{}")
    export_encoder(bert_run, out, contract=EncodingContract(8, 16))
    assert EncodingContract.load(out) == EncodingContract(8, 16)
    assert not (out / "left_over.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "evaluate_retrieval.py").unlink()
    before = contents(out)
    with pytest.raises(ValueError, match="not an earlier export"):
        export_encoder(bert_run, out)
    assert contents(out) == before


def test_a_checkpoint_without_all_weights_is_refused(bert_run: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(bert_run / "model", tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    del weights["condenser.encoder.encoder.layer.2.output.dense.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing.*layer\.2\.output"):
        export_encoder(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_default_lengths_fit_the_encoders_positions(run: Path, tmp_path: Path) -> None:
    """RoBERTa has two positions more than it can use; its tokenizer here says no limit."""
    model = Path(shutil.copytree(run / "model", tmp_path / "run" / "model"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["model_max_length"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    folder = export_encoder(tmp_path / "run", tmp_path / "out")
    assert EncodingContract.load(folder) == EncodingContract(64, 64)


def test_an_encoders_own_pooler_is_kept(bert_folder: Path, tmp_path: Path) -> None:
    original = BertModel(BertConfig.from_pretrained(bert_folder))
    original.save_pretrained(tmp_path / "original")
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "original")
    folder = export_encoder(make_run(tmp_path / "original", tmp_path / "run"), tmp_path / "out")
    pooler = AutoModel.from_pretrained(folder).pooler.dense
    assert torch.equal(pooler.weight, original.pooler.dense.weight)
    assert torch.equal(pooler.bias, original.pooler.dense.bias)


def assert_close(vectors: np.ndarray, expected: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize(
    "contract",
    [
        EncodingContract(8, 32, query_prompt="query: ", passage_prompt="passage: "),
        EncodingContract(32, 32, similarity="cosine"),
    ],
    ids=["dot", "cosine"],
)
def test_all_libraries_give_the_vectors_of_transformers(
    run: Path, contract: EncodingContract, tmp_path: Path
) -> None:
    folder = export_encoder(run, tmp_path / "encoder", contract=contract)
    queries = plain_vectors(
        folder, [contract.query(text) for text in TEXTS], max_length=contract.query_max_length
    )
    passages = plain_vectors(folder, [contract.passage("", text) for text in TEXTS], max_length=32)
    if contract.similarity == "cosine":
        queries, passages = map(torch.nn.functional.normalize, (queries, passages))

    model = SentenceTransformer(str(folder), trust_remote_code=False)
    assert isinstance(model[1], Pooling) and model[1].pooling_mode == "cls"
    assert [type(m) for m in model][2:] == [Normalize] * (contract.similarity == "cosine")
    assert model.similarity_fn_name == contract.similarity
    scores = model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)).numpy()
    assert_close(scores, (queries @ passages.T).numpy())

    retriever, script = Retriever(folder), open_script(folder).Encoder(folder)
    rows = Dataset.from_dict({"title": [""] * len(TEXTS), "text": TEXTS})
    for vectors in (
        retriever.encode_queries(TEXTS),
        script.encode_queries(TEXTS),
        model.encode_query(TEXTS, batch_size=4),
    ):
        assert_close(vectors, queries.numpy())
    for vectors in (
        retriever.encode_passages(rows),
        script.encode_passages([""] * len(TEXTS), TEXTS),
        model.encode_document(TEXTS, batch_size=4),
    ):
        assert_close(vectors, passages.numpy())


def test_a_pipeline_and_a_classifier_open_an_export(exported: Path) -> None:
    extract = pipeline("feature-extraction", model=str(exported))
    cut = {"truncation": True, "max_length": 32}
    found = extract(TEXTS, batch_size=4, tokenize_kwargs=cut)
    vectors = np.array([text[0][0] for text in found], dtype=np.float32)
    assert_close(vectors, plain_vectors(exported, TEXTS, max_length=32).numpy())
    classifier = AutoModelForSequenceClassification.from_pretrained(exported, num_labels=2)
    loaded = dict(classifier.base_model.named_parameters())
    expected = dict(AutoModel.from_pretrained(exported).named_parameters())
    assert expected.keys() - loaded.keys() <= {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.items())
