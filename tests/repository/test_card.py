"""Model cards: what they say, and whose words they keep."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.card import PLACEHOLDER, write_card
from modeling_condenser.repository.checks import card_problems
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import PRETRAINING, Stage, write_provenance
from modeling_condenser.repository.results import (
    BaselineComparison,
    EvaluationResult,
    add_result,
)

LOG = [
    {"step": i, "late_loss": 5 - i / 10, "head_loss": 6 - i / 10, "num_input_tokens_seen": i * 100}
    for i in range(1, 5)
]


def make_folder(folder: Path, *stages: Stage, **contract: Any) -> Path:
    folder.mkdir(parents=True)
    EncodingContract(32, 128, **contract).save(folder)
    write_provenance(folder, stages)
    return folder


def pretraining(encoder: str = "owner/name", objective: str = "condenser", **more: Any) -> Stage:
    run = {"objective": objective, "seed": 4, **more}
    return Stage("Pre-training", {"encoder": encoder, "corpus": "owner/texts"}, run, LOG)


def finetuning(objective: str = "contrastive", **recipe: Any) -> Stage:
    return Stage("Fine-tuning", {"encoder": "local: x", **recipe}, {"objective": objective})


def result(**fields: Any) -> EvaluationResult:
    values = {"MRR@10": 0.51239, "R@100": 0.25}
    compared = (
        BaselineComparison("bm25", "MRR@10", 0.40111, 0.11128, 0.0319),
        BaselineComparison("dpr", "MRR@10", 0.6, -0.08761, 0.00009),
        BaselineComparison("bm25", "R@100", 0.5, -0.25, 1.0),
    )
    known = {"collection": "nfcorpus", "split": "test", "depth": 100, "n_queries": 323}
    return EvaluationResult(**{**known, "values": values, "comparisons": compared, **fields})


def read(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def test_a_result_stands_in_a_table_with_its_baselines_and_in_the_metadata(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-encoder", pretraining(), finetuning())
    (tmp_path / "run.trec").write_text("q Q0 d 1 1 x\n")
    add_result(
        folder,
        result(
            source="BeIR/nfcorpus",
            intervals={"MRR@10": (0.48, 0.55)},
            qrels_sha256="ab" * 32,
            command=f"condenser evaluate {PLACEHOLDER} BeIR/nfcorpus",
        ),
        run_file=tmp_path / "run.trec",
    )
    write_card(folder)
    card = read(folder)
    assert card.data.model_name == "my-encoder"
    assert [
        (r.dataset_type, r.dataset_split, r.metric_type, r.metric_value)
        for r in card.data.eval_results
    ] == [
        ("BeIR/nfcorpus", "test", "MRR@10", 0.5124),
        ("BeIR/nfcorpus", "test", "R@100", 0.25),
    ]
    for line in (
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | bm25 | 0.4011 | +0.1113 | 0.032 |",
        "| MRR@10 | 0.5124 | 0.4800 to 0.5500 | dpr | 0.6000 | -0.0876 | < 0.001 |",
        "| R@100 | 0.2500 |  | bm25 | 0.5000 | -0.2500 | 1.000 |",
        "Against bm25: better in MRR@10; not shown to differ in R@100. "
        "Against dpr: worse in MRR@10.",
        "323 queries, 100 passages retrieved for each, exact search.",
        "[evaluation/nfcorpus-test.trec.gz](evaluation/nfcorpus-test.trec.gz)",
        "- Judgements: SHA-256 `" + "ab" * 32 + "`.",
        "MRR@10 on [BeIR/nfcorpus](https://huggingface.co/datasets/BeIR/nfcorpus) (test): "
        "**0.5124**; bm25 0.4011 (p = 0.032), dpr 0.6000 (p < 0.001).",
    ):
        assert line in card.text.replace("\\_", "_")
    assert f"```bash\ncondenser evaluate {PLACEHOLDER} BeIR/nfcorpus\n```" in card.text
    assert [file.name for file in folder.glob(".*")] == [".eval_results"]


def test_a_model_that_was_not_evaluated_says_so(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining())
    write_card(folder)
    card = read(folder)
    assert "This model has not been evaluated." in card.text
    assert card.data.eval_results is None
    add_result(folder, result())
    write_card(folder)
    assert "has not been evaluated" not in read(folder).text


def test_metadata_come_from_the_stages(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining(), finetuning(collection="BeIR/scifact"))
    write_card(folder)
    data = read(folder).data
    assert data.base_model == "owner/name"
    assert data.datasets == ["owner/texts", "BeIR/scifact"]
    assert (data.library_name, data.pipeline_tag) == (
        "sentence-transformers",
        "sentence-similarity",
    )


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ([], "A plain encoder; how it was trained is not recorded."),
        ([pretraining("a/b", "mlm")], "A plain encoder, trained with plain masked language"),
        ([pretraining("a/b")], "A plain encoder, condensed for dense retrieval"),
        (
            [pretraining("a/b"), finetuning()],
            "A dense retriever, fine-tuned from an encoder that was condensed",
        ),
        ([pretraining("a/b"), finetuning("mse_cosine")], "A sentence encoder, fine-tuned from"),
        ([finetuning()], "an encoder whose pre-training is not recorded here."),
    ],
)
def test_the_summary_follows_from_the_stages(
    tmp_path: Path, stages: list[Stage], sentence: str
) -> None:
    folder = make_folder(tmp_path / "x", *stages)
    write_card(folder)
    text = read(folder).text
    assert sentence in text
    headings = [line for line in text.splitlines() if line.startswith(("### Pre", "### Fine"))]
    assert headings == [f"### {stage.name}" for stage in stages]


def test_training_is_told_with_data_tokens_seeds_machine_and_time(tmp_path: Path) -> None:
    stage = pretraining(
        tokens_seen=5_200_000,
        steps=1000,
        corpus_fingerprint="0123abc",
        n_documents=5183,
        session_seconds=4000.0,
        hardware={"cpu": "A CPU", "cores": 8, "gpus": ["H100", "H100"]},
        versions={"torch": "2.13.0"},
    )
    folder = make_folder(tmp_path / "x", stage, pretraining("local: first"))
    write_card(folder)
    text = read(folder).text
    for row in (
        "| started from | [owner/name](https://huggingface.co/owner/name) |",
        "| text | [owner/texts](https://huggingface.co/datasets/owner/texts) |",
        "| amount | 5,183 documents |",
        "| corpus fingerprint | `0123abc` |",
        "| tokens seen | 5,200,000 |",
        "| steps | 1,000 |",
        "| seed | 4 |",
        "| last logged loss | late 4.6000, head 5.6000 |",
        "| time of the last session | 67 min |",
        "| hardware | A CPU, 8 cores, 2 × H100 |",
        "| versions | torch 2.13.0 |",
        "| started from | `first`, not on the Hub |",
        "### Pre-training 2",
        "```yaml\ncorpus: owner/texts\nencoder: owner/name\n```",
    ):
        assert row in text


def test_both_loss_curves_are_drawn_always_with_the_same_bytes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining(), finetuning())
    write_card(folder)
    picture = (folder / "training_curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert "](training_curves.png)" in read(folder).text
    (folder / "training_curves.png").unlink()
    write_card(folder)
    assert (folder / "training_curves.png").read_bytes() == picture


def test_without_a_log_there_is_no_picture(tmp_path: Path) -> None:
    stage = Stage("Pre-training", {"encoder": "a/b"}, {"objective": "condenser"})
    folder = make_folder(tmp_path / "x", stage)
    write_card(folder)
    assert "training_curves" not in read(folder).text
    assert not (folder / "training_curves.png").exists()


@pytest.mark.parametrize(
    ("stages", "cited"),
    [
        ([], {"gao-callan-2021-condenser"}),
        ([pretraining()], {"gao-callan-2021-condenser"}),
        (
            [pretraining(objective="cocondenser")],
            {"gao-callan-2021-condenser", "gao-callan-2022-cocondenser"},
        ),
        (
            [pretraining("Luyu/co-condenser-wiki")],
            {"gao-callan-2021-condenser", "gao-callan-2022-cocondenser"},
        ),
        (
            [Stage("Pre-training", {"bow_weight": 1.0}, {"objective": "mlm"})],
            {"ma-etal-2024-drop"},
        ),
        (
            [Stage("Pre-training", {"head_mlm_probability": 0.5}, {"objective": "condenser"})],
            {"gao-callan-2021-condenser", "xiao-etal-2022-retromae"},
        ),
        ([finetuning("mse_cosine")], {"reimers-gurevych-2019-sentence-bert"}),
        (
            [pretraining(), finetuning(mini_batch_size=8)],
            {
                *("gao-callan-2021-condenser", "karpukhin-etal-2020-dense"),
                *("gao-etal-2021-scaling", "reimers-gurevych-2019-sentence-bert"),
            },
        ),
    ],
)
def test_the_papers_whose_methods_were_used_are_cited(
    tmp_path: Path, stages: list[Stage], cited: set[str]
) -> None:
    folder = make_folder(tmp_path / "x", *stages)
    write_card(folder)
    assert set(re.findall(r"@\w+\{([\w-]+),", read(folder).text)) == cited


def test_the_card_of_a_run_has_the_runs_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-run" / "model")
    write_card(folder)
    assert "# my-run\n" in (folder / "README.md").read_text()
    folder = make_folder(tmp_path / ".other.partial")
    write_card(folder)
    assert "# other\n" in (folder / "README.md").read_text()


def test_the_repositorys_name_stands_in_every_snippet_and_is_remembered(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining(), finetuning())
    add_result(folder, result(command=f"condenser evaluate {PLACEHOLDER} nfcorpus"))
    write_card(folder)
    n_places = (folder / "README.md").read_text().count(PLACEHOLDER)
    assert n_places >= 7
    write_card(folder, name="me/my-model")
    text = (folder / "README.md").read_text()
    assert PLACEHOLDER not in text
    assert text.count("me/my-model") == n_places + 1
    assert "# my-model\n" in text
    assert "condenser evaluate me/my-model nfcorpus" in text
    write_card(folder)
    assert (folder / "README.md").read_text() == text


def test_a_name_that_no_repository_can_have_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    with pytest.raises(ValueError, match=r"Repo id must"):
        write_card(folder, name='me/x"); print("y')
    assert not (folder / "README.md").exists()


def test_writing_a_card_again_changes_no_byte(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining(), finetuning())
    add_result(folder, result())
    write_card(folder, name="me/x", license="mit")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    write_card(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_what_a_person_wrote_survives_an_evaluation(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining())
    write_card(folder)
    file = folder / "README.md"
    text = file.read_text()
    text = text.replace("library_name:", "license: cc-by-4.0\nlanguage: no\nlibrary_name:")
    text = text.replace("<!-- condenser:use -->", "## Why\n\nBecause ä.\n\n<!-- condenser:use -->")
    file.write_text(text + "\nThe end.\n")
    add_result(folder, result())
    write_card(folder)
    card = read(folder)
    assert card.data.license == "cc-by-4.0"
    assert card.data.language == "no"
    assert "## Why\n\nBecause ä.\n\n<!-- condenser:use -->" in card.text
    assert card.text.endswith("The end.\n")
    assert "Licence: `cc-by-4.0`." in card.text
    assert "| MRR@10 | 0.5124 |" in card.text
    write_card(folder, license="mit")
    assert read(folder).data.license == "mit"


def test_a_card_of_another_hand_is_kept_and_the_sections_follow_it(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pretraining())
    theirs = "# My model\n\nWords of mine.\n"
    (folder / "README.md").write_text(f"---\nlicense: mit\ntags:\n- law\n---\n{theirs}")
    write_card(folder)
    card = read(folder)
    assert card.text.lstrip().startswith(theirs)
    assert card.data.license == "mit"
    assert card.data.tags == [
        *("law", "condenser", "dense-retrieval", "sentence-transformers", "feature-extraction")
    ]
    titles = [line for line in card.text.splitlines() if line.startswith("# ")]
    assert titles[0] == "# My model" and "# x" not in titles
    assert "## How to use" in card.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("---\ntags: [a\n---\nMine.", "are no YAML"),
        ("---\n- a\n---\nMine.", "are a list, expected lines"),
        ("---\nmodel-index: [3]\n---\nMine.", "the Hub's client cannot read the metadata"),
        ("---\nmodel-index: [{name: x, results: null}]\n---\n", "client cannot read"),
        ("Mine.\n<!-- condenser:use -->\n", "has the comment condenser:use, and none that ends"),
    ],
)
def test_a_broken_card_is_refused_and_left_as_it_is(
    tmp_path: Path, content: str, message: str
) -> None:
    folder = make_folder(tmp_path / "x", pretraining())
    (folder / "README.md").write_text(content)
    with pytest.raises(ValueError, match=message):
        write_card(folder)
    assert (folder / "README.md").read_text() == content
    assert not (folder / "training_curves.png").exists()


def test_metadata_mean_what_they_mean_on_the_hub(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    (folder / "README.md").write_text(
        "---\nlanguage:\n- no\n- yes\ninference: false\nunit: trueish\n---\nMine.\n"
    )
    write_card(folder)
    data = read(folder).data
    assert data.language == ["no", "yes"]  # ISO 639: Norwegian; YAML 1.1 has them for booleans
    assert data.inference is False
    assert data.unit == "trueish"


def test_foreign_names_break_no_table(tmp_path: Path) -> None:
    evil = "a|b`c\n<b>[x](y)\n<!-- /condenser:results -->"
    stage = Stage(
        "Pre-training", {"encoder": evil, "corpus": [evil]}, {"objective": evil, "seed": 1}
    )
    folder = make_folder(tmp_path / "x", stage, title_separator="|`\n", query_prompt="a|b")
    compared = (BaselineComparison(evil, "MRR@10", 0.1, 0.1, 0.5),)
    add_result(
        folder,
        result(collection=evil, split=evil, command=f"run '{evil}'", comparisons=compared),
    )
    write_card(folder)
    before = (folder / "README.md").read_text()
    write_card(folder)
    assert (folder / "README.md").read_text() == before
    prose = re.sub(r"^(```+)[^`].*?^\1", "", read(folder).text, flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", prose, flags=re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1
    assert "<b>" not in re.sub(r"`+ .*? `+", "", prose)
    assert read(folder).data.eval_results[0].dataset_name == evil


def test_no_local_path_stands_on_the_card(
    bert_run: Path, bert_folder: Path, tmp_path: Path
) -> None:
    folder = export_encoder(bert_run, tmp_path / "encoder")
    text = (folder / "README.md").read_text()
    assert "encoder: 'local: " in text  # the recipe is there
    for path in (tmp_path, bert_run, bert_folder, Path.home(), Path.cwd()):
        assert str(path) not in text
    assert "base_model" not in text


def test_a_new_export_keeps_what_was_written_on_the_old_ones_card(
    bert_run: Path, tmp_path: Path
) -> None:
    folder = export_encoder(bert_run, tmp_path / "encoder")
    add_result(folder, result())
    write_card(folder, license="mit")
    with (folder / "README.md").open("a") as file:
        file.write("\nMy words.\n")
    export_encoder(bert_run, folder, contract=EncodingContract(8, 16))
    card = read(folder)
    assert card.text.endswith("My words.\n")
    assert card.data.license == "mit"
    # Its figures were the old one's.
    assert card.data.eval_results is None
    assert "| longest query | 8 tokens |" in card.text


def test_the_card_states_pooling_and_prompts(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x", pooling="mean", query_prompt="query: ")
    write_card(folder)
    text = read(folder).text
    assert "| vector | mean of the last hidden state over the text's tokens |" in text
    assert "| before a query | `'query: '` |" in text
    assert "before a passage" not in text


def test_an_encoder_runs_no_code_of_its_repository(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    write_card(folder)
    assert "executes no code from this repository" in read(folder).text
    assert "trust_remote_code=True" not in read(folder).text


def test_a_checkpoints_card_says_what_it_is_and_which_code_it_runs(
    bert_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "my-checkpoint"
    shutil.copytree(bert_run / "model", folder)
    write_provenance(folder, [pretraining()])
    write_card(folder, name="me/my-checkpoint", license="apache-2.0")
    card = read(folder)
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "fill-mask")
    config = json.loads((folder / "config.json").read_text())
    for line in (
        f"the head reads the tokens that leave layer {config['skip_from']}",
        f"| head | {config['n_head_layers']} layer",
        "| backbone | bert, 4 layers |",
        "(configuration_condenser.py) | `difflib`, `transformers`, `typing` |",
        "(losses.py) | `dataclasses`, `torch`, `typing` |",
        'trust_remote_code=True, revision="COMMIT"',
        "condenser export me/my-checkpoint my-encoder",
        "executes 4 files of this repository",
        "](training_curves.png)",
        "This model has not been evaluated.",
    ):
        assert line in card.text
    assert card_problems(folder) == []


def test_a_checkpoint_of_plain_mlm_promises_no_head(tmp_path: Path) -> None:
    config = {
        "model_type": "condenser",
        "architectures": ["CondenserForMaskedLM"],
        # As DistilBERT's config.json has them.
        "encoder_config": {"model_type": "distilbert", "n_layers": 6, "dim": 768},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_card(tmp_path)
    text = read(tmp_path).text
    assert "AutoModelForPreTraining" not in text
    assert "| head |" not in text
    assert "| backbone | distilbert, 6 layers |\n| dimension | 768 |" in text
    assert "A checkpoint of plain masked language modelling" in text


def test_a_folder_that_is_no_model_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="no encoding_contract.json.*condenser export"):
        write_card(tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    ("objective", "said", "cited"),
    [
        ("condenser", "condensed for dense retrieval: its CLS", "gao-callan-2021-condenser"),
        ("cocondenser", "contrasted over its corpus", "gao-callan-2022-cocondenser"),
        ("ict", "trained with the Inverse Cloze Task", "lee-etal-2019-latent"),
        ("tsdae", "trained with TSDAE", "wang-etal-2021-tsdae"),
        ("mlm", "trained with plain masked language modelling", "gao-callan-2021-condenser"),
    ],
)
def test_the_card_says_and_cites_how_an_encoder_was_made(
    bert_run: Path, tmp_path: Path, objective: str, said: str, cited: str
) -> None:
    folder = export_encoder(bert_run, tmp_path / "encoder")
    log = ({"step": 1, "contrastive_loss": 2.5, "loss": 9.0},)
    is_contrastive = objective in ("cocondenser", "ict")
    recipe = {"objective": objective, **({"cache_chunk_size": 64} if is_contrastive else {})}
    write_provenance(folder, [Stage(PRETRAINING, recipe, {"objective": objective}, log)])
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert said in card and cited in card and "contrastive 2.5000" in card
    assert ("gao-callan-2021-condenser" in card) == (objective not in ("ict", "tsdae"))
    assert ("gao-etal-2021-scaling" in card) == is_contrastive


def test_epochs_are_not_stated_where_steps_decide(tmp_path: Path) -> None:
    for name, recipe, is_stated in (
        ("epochs", {"num_train_epochs": 3, "max_steps": -1}, True),
        ("steps", {"num_train_epochs": 3, "max_steps": 9}, False),
    ):
        folder = make_folder(tmp_path / name, Stage(PRETRAINING, recipe, {"objective": "mlm"}))
        write_card(folder)
        assert ("| settings | epochs 3 |" in read(folder).text) == is_stated
