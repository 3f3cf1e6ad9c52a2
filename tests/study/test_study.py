"""A whole study at toy size."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformerTrainer

from hub_scripts.main import main
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding import encode as encoding_stage
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.retrieval.fusion import choose_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.study import study
from modeling_condenser.study.study import run_study

MEASURES = ["MRR@10", "R@100"]
QUICK = {"use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8}
SHORT = {"max_length": 32, "max_steps": 6, "learning_rate": 1e-3, "logging_steps": 2, **QUICK}


@pytest.fixture(scope="module")
def collection(collection, tmp_path_factory):
    """One with dev queries, and passages that share titles."""
    folder = Path(shutil.copytree(collection, tmp_path_factory.mktemp("collections") / "small"))
    shutil.copy(folder / "qrels/train.tsv", folder / "qrels/dev.tsv")
    rows = map(json.loads, (folder / "corpus.jsonl").read_text().splitlines())
    titled = [{**row, "title": f"topic {i % 9}"} for i, row in enumerate(rows)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in titled))
    return folder


def make_settings(collection, encoder, out):
    head = {"new_head": True, "n_head_layers": 1, "skip_from": 1}
    lengths = {"query_max_length": 16, "passage_max_length": 24}
    finetuning = {"similarity": "cosine", "learning_rate": 1e-3, **QUICK}
    while_training = {"collection": str(collection), "texts": 9, "every": 3}
    return {
        "collection": str(collection),
        "output_dir": str(out),
        "control": "mlm",
        "title": "A small study",
        "question": "Does it help?",
        "page": str(out.with_name("page.md")),
        "arms": {
            "start": None,
            "mlm": {"objective": "mlm"},
            "condenser": {"objective": "condenser", **head},
        },
        "encoder": str(encoder),
        "pretraining": {**SHORT, "seed": 2, "readiness": while_training},
        "finetuning": {**finetuning, **lengths, "num_train_epochs": 2},
        "train_sizes": [8, 16],
        "finetuning_seeds": [0, 1],
        "measures": MEASURES,
        "search": {"dtype": "bfloat16"},
        "fusion": "dev",
        "readiness": {"texts": 9},
    }


@pytest.fixture(scope="module")
def finished(collection, bert_folder, tmp_path_factory):
    """A study's results and its folder."""
    out = tmp_path_factory.mktemp("studies") / "study"
    settings = make_settings(collection, bert_folder, out)
    results = run_study(settings, command="condenser study mine")
    return SimpleNamespace(results=results, folder=out)


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_a_study_writes_its_results(finished, bert_folder):
    folder, written = finished.folder, read(finished.folder, "results.json")
    assert list(finished.results.groups) == ["no labels", "8 labels", "16 labels"]
    arms = ["start", "mlm", "condenser"]
    assert set(written["groups"]["16 labels"]) == {*arms, *(f"bm25 + {arm}" for arm in arms)}
    assert written["facts"]["n_passages"] == 60 and written["facts"]["n_queries"] == 20
    seen = written["facts"]["tokens_seen"]
    records = [read(folder, f"{arm}/pretrain/run.json") for arm in ("mlm", "condenser")]
    for name in ("blocks_sha256", "seed", "tokens_seen"):  # which decide the batches
        assert records[0][name] == records[1][name]
    assert seen["mlm"] == seen["condenser"] == records[0]["tokens_seen"]
    recipes = (folder / f"{arm}/pretrain/recipe.yaml" for arm in ("mlm", "condenser"))
    encoders = [yaml.safe_load(recipe.read_text())["encoder"] for recipe in recipes]
    assert encoders == [str(bert_folder)] * 2
    log = read(folder, "condenser/pretrain/log.json")
    logged = [(entry["step"], entry["swap_cost"]) for entry in log if "swap_cost" in entry]
    row = ", ".join(f"{cost:.3f} ({step}, 0.0)" for step, cost in logged)
    report = (folder / "results.md").read_text()
    assert [step for step, _ in logged] == [2, 4, 6] and f"| condenser | {row} |" in report
    million = f"{seen['mlm'] / 1e6:.2f}"
    assert f"| mlm | objective mlm | {million} | " in report
    assert "| start | the start itself | 0 | 0 | " in report
    assert report.startswith("# A small study\n\nDoes it help?\n\n```bash\ncondenser study mine\n")
    contract = EncodingContract.load(folder / "mlm" / "encoder")
    assert contract == EncodingContract(16, 24, similarity="cosine")
    page = folder.with_name("page.md")
    pictures = re.findall(r"!\[.*\]\(page-(.*)\)", page.read_text())
    names = ("labels", "curves", "finetuning", "map", "attention_entropy")
    assert pictures == [f"{name}.png" for name in names]
    for name in pictures:
        assert (folder / name).read_bytes() == page.with_name(f"page-{name}").read_bytes()


