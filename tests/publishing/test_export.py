"""What an export holds, and which vectors each way of opening it gives."""

import json
import re
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hub_scripts.main import main
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import EncodingContract, find_model_folder
from modeling_condenser.files.run_folder import DATA
from modeling_condenser.publishing.card import PLACEHOLDER, write_card
from modeling_condenser.publishing.export import export
from modeling_condenser.publishing.provenance import (
    EvaluationResult,
    add_result,
    read_provenance,
    read_results,
    write_provenance,
)
from modeling_condenser.publishing.push import push
from tests.encoding.making import change_json
from tests.publishing.loopback_hub import contents
from tests.publishing.making import make_run, plain_vectors

CLASSES = {"bert": "BertModel", "roberta": "RobertaModel"}
# One batch of them is padded; the last but one is cut, and the last is empty.
TEXTS = [
    "The glacier visits Oslo.",
    "Why?",
    "A violin measures the naïve orchard near Kyoto.",
    "In 1987, the museum's poet cost $12.50; nobody knew why! " * 12,
    "",
]
QUERY, TITLE, TEXT = "what is the capital of Norway", "Oslo", "It is the capital of Norway."  # card
CONTRACTS = {
    "dot": EncodingContract(24, 24),
    "cosine": EncodingContract(8, 16, similarity="cosine", title_separator=' "in" '),
    "mean": EncodingContract(16, 12, pooling="mean", query_prompt="the ", passage_prompt="a "),
    "max": EncodingContract(24, 32, pooling="max", similarity="euclidean", token_type_ids=True),
}


