"""Model cards: what they say, and whose words they keep."""

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from modeling_condenser.encoder_parts import write_modules
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.files.models import STARTER_FOLDER, STARTER_TITLE
from modeling_condenser.publishing.card import PLACEHOLDER, cite, write_card
from modeling_condenser.publishing.provenance import (
    EvaluationResult,
    Stage,
    add_result,
    read_provenance,
    write_provenance,
)
from tests.encoding.making import change_json

LOG = [
    {"step": i, "late_loss": 5 - i / 10, "head_loss": 6 - i / 10, "num_input_tokens_seen": i * 100}
    for i in range(1, 5)
]


def make_folder(folder: Path, *stages: Stage) -> Path:
    folder.mkdir(parents=True)
    write_modules(folder, 32, pooling="cls", encoding=asdict(EncodingContract(32, 128)))
    write_provenance(folder, stages)
    return folder


def pretraining(encoder: str = "owner/name", objective: str = "condenser", **more: Any) -> Stage:
    recipe = {"encoder": encoder, "corpus": "owner/texts"}
    return Stage("Pre-training", recipe, {"objective": objective, "seed": 4}, LOG, **more)


def finetuning(objective: str = "contrastive", **recipe: Any) -> Stage:
    return Stage("Fine-tuning", {"encoder": "local: x", **recipe}, {"objective": objective})


def result(collection: str = "nfcorpus", **fields: Any) -> EvaluationResult:
    values = {"MRR@10": 0.51239, "R@100": 0.25}
    return EvaluationResult(collection, "test", 100, 323, values, **fields)


def compared(*values: Any) -> dict[str, Any]:
    names = ("baseline", "measure", "value", "difference", "p_value")
    return dict(zip(names, values, strict=True))