@pytest.mark.slow
def test_swap_cost_and_retrieval_while_training_are_shown(finished):
    courses = finished.results.courses
    assert list(courses) == ["swap cost", *(f"{measure} without labels" for measure in MEASURES)]
    assert list(courses["swap cost"]) == ["condenser"]
    entries = courses["R@100 without labels"]["mlm"]
    assert [entry["step"] for entry in entries] == [0, 3, 6]
    assert entries[0]["tokens"] == 0 < entries[1]["tokens"] < entries[2]["tokens"]
    assert f"{entries[2]['value']:.3f} (6, 0.0) |" in (finished.folder / "results.md").read_text()


@pytest.mark.slow
def test_readiness_of_start_and_arms_is_measured(finished):
    written = read(finished.folder, "readiness/readiness.json")
    models = {model["label"]: model for model in written["models"]}
    arms = [f"{arm}, {s}" for arm in ("mlm", "condenser") for s in ("pre-trained", "fine-tuned")]
    assert list(models) == ["start", "start, fine-tuned", *arms]
    assert written["measured_on"]["texts"] == 9
    has_head = [label for label, model in models.items() if "readiness/swap_cost" in model]
    assert has_head == ["condenser, pre-trained"]
    before, after = models["condenser, pre-trained"], models["condenser, fine-tuned"]
    layers = [f"readiness/entropy_layer_{k}" for k in (1, 2)]
    change = sum(abs(after[layer] - before[layer]) for layer in layers) / 2
    assert f", condenser {change:.3f}." in (finished.folder / "results.md").read_text()


@pytest.mark.slow
def test_means_are_over_the_runs_of_all_seeds_alone_and_fused(finished, collection):
    folder, qrels = finished.folder, load_collection(collection).qrels
    bm25, dev_bm25 = (
        read_run(folder / "bm25" / place) for place in ("run-100.trec", "dev/run-100.trec")
    )
    dev_qrels = load_collection(collection, split="dev").qrels
    for group, places in (
        ("no labels", ["evaluation"]),
        ("16 labels", ["16-labels-0/evaluation", "16-labels-1/evaluation"]),
    ):
        runs = [read_run(folder / "condenser" / place / "run-100.trec") for place in places]
        dev = [read_run(folder / "condenser" / place / "dev/run-100.trec") for place in places]
        fusions = [choose_fusion(dev_bm25, run, dev_qrels) for run in dev]
        fused = [f.fuse(bm25, run) for f, run in zip(fusions, runs, strict=True)]
        assert finished.results.fusions[f"condenser, {group}"] == [str(f) for f in fusions]
        for name, of_seeds in (("condenser", runs), ("bm25 + condenser", fused)):
            means = [evaluate_run(qrels, run, measures=MEASURES).means for run in of_seeds]
            assert finished.results.groups[group][name].means == pytest.approx(
                {measure: sum(m[measure] for m in means) / len(means) for measure in MEASURES}
            )