@pytest.fixture(scope="module", params=list(CLASSES))
def run(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(checkpoint=run, out=tmp_path_factory.mktemp("exports") / "encoder")


@pytest.fixture(scope="module")
def exports(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("exports")
    return {
        name: export(checkpoint=bert_run, out=place / name, contract=asdict(contract))
        for name, contract in CONTRACTS.items()
    }


def test_an_export_is_a_plain_encoder_without_folders_of_this_machine(exported, run, bert_folder):
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == [CLASSES[config["model_type"]]]
    assert "auto_map" not in config
    made = exported.with_name("made")
    made.mkdir()
    assert exported.stat().st_mode == made.stat().st_mode  # not private, as temporary folders are
    files = contents(exported)
    assert [name for name in files if name.endswith((".py", ".bin"))] == ["evaluate_retrieval.py"]
    assert files.keys() >= {"README.md", "modules.json", "model.safetensors"}
    [stage] = json.loads(files["provenance.json"])
    assert (stage["recipe"]["corpus"], stage["run"]["steps"]) == ("owner/corpus", 11)
    for path in (run, exported.parent, bert_folder):
        assert not [name for name, data in files.items() if str(path).encode() in data]
    assert b"local_files_only" not in files["tokenizer_config.json"]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert list(tokenizer(TEXTS[0])) == ["input_ids", "attention_mask"]
    saved = json.loads(files["tokenizer.json"])
    assert saved["truncation"] is None and saved["padding"] is None


def test_only_an_earlier_export_is_replaced_and_the_text_on_its_card_kept(
    bert_run, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    for similarity, is_kept in (("cosine", False), ("dot", False), ("dot", True)):
        export(checkpoint=bert_run, out=out, contract={"similarity": similarity})
        assert bool(read_results(out)) == is_kept
        add_result(out, EvaluationResult("set", "test", 100, 5, {"MRR@10": 0.5}))
    card = out / "README.md"
    card.write_text(f"{card.read_text()}\nMy own words.\n")
    export(checkpoint=bert_run, out=out)
    assert "My own words." in card.read_text()
    (out / "NOTICE").write_text("mine")

    def work(*_: Any) -> None:
        raise AssertionError("the folder is checked before the work")

    monkeypatch.setattr("modeling_condenser.publishing.export._write_backbone", work)
    with pytest.raises(ValueError, match="not only an earlier export of this run.*It holds NOTICE"):
        export(checkpoint=bert_run, out=out)
    assert (out / "NOTICE").read_text() == "mine"
    [stage] = read_provenance(out)
    for stages in ([replace(stage, run={**stage.run, DATA: "other"})], [stage, stage]):
        write_provenance(out, stages)  # of another run, and of a later stage
        with pytest.raises(ValueError, match="is not empty and not only an earlier export"):
            export(checkpoint=bert_run, out=out)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    for folder in (out, mine):  # a retriever, and files of the user
        before = contents(folder)
        with pytest.raises(ValueError, match="is not empty and not only an earlier export"):
            export(checkpoint=bert_run, out=folder)
        assert contents(folder) == before
    with pytest.raises(ValueError, match="is not a pre-training checkpoint, so there is nothing"):
        export(checkpoint=out, out=tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_code_that_a_start_names_is_named_by_no_file_that_is_written(
    bert_folder, exported, tmp_path, monkeypatch
):
    code = {"AutoModel": "owner/code--modeling.Encoder"}
    start = Path(shutil.copytree(bert_folder, tmp_path / "start"))
    copied = Path(shutil.copytree(exported, tmp_path / "other"))
    for folder in (start, copied):
        for name in ("config.json", "tokenizer_config.json"):
            change_json(folder / name, auto_map=code)
    run = make_run(start, tmp_path / "run")
    config = json.loads((run / "model" / "config.json").read_text())
    assert "auto_map" not in config["encoder_config"]
    monkeypatch.setattr("modeling_condenser.publishing.export.add_int8", lambda _: None)
    monkeypatch.setattr("modeling_condenser.publishing.push.find_opening_error", lambda _: None)
    sent: list[dict[str, bytes]] = []

    def keep(folder: Path, *_: Any, **__: Any) -> None:
        sent.append(contents(folder))

    monkeypatch.setattr("modeling_condenser.publishing.push.commit_folder", keep)
    push(folder=copied, name="owner/name", license="mit", replace_card=True)
    for made in (
        contents(export(checkpoint=run, out=tmp_path / "out")),
        contents(export(checkpoint=copied, out=tmp_path / "copy", onnx="int8")),
        *sent,
    ):
        assert [name for name, content in made.items() if b"auto_map" in content] == []
    assert b"auto_map" in contents(copied)["config.json"]


def test_an_int8_copy_of_a_plain_encoder_keeps_its_card(tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_condenser.publishing.export.add_int8", lambda _: None)
    out = export(checkpoint="starter", out=tmp_path / "out", onnx="int8")
    assert contents(out) == contents(find_model_folder("starter"))


def test_a_record_of_another_tool_is_left_out(bert_run, tmp_path, caplog):
    run = Path(shutil.copytree(bert_run, tmp_path / "run"))
    (run / "model" / "provenance.json").write_text('{"source": "of another tool"}')
    assert read_provenance(export(checkpoint=str(run), out=str(tmp_path / "encoder"))) == []
    assert caplog.text.count("are not recorded") == 1


def test_a_wrong_field_of_the_contract_is_refused(bert_run, tmp_path):
    for contract, message in (
        ({"poolng": "mean"}, "There is no field 'poolng'. Did you mean 'pooling'"),
        ({"query_max_length": "long"}, "query_max_length is 'long', of type str; expected int"),
    ):
        with pytest.raises(ValueError, match=message):
            export(checkpoint=bert_run, out=tmp_path / "out", contract=contract)
    assert not any(tmp_path.iterdir())


def test_a_contract_that_cannot_be_kept_is_refused(bert_run, exported, tmp_path):
    for checkpoint, contract, message in (
        (bert_run, {"passage_max_length": 65}, "passage_max_length is 65, .* for 64 tokens"),
        (exported, {"pooling": "mean"}, "contract is for pre-training checkpoints"),
    ):
        with pytest.raises(ValueError, match=message):
            export(checkpoint=checkpoint, out=tmp_path / "out", contract=contract, onnx="int8")
    assert not any(tmp_path.iterdir())


def test_the_text_on_the_card_of_an_int8_copy_is_kept(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_condenser.publishing.export.add_int8", lambda _: None)
    settings = {"checkpoint": exported, "out": tmp_path / "out", "onnx": "int8"}
    card = export(**settings) / "README.md"
    card.write_text(f"{card.read_text()}\nMy own words.\n")
    export(**settings)
    assert card.read_text().endswith("\nMy own words.\n")


def test_a_checkpoint_without_all_weights_is_refused(bert_run, tmp_path):
    broken = Path(shutil.copytree(bert_run / "model", tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    del weights["condenser.encoder.encoder.layer.2.output.dense.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing.*layer\.2\.output"):
        export(checkpoint=broken, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_default_lengths_fit_the_encoders_positions(run, tmp_path):
    """RoBERTa has two positions more than it can use; its tokenizer here says no limit."""
    model = Path(shutil.copytree(run / "model", tmp_path / "run" / "model"))
    change_json(model / "tokenizer_config.json", model_max_length=None)
    folder = export(checkpoint=tmp_path / "run", out=tmp_path / "out")
    assert EncodingContract.load(folder) == EncodingContract(64, 64)


def assert_close(vectors: Any, expected: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6 * scale)


def expected_vectors(
    folder: Path, contract: EncodingContract, queries: list[str], passages: list[tuple[str, str]]
) -> list[np.ndarray]:
    """Of queries and passages, one text at a time by the plain model, as the contract says."""
    found = [
        plain_vectors(folder, texts, max_length=length, pooling=contract.pooling)
        for texts, length in (
            ([contract.query(query) for query in queries], contract.query_max_length),
            ([contract.passage(*passage) for passage in passages], contract.passage_max_length),
        )
    ]
    if contract.similarity == "cosine":
        found = [torch.nn.functional.normalize(vectors) for vectors in found]
    return [vectors.numpy() for vectors in found]


def similarities(contract: EncodingContract, queries: np.ndarray, passages: np.ndarray) -> Any:
    if contract.similarity == "euclidean":
        return -np.linalg.norm(queries[:, None] - passages, axis=2)
    return queries @ passages.T


@pytest.mark.parametrize("name", CONTRACTS)
def test_all_libraries_give_the_vectors_of_the_contract(name, exports):
    folder, contract = exports[name], CONTRACTS[name]
    queries, passages = expected_vectors(folder, contract, TEXTS, [("", text) for text in TEXTS])
    model = SentenceTransformer(str(folder), trust_remote_code=False)
    retriever = Retriever(folder)
    rows = Dataset.from_dict({"title": [""] * len(TEXTS), "text": TEXTS})
    assert_close(retriever.encode_queries(TEXTS), queries)
    assert_close(model.encode_query(TEXTS, batch_size=4), queries)
    assert_close(retriever.encode_passages(rows), passages)
    assert_close(model.encode_document(TEXTS, batch_size=4), passages)
    scores = model.similarity(queries, passages).numpy()
    assert_close(scores, similarities(contract, queries, passages))


def test_a_pipeline_and_a_classifier_open_an_export(exported):
    found = pipeline("feature-extraction", model=str(exported))(TEXTS[0])
    assert_close(np.array(found[0][0]), plain_vectors(exported, TEXTS[:1])[0].numpy())
    kind = AutoModelForSequenceClassification
    _, info = kind.from_pretrained(exported, num_labels=2, output_loading_info=True)
    assert not [name for name in info["missing_keys"] if not name.startswith("classifier")]


def run_snippets(folder: Path) -> list[dict[str, Any]]:
    """The variables that each block of Python on a card leaves."""
    text = (folder / "README.md").read_text()
    left: list[dict[str, Any]] = []
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        assert "modeling_condenser" not in block
        left.append({})
        exec(block.replace(PLACEHOLDER, str(folder)), left[-1])
    return left


@pytest.mark.parametrize("name", CONTRACTS)
def test_the_cards_snippets_encode_as_the_contract_says(name, exports, capsys):
    contract = CONTRACTS[name]
    queries, passages = expected_vectors(exports[name], contract, [QUERY], [(TITLE, TEXT)])
    [[score]] = similarities(contract, queries, passages)
    left = run_snippets(exports[name])
    for names in left[:2]:  # with sentence-transformers, and with transformers alone
        assert_close(names["queries"], queries)
        assert_close(names["passages"], passages)
    printed = re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", capsys.readouterr().out)
    assert [float(number) for number in printed] == pytest.approx([score] * 2, rel=1e-3)
    tells_segments = "`token_type_ids`" in (exports[name] / "README.md").read_text()
    assert len(left) == 2 and tells_segments == (not contract.token_type_ids)


def test_a_checkpoints_snippets_open_all_its_parts(bert_run, tmp_path):
    checkpoint = Path(shutil.copytree(bert_run / "model", tmp_path / "my-checkpoint"))
    write_card(checkpoint)
    [names] = run_snippets(checkpoint)
    opened = [type(names[part]).__name__ for part in ("encoder", "language_model", "condenser")]
    assert opened == ["CondenserModel", "CondenserForMaskedLM", "CondenserForPreTraining"]


@pytest.mark.slow
def test_the_cards_commands_run(exports, collection, tmp_path, monkeypatch):
    encoder = Path(shutil.copytree(exports["dot"], tmp_path / "encoder"))
    monkeypatch.chdir(tmp_path)

    def run_commands(folder: Path, *more: str) -> None:
        text = (folder / "README.md").read_text()
        [block] = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
        block = block.replace(PLACEHOLDER, str(folder)).replace("COLLECTION", str(collection))
        for line in block.splitlines():
            if line.startswith("condenser"):
                assert main([*shlex.split(line)[1:], *more]) == 0

    short = ("--max_steps", "2", "--query_max_length", "16", "--passage_max_length", "32")
    run_commands(encoder, *short)  # fine-tunes it
    retriever = tmp_path / "runs" / "retriever" / "model"
    run_commands(retriever)
    assert main(["evaluate", str(retriever), str(collection), "--card"]) == 0
    assert "| MRR@10 |" in (retriever / "README.md").read_text()