def read(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def test_a_retrievers_card_states_its_stages_and_results(tmp_path):
    folder = make_folder(
        tmp_path / "folder", pretraining(), finetuning(collection="owner/pairs"), finetuning()
    )
    (tmp_path / "run.trec").write_text("q Q0 d 1 1 x\n")
    evaluated = result(
        source="BeIR/nfcorpus",
        command=f"condenser evaluate {PLACEHOLDER} BeIR/nfcorpus",
        intervals={"MRR@10": (0.48, 0.55)},
        comparisons=(
            compared("bm25", "MRR@10", 0.40111, 0.11128, 0.0319),
            compared("dpr", "MRR@10", 0.6, -0.08761, 0.00009),
            compared("bm25", "R@100", 0.5, -0.25, 1.0),
        ),
    )
    add_result(folder, evaluated, run_file=tmp_path / "run.trec")
    write_card(folder, name="me/my-encoder", metadata={"license": "mit"})
    card = read(folder)
    data = card.data
    assert (data.base_model, data.datasets) == ("owner/name", ["owner/texts", "owner/pairs"])
    assert (data.library_name, data.license) == ("sentence-transformers", "mit")
    assert (data.pipeline_tag, data.model_name) == ("sentence-similarity", "my-encoder")
    found = [(r.dataset_type, r.metric_type, r.metric_value) for r in data.eval_results]
    assert found == [("BeIR/nfcorpus", "MRR@10", 0.5124), ("BeIR/nfcorpus", "R@100", 0.25)]
    for text in (
        "# my-encoder\n",
        "**0.5124**; bm25 0.4011 (p = 0.032), dpr 0.6000 (p < 0.001).",
        "| longest passage | 128 tokens |",
        "323 queries, 100 passages retrieved for each, exact search, 20",
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | bm25 | 0.4011 | +0.1113 | 0.032 |\n"
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | dpr | 0.6000 | -0.0876 | < 0.001 |\n"
        "| R@100 | 0.2500 |  | bm25 | 0.5000 | -0.2500 | 1.000 |\n",
        "(evaluation/BeIR_nfcorpus-test-100.trec.gz)",
        "```bash\ncondenser evaluate me/my-encoder BeIR/nfcorpus\n```",
        "### Pre-training\n",
        "| started from | [owner/name](https://huggingface.co/owner/name) |",
        "| last logged loss | late 4.6000, head 5.6000 |",
        "### Fine-tuning 2\n",
    ):
        assert text in card.text, text


def test_text_and_metadata_of_a_person_are_kept(tmp_path):
    folder = make_folder(tmp_path / "x", pretraining())
    write_card(folder)
    file = folder / "README.md"
    edited = file.read_text().replace("tags:\n", "language: en\ntags:\n- mine\n")
    file.write_text(f"{edited}\n## Notes\n\nMy own words.\n")
    add_result(folder, result())
    write_card(folder)
    card = read(folder)
    assert card.text.endswith("<!-- /condenser:card -->\n\n## Notes\n\nMy own words.\n")
    assert "0.5124" in card.text and card.text.count("# x\n") == 1
    assert card.data.language == "en" and "mine" in card.data.tags
    before = file.read_bytes()
    write_card(folder)
    assert file.read_bytes() == before


def test_readiness_is_shown_in_tables_and_pictures(tmp_path):
    swap_cost, entropy = "readiness/swap_cost", "readiness/entropy_layer_1"
    entries = [{"step": step, swap_cost: step / 40, entropy: 2.0} for step in (0, 10, 20)]
    entries[-1]["readiness/few_shot_MRR@10"] = 0.5
    stages = [pretraining(readiness=entries), pretraining(readiness=entries[:1])]
    folder = make_folder(tmp_path / "x", *stages)
    write_card(folder)
    text = (folder / "README.md").read_text()
    for section in (
        "### Pre-training: measured 3 times\n\n"
        "|  | start | step 20 | difference |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| swap cost | 0.0000 | 0.5000 | +0.5000 |\n"
        "| MRR@10 after fine-tuning |  | 0.5000 |  |\n",
        "### Pre-training 2: measured 1 time\n\n"
        "|  | start |\n| --- | ---: |\n| swap cost | 0.0000 |\n",
    ):
        assert section in text
    links = set(re.findall(r"\]\(([^):#]+)\)", text))
    assert links >= {"training_curves.png", "readiness.png", "attention_entropy.png"}
    assert all((folder / link).is_file() for link in links)


def test_of_the_bundled_encoder_only_the_name_is_on_a_card(tmp_path):
    own = pretraining(encoder=STARTER_TITLE)
    folder = make_folder(tmp_path / "x", *read_provenance(STARTER_FOLDER), own, finetuning())
    write_card(folder)
    text = read(folder).text
    headings = ["### Pre-training", "### Fine-tuning"]
    assert [line for line in text.splitlines() if line in headings] == headings
    assert "### Pre-training 2" not in text
    assert f"| started from | `{STARTER_TITLE}`, the small encoder that comes with" in text


def test_foreign_names_cannot_break_a_table(tmp_path):
    folder = make_folder(tmp_path / "x", pretraining(encoder="local: a|b`c"))
    add_result(folder, result("evil | `name`\n## Heading"))
    write_card(folder)
    text = read(folder).text
    assert "\n## Heading" not in text
    assert "evil \\| \\`name\\` \\#\\# Heading" in text and "`` a\\|b`c ``" in text


def test_a_checkpoints_card_names_the_code_that_it_executes(bert_run, tmp_path):
    folder = Path(shutil.copytree(bert_run / "model", tmp_path / "my-checkpoint"))
    write_card(folder)
    text = read(folder).text
    assert "[configuration\\_condenser.py](configuration_condenser.py)" in text
    assert "the head reads the tokens after layer" in text
    change_json(folder / "config.json", architectures=["CondenserForMaskedLM"])
    write_card(folder)
    text = read(folder).text
    assert "without a Condenser head" in text and "AutoModelForPreTraining" not in text
    with pytest.raises(ValueError, match="has neither modules.json nor"):
        write_card(tmp_path)


def test_the_papers_of_all_methods_are_cited():
    assert cite([]).startswith("@inproceedings{gao-callan-2021-condenser,")
    first = pretraining("owner/co-condenser-marco", objective="ict")
    stages = [first, finetuning("margin_mse", mini_batch_size=8)]
    assert re.findall(r"@\w+\{([\w-]+)", cite(stages)) == [
        *("gao-callan-2021-condenser", "gao-callan-2022-cocondenser", "lee-etal-2019-latent"),
        *("reimers-gurevych-2019-sentence-bert", "gao-etal-2021-scaling"),
        "hofstatter-etal-2020-improving",
    ]


def test_metadata_is_kept_as_it_was_written(tmp_path):
    folder = make_folder(tmp_path / "x", pretraining())
    written = "language: no\nversion: 1.10\nbuild: 012\nat: 12:30:00\nprivate: true\nparts: 3\n"
    (folder / "README.md").write_text(f"---\n{written}---\nMine.\n")
    for _ in range(2):
        write_card(folder)
    data = read(folder).data
    assert (data.language, data["version"], data["build"], data["at"]) == (
        *("no", "1.10", "012"),
        "12:30:00",
    )
    assert (data["private"], data["parts"]) == (True, 3)