@pytest.mark.slow
def test_cards_and_the_search_file_are_written(finished, collection):
    folder = finished.folder / "condenser" / "16-labels-0"
    means = read(folder, "evaluation/metrics.json")["evaluation"]["means"]
    card = ModelCard.load(folder / "model" / "README.md")
    found = {r.metric_type: r.metric_value for r in card.data.eval_results}
    assert found == {measure: round(value, 4) for measure, value in means.items()}
    command = "condenser evaluate OWNER/NAME small --baseline bm25 --split test --dtype bfloat16"
    assert command in card.text
    named = read(finished.folder, "search.json")
    assert named["model"] == f"{finished.results.best_arm}/16-labels-0/model,dtype=bfloat16"
    assert (finished.folder / named["embeddings"]).is_dir()
    assert (finished.folder / named["collection"]).resolve() == collection


@pytest.mark.slow
def test_a_study_continues_with_what_is_missing(
    finished, collection, bert_folder, tmp_path, monkeypatch, capsys
):
    """After a kill, with one more arm, after an arm that failed, and when it is finished."""
    settings = make_settings(collection, bert_folder, tmp_path / "study")
    arms, trained = settings["arms"], list[str]()
    pretrain, train = study.pretrain, CondenserTrainer.train

    def run_with(error):
        def stop(given, **callbacks):
            if error and "condenser" in given["output_dir"].rpartition("study")[2]:
                raise error
            return pretrain(given, **callbacks)

        monkeypatch.setattr(study, "pretrain", stop)
        return run_study(settings)

    def recorded(self, *args, **kwargs):
        trained.append(Path(self.args.output_dir).parent.name)
        return train(self, *args, **kwargs)

    monkeypatch.setattr(CondenserTrainer, "train", recorded)
    settings["arms"] = {name: arm for name, arm in arms.items() if name != "start"}
    with pytest.raises(KeyboardInterrupt):
        run_with(KeyboardInterrupt())
    settings["arms"] = arms
    run_with(RuntimeError("no memory\nleft"))
    assert trained == ["mlm"]
    named = "- The arm condenser failed and is left out: RuntimeError: no memory left"
    assert named in (tmp_path / "study" / "results.md").read_text().splitlines()
    results = run_with(None)
    assert trained == ["mlm", "condenser"]
    assert results.failures == {} and results.tables() == finished.results.tables()

    def refuse(*args, **kwargs):
        raise AssertionError("done again")

    monkeypatch.setattr(CondenserTrainer, "train", refuse)
    monkeypatch.setattr(SentenceTransformerTrainer, "train", refuse)
    monkeypatch.setattr(encoding_stage, "encode_collection", refuse)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    capsys.readouterr()
    assert main(["study", str(tmp_path / "recipe.yaml")]) == 0
    assert results.tables() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control": "dpr"}, "control is 'dpr', expected one of"),
        ({"arms": {"mlm": {}, "x": {"max_steps": 20}}}, "changes max_steps, but arms"),
        ({"pretraining": {"max_step": 1}}, "no field 'max_step'.*'max_steps'"),
        ({"finetuning": {"train_siz": 1}}, "no field 'train_siz'.*'train_size'"),
        ({"finetuning": {"train_size": 1}}, "set train_sizes, such as"),
        ({"split": "dev.small"}, "fusion is dev, but split is dev.small"),
        ({"fusion": "sum"}, "fusion is 'sum', expected one of dev, rrf, 0.1"),
        ({"measures": ["MRR@10", "R"]}, "'R' is not a measure: .* with a cut-off"),
        ({"readiness": {"texts": 1}}, "texts is 1, expected at least 2"),
    ],
)
def test_a_wrong_setting_of_any_stage_is_found_before_anything_is_written(
    collection, bert_folder, tmp_path, changes, message
):
    with pytest.raises(ValueError, match=message):
        run_study({**make_settings(collection, bert_folder, tmp_path / "study"), **changes})
    assert not (tmp_path / "study").exists()
