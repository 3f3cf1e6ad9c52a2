"""Model cards: what they say of stages and results, and whose words they keep."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from modeling_condenser.files.models import STARTER_FOLDER, STARTER_TITLE
from modeling_condenser.files.run_folder import read_json, write_json
from modeling_condenser.publishing.card import PLACEHOLDER, cite, read_start_metadata, write_card
from modeling_condenser.publishing.provenance import (
    ADAPTATION,
    FINETUNING,
    PRETRAINING,
    EvaluationResult,
    Stage,
    add_result,
    describe_stage,
    read_provenance,
    write_provenance,
)
from tests.encoding.making import change_json

LOG = [{"step": i, "loss": 11 - i / 5, "late_loss": 5 - i / 10} for i in range(1, 5)]
HUB = {"encoder": "owner/name", "corpus": "owner/texts"}


def pretraining(objective: str = "condenser", **recipe: Any) -> Stage:
    return describe_stage(PRETRAINING, {**HUB, **recipe}, {"objective": objective}, LOG)


def finetuning(objective: str = "contrastive", **recipe: Any) -> Stage:
    return describe_stage(FINETUNING, {"encoder": "./x", **recipe}, {"objective": objective}, [])


@pytest.fixture
def write(exported: Path, tmp_path: Path):
    """Writes the card of an encoder that some stages made, and reads it."""

    def write(*stages: Stage, name: str | None = None, **metadata: Any) -> ModelCard:
        folder = tmp_path / "encoder"
        if not folder.exists():
            shutil.copytree(exported, folder)
        (folder / "README.md").unlink(missing_ok=True)
        write_provenance(folder, stages)
        write_card(folder, name=name, metadata=metadata)
        return ModelCard.load(folder / "README.md")

    return write


def test_a_retrievers_card_states_its_stages_and_results(write, tmp_path):
    write(pretraining())
    names = ("baseline", "measure", "value", "difference", "p_value")
    rows = [
        ("bm25", "MRR@10", 0.40111, 0.11128, 0.0319),
        ("dpr", "MRR@10", 0.6, -0.08761, 0.00009),
        ("bm25", "R@100", 0.5, -0.25, 1.0),
    ]
    result = EvaluationResult(
        *("nfcorpus", "test", 100, 323, {"MRR@10": 0.51239, "R@100": 0.25}),
        source="BeIR/nfcorpus",
        command=f"condenser evaluate {PLACEHOLDER} BeIR/nfcorpus",
        intervals={"MRR@10": (0.48, 0.55)},
        comparisons=[dict(zip(names, row, strict=True)) for row in rows],
    )
    add_result(tmp_path / "encoder", result)
    stages = pretraining(bow_weight=0.1), finetuning(collection="owner/pairs")
    card = write(*stages, name="me/my-encoder", license="mit")
    data = card.data
    assert (data.base_model, data.datasets) == ("owner/name", ["owner/texts", "owner/pairs"])
    assert (data.library_name, data.license) == ("sentence-transformers", "mit")
    assert (data.pipeline_tag, data.model_name) == ("sentence-similarity", "my-encoder")
    assert data.language is None  # which nobody stated
    found = [(r.dataset_type, r.metric_type, r.metric_value) for r in data.eval_results]
    assert found == [("BeIR/nfcorpus", "MRR@10", 0.5124), ("BeIR/nfcorpus", "R@100", 0.25)]
    for text in (
        "# my-encoder\n\nA dense retriever, started from "
        "[owner/name](https://huggingface.co/owner/name) and pre-trained with Condenser (Gao & "
        "Callan 2021) and bag-of-words prediction (Ma et al. 2024), then fine-tuned with a "
        "contrastive loss.\n",
        "| read at most | 8 tokens of a query, 24 of a passage |\n",
        "\n\n### [BeIR/nfcorpus](https://huggingface.co/datasets/BeIR/nfcorpus), test\n\n"
        "323 queries, 100 passages retrieved for each, exact search, 20",
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | bm25 | 0.4011 | +0.1113 | 0.032 |\n"
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | dpr | 0.6000 | -0.0876 | < 0.001 |\n"
        "| R@100 | 0.2500 |  | bm25 | 0.5000 | -0.2500 | 1.000 |\n",
        "```bash\ncondenser evaluate me/my-encoder BeIR/nfcorpus\n```",
        "| late MLM loss (nats a masked token) | 4.9000 at step 1, 4.6000 at step 4 |\n",
        "| started from | the model of the stage above |",
    ):
        assert text in card.text, text


def test_the_summary_is_true_of_each_kind_of_start_and_stage(write):
    random = Stage(PRETRAINING, {"encoder_config": "owner/name"}, {"objective": "mlm"})
    local = pretraining("ict", encoder="/home/me/secret/my-bert")
    own = pretraining("cocondenser", encoder="starter")
    starter = read_provenance(STARTER_FOLDER)
    adapted = Stage(ADAPTATION, {}, {"objective": "adapt", "verdict": "better: 0.5 | 0.4"})
    begin, end = "A text encoder, ", " Fine-tune it to make it a retriever."
    mlm, no_map = "pre-trained with masked language modelling", "`starter of condenser`"
    for stages, said in (
        ([], "A text encoder. How it was trained is not recorded." + end),
        ([random, random], f"{begin}trained from random weights: {mlm}.{end}"),
        (
            [local],
            f"{begin}started from `my-bert` (not on the Hub) and pre-trained with the ",
        ),
        ([*starter, own], f"{begin}started from {no_map} (a small encoder, pre-trained on English"),
        ([finetuning("mse_cosine")], "A sentence encoder, started from `x` (not on the Hub)"),
        (
            [random, adapted],
            f"A dense retriever, trained from random weights: {mlm}, then adapted by a linear map "
            "of query vectors. Verdict against its start: better: 0.5 \\| 0.4.",
        ),
    ):
        card = write(*stages)
        assert said in card.text, said
        assert "secret" not in str(card)
        assert card.data.base_model is None
    assert "AutoModel.from_pretrained" not in card.text  # which would leave out the map
    assert STARTER_TITLE in write(*starter, own).text.partition("### Pre-training\n")[2]


def test_a_model_of_the_hub_without_an_owner_is_the_base_model(write):
    card = write(pretraining(encoder="bert-base-uncased@main"))
    assert card.data.base_model == "bert-base-uncased"
    assert "[bert-base-uncased@main](https://huggingface.co/bert-base-uncased)" in card.text


def test_a_fine_tuning_that_improved_nothing_is_no_making(write):
    kept = Stage(FINETUNING, {}, {"objective": "contrastive", "keeps_start": True})
    said = "not improved by fine-tuning with a contrastive loss (these are the weights of the start"
    assert f"(Gao & Callan 2021), then {said})." in write(pretraining(), kept).text


def test_the_size_of_a_vector_is_that_of_the_last_dense_layer(write, tmp_path):
    write(pretraining())
    folder = tmp_path / "encoder"
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text('{"in_features": 32, "out_features": 16}')
    modules = read_json(folder / "modules.json", [])
    kind = "sentence_transformers.base.modules.dense.Dense"
    write_json(folder / "modules.json", [*modules, {"path": "2_Dense", "type": kind}])
    text = write(pretraining()).text
    assert "(CLS) of the last hidden state, through a dense layer, 16 numbers |" in text


def test_broken_metadata_of_a_start_are_left_out(tmp_path, caplog):
    (tmp_path / "README.md").write_text("---\ntitle: A model: the best\n---\n")
    assert read_start_metadata(tmp_path) == {}
    assert "cannot be read" in caplog.text
    (tmp_path / "README.md").write_text("---\nlanguage:\n- en\n-\n- no\n---\n")
    assert read_start_metadata(tmp_path) == {"language": ["en", "no"]}


def test_text_and_metadata_of_a_person_are_kept(write, tmp_path):
    write(pretraining())
    file = tmp_path / "encoder" / "README.md"
    edited = file.read_text().replace("tags:\n", "language: [da, no]\nversion: 2\ntags:\n- mine\n")
    file.write_text(f"{edited}\n## Notes\n\nMy own words.\n")
    add_result(file.parent, EvaluationResult("nfcorpus", "test", 100, 323, {"MRR@10": 0.51239}))
    write_card(file.parent)
    card = ModelCard.load(file)
    assert card.text.endswith("<!-- /condenser:card -->\n\n## Notes\n\nMy own words.\n")
    assert "0.5124" in card.text and card.text.count("# encoder\n") == 1
    assert (card.data.language, card.data["version"]) == (
        ["da", "no"],
        2,
    ) and "mine" in card.data.tags
    before = file.read_bytes()
    write_card(file.parent)
    assert file.read_bytes() == before


def test_foreign_names_cannot_break_a_table(write, tmp_path):
    write(pretraining())
    evil = EvaluationResult("evil | `name`\n## Heading", "test", 100, 3, {"MRR@10": 0.5})
    add_result(tmp_path / "encoder", evil)
    text = write(pretraining(encoder="./a|b`c")).text
    assert "\n## Heading" not in text
    assert "evil \\| \\`name\\` \\#\\# Heading" in text and "`a\\|b'c`" in text


def test_a_checkpoints_card_names_its_parts_and_the_code_that_it_executes(
    bert_run, bert_folder, tmp_path
):
    folder = Path(shutil.copytree(bert_run / "model", tmp_path / "checkpoint"))
    write_card(folder)
    text = (folder / "README.md").read_text()
    assert "This needs transformers 5.4 or later" in text
    assert "executes the code in this repository (`configuration_condenser.py`, " in text
    assert "from the encoder's CLS vector and its tokens after layer 2, so that" in text
    change_json(folder / "config.json", architectures=["CondenserForMaskedLM"])
    write_card(folder)
    text = (folder / "README.md").read_text()
    assert (
        "encoder with its masked-LM head, started from" in text
        and "AutoModelForPreTraining" not in text
    )
    with pytest.raises(ValueError, match="is neither a pre-training checkpoint nor a model that"):
        write_card(bert_folder)


def test_the_papers_of_the_pre_training_are_cited():
    assert cite([]) == ""
    stages = [
        pretraining("ict"),
        pretraining("cocondenser", bow_weight=0.0, head_mlm_probability=0.5),
        finetuning("margin_mse"),
    ]
    assert re.findall(r"@\w+\{([\w-]+)", cite(stages)) == [
        *("gao-callan-2022-cocondenser", "lee-etal-2019-latent", "xiao-etal-2022-retromae")
    ]
    assert cite([pretraining("mlm")]).startswith("@inproceedings{devlin-etal-2019-bert,")
