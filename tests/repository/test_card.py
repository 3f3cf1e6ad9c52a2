"""Model cards: what they say, and that what they say to run does run."""

import re
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.card import ReportedResult, write_card
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import Stage, write_provenance
from tests.publishing.making import plain_vectors

RESULTS = [
    ReportedResult("nfcorpus", "test", "MRR@10", 0.51239, "bm25", 0.40111, 0.00319),
    ReportedResult("nfcorpus", "test", "R@100", 0.25, "bm25", 0.5, 1.0),
]


def make_folder(folder: Path, *stages: Stage) -> Path:
    folder.mkdir(parents=True)
    EncodingContract(32, 128).save(folder)
    write_provenance(folder, stages)
    return folder


def pretraining(encoder: str, objective: str = "condenser") -> Stage:
    return Stage("Pre-training", {"encoder": encoder}, {"objective": objective, "seed": 4})


def test_the_model_index_holds_the_values(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-encoder", pretraining("owner/name"))
    write_card(folder, results=RESULTS, commands=["condenser evaluate x y"])
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == "my-encoder"
    assert card.data.base_model == "owner/name"
    assert card.data.library_name == "sentence-transformers"
    found = [
        (r.dataset_name, r.dataset_split, r.metric_type, r.metric_value)
        for r in card.data.eval_results
    ]
    assert found == [("nfcorpus", "test", "MRR@10", 0.5124), ("nfcorpus", "test", "R@100", 0.25)]
    assert "| nfcorpus | test | MRR@10 | 0.5124 | bm25 | 0.4011 | 0.0032 |" in card.text
    assert "```bash\ncondenser evaluate x y\n```" in card.text
    assert [file.name for file in folder.glob(".*")] == []


def test_a_figure_compared_twice_stands_in_the_model_index_once(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    other = ReportedResult("nfcorpus", "test", "MRR@10", 0.51239, "dpr", 0.45, 0.2)
    write_card(folder, results=[*RESULTS, other])
    card = ModelCard.load(folder / "README.md")
    assert [r.metric_type for r in card.data.eval_results] == ["MRR@10", "R@100"]
    assert "| bm25 | 0.4011 | 0.0032 |" in card.text
    assert "| dpr | 0.4500 | 0.2000 |" in card.text


def test_a_model_that_was_not_evaluated_says_so(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining("owner/name"))
    write_card(folder)
    card = ModelCard.load(folder / "README.md")
    assert "This model has not been evaluated." in card.text
    assert card.data.eval_results is None


@pytest.mark.parametrize("encoder", ["local: start", "bert-base-uncased"])
def test_only_a_hub_name_with_an_owner_is_a_base_model(tmp_path: Path, encoder: str) -> None:
    folder = make_folder(tmp_path / "x", pretraining(encoder))
    write_card(folder)
    assert ModelCard.load(folder / "README.md").data.base_model is None


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ([], "A plain encoder; how it was trained is not recorded."),
        ([pretraining("a/b", "mlm")], "A plain encoder, trained with plain masked language"),
        ([pretraining("a/b")], "A plain encoder, condensed for dense retrieval"),
        (
            [pretraining("a/b"), Stage("Fine-tuning", {"split": "train"}, {"steps": 3})],
            "A dense retriever, fine-tuned from an encoder that was condensed",
        ),
    ],
)
def test_the_summary_follows_from_the_stages(
    tmp_path: Path, stages: list[Stage], sentence: str
) -> None:
    folder = make_folder(tmp_path / "x", *stages)
    write_card(folder)
    text = ModelCard.load(folder / "README.md").text
    assert sentence in text
    assert [
        line for line in text.splitlines() if line in ("## Pre-training", "## Fine-tuning")
    ] == [f"## {stage.name}" for stage in stages]


def test_the_card_of_a_run_has_the_runs_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-run" / "model")
    write_card(folder)
    assert "# my-run\n" in (folder / "README.md").read_text()


def test_no_local_path_stands_on_the_card(
    bert_run: Path, bert_folder: Path, tmp_path: Path
) -> None:
    folder = export_encoder(bert_run, tmp_path / "encoder")
    text = (folder / "README.md").read_text()
    assert "encoder: 'local: " in text  # the recipe is there
    for path in (tmp_path, bert_run, bert_folder, Path.home(), Path.cwd()):
        assert str(path) not in text
    assert "base_model" not in text


@pytest.mark.parametrize(
    ("similarity", "pooling", "prompts"),
    [
        ("dot", "cls", {}),
        ("cosine", "cls", {}),
        ("cosine", "mean", {"query_prompt": "the ", "passage_prompt": "a "}),
        ("dot", "max", {}),
    ],
)
def test_the_cards_code_runs(
    bert_run: Path, tmp_path: Path, similarity: str, pooling: str, prompts: dict[str, str]
) -> None:
    contract = EncodingContract(8, 16, similarity=similarity, pooling=pooling, **prompts)
    folder = export_encoder(bert_run, tmp_path / "encoder", contract=contract)
    text = (folder / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    results: list[dict] = [{}, {}]
    for block, names in zip(blocks, results, strict=True):
        exec(block.replace("FOLDER_OR_HUB_NAME", str(folder)), names)

    texts = [contract.query("what does it do"), contract.passage("", "It encodes.")]
    vectors = plain_vectors(folder, texts, pooling=pooling).numpy()
    if similarity == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sentence_transformers, transformers = results
    np.testing.assert_allclose(
        sentence_transformers["scores"], [[vectors[0] @ vectors[1]]], rtol=1e-5
    )
    found = transformers["vectors"].detach().numpy()
    np.testing.assert_allclose(found, vectors[1:], rtol=0, atol=2e-6)


def test_the_card_states_pooling_and_prompts(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    EncodingContract(8, 16, pooling="mean", query_prompt="query: ").save(folder)
    write_card(folder)
    text = (folder / "README.md").read_text()
    assert "| vector | mean of the last hidden state over the text's tokens |" in text
    assert "| before a query | 'query: ' |" in text
    assert "before a passage" not in text
