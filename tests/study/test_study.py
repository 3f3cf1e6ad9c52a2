"""A whole study at toy size, and the sentences it ends with."""

import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformerTrainer

from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding import encode as encoding_stage
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.system_results import SystemResult, evaluate_system
from modeling_condenser.measures.measures import Evaluation, evaluate_run
from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.retrieval.fusion import Fusion, reciprocal_rank_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.study import study
from modeling_condenser.study.results import StudyResults, swap_costs
from modeling_condenser.study.study import run_study
from tests.publishing.making import N_PASSAGES, make_collection

MEASURES = ["MRR@10", "R@100"]
SHORT = {
    "max_length": 32,
    "per_device_train_batch_size": 8,
    "max_steps": 6,
    "learning_rate": 1e-3,
    "logging_steps": 2,
    "use_cpu": True,
}


def make_settings(collection: Path, out: Path) -> dict[str, Any]:
    return {
        "collection": str(collection),
        "output_dir": str(out),
        "control": "mlm",
        "arms": {
            "mlm": {"objective": "mlm"},
            "condenser": {
                "objective": "condenser",
                "new_head": True,
                "n_head_layers": 1,
                "skip_from": 1,
            },
        },
        "encoder_config": {
            "vocab_size": 400,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
        },
        "start": {**SHORT, "max_steps": 3, "seed": 1},
        "pretraining": {**SHORT, "seed": 2},
        "finetuning": {
            "train_size": 16,
            "query_max_length": 16,
            "passage_max_length": 32,
            "per_device_train_batch_size": 8,
            "num_train_epochs": 2,
            "learning_rate": 1e-3,
            "use_cpu": True,
        },
        "finetuning_seeds": [0, 1],
        "measures": MEASURES,
        "fusion": {"method": "rrf"},
    }


@pytest.fixture(scope="module")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)


@dataclass
class Recorded:
    """A study's result, a checksum of each batch of pre-training, and the folders of vectors."""

    results: StudyResults
    folder: Path
    settings: dict[str, Any]
    batches: dict[str, list[str]]
    encoded: list[str]


@pytest.fixture(scope="module")
def finished(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("studies") / "study"
    batches: dict[str, list[str]] = defaultdict(list)
    encoded: list[str] = []
    step, encode = CondenserTrainer.training_step, encoding_stage.encode_collection

    def recorded_step(self: CondenserTrainer, model: Any, inputs: Any, *args: Any) -> Any:
        run = str(Path(self.args.output_dir).relative_to(out))
        content = b"".join(inputs[k].numpy().tobytes() for k in ("input_ids", "labels"))
        batches[run].append(hashlib.sha256(content).hexdigest())
        return step(self, model, inputs, *args)

    def recorded_encode(retriever: Any, passages: Any, folder: Path, **kwargs: Any) -> Embeddings:
        encoded.append(str(folder.relative_to(out)))
        return encode(retriever, passages, folder, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CondenserTrainer, "training_step", recorded_step)
        patch.setattr(encoding_stage, "encode_collection", recorded_encode)
        settings = make_settings(collection, out)
        return Recorded(run_study(settings), out, settings, batches, encoded)


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("trained again")


def test_a_study_writes_what_it_found(finished: Recorded) -> None:
    folder, results = finished.folder, finished.results
    written = json.loads((folder / "results.json").read_text())
    assert list(results.arms) == ["mlm", "condenser"]
    assert list(results.groups) == ["no labels", "16 labels"]
    assert written["groups"] == {
        group: {n: r.evaluation.means for n, r in arms.items()}
        for group, arms in results.groups.items()
    }
    assert written["bm25"] == results.bm25.evaluation.means
    assert written["control"] == "mlm"
    assert {g: set(arms) for g, arms in written["comparisons"].items()} == {
        "no labels": {"condenser", "bm25 + condenser"},
        "16 labels": {"condenser", "bm25 + condenser"},
    }
    assert list(written["bm25"]) == MEASURES
    assert written["facts"]["n_passages"] == N_PASSAGES
    assert written["facts"]["n_queries"] == 20
    assert written["facts"]["recipe"]["pretraining"]["max_steps"] == 6
    assert "torch" in written["facts"]["versions"]
    seen = {
        arm: json.loads((folder / arm / "pretrain" / "run.json").read_text())["tokens_seen"]
        for arm in ("mlm", "condenser")
    }
    assert written["facts"]["tokens_seen"] == seen and seen["mlm"] == seen["condenser"] > 0
    assert results.verdict().startswith("- Tokens of pre-training from the common start: mlm 0.00 ")
    text = (folder / "results.md").read_text()
    parts = [results.table(), results.verdict(), results.swap_cost_table(), "## Readiness\n"]
    assert text.startswith("\n\n".join(parts))
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_readiness_of_start_and_arms_is_measured_and_drawn_as_in_figure_2(
    finished: Recorded, collection: Path
) -> None:
    folder = finished.folder
    written = json.loads((folder / "readiness" / "readiness.json").read_text())
    models = {model["label"]: model for model in written["models"]}
    arms = [f"{arm}, {s}" for arm in ("mlm", "condenser") for s in ("pre-trained", "fine-tuned")]
    assert list(models) == ["start", *arms]
    has_head = [label for label, model in models.items() if model["condensing"]]
    assert has_head == ["condenser, pre-trained"]
    assert written["measured_on"]["collection"]["queries"] == 20
    # 60 passages are all there are, so zero-shot is what the retriever reaches on the collection.
    retriever = folder / "condenser" / "finetuned-0"
    metrics = json.loads((retriever / "evaluation" / "metrics.json").read_text())["evaluation"]
    assert models["condenser, fine-tuned"]["zero_shot"]["R@100"] == metrics["means"]["R@100"]
    text = (folder / "results.md").read_text()
    before, after = (
        models[f"condenser, {stage}"]["entropy"]["layers"]
        for stage in ("pre-trained", "fine-tuned")
    )
    change = sum(abs(a - b) for a, b in zip(after, before, strict=True)) / len(after)
    assert re.search(rf"mean over layers: mlm \d\.\d+, condenser {change:.3f}\.", text)
    assert "](attention_entropy.png)" in text
    assert (folder / "attention_entropy.png").read_bytes().startswith(b"\x89PNG")


def test_both_arms_start_alike_and_see_the_same_batches(finished: Recorded) -> None:
    runs = {arm: finished.folder / arm / "pretrain" for arm in ("mlm", "condenser")}
    records = [json.loads((run / "run.json").read_text()) for run in runs.values()]
    assert records[0]["tokens_seen"] == records[1]["tokens_seen"] > 6 * 8 * 5
    assert records[0]["steps"] == records[1]["steps"] == 6
    recipes = [yaml.safe_load((run / "recipe.yaml").read_text()) for run in runs.values()]
    assert recipes[0]["encoder"] == recipes[1]["encoder"]
    assert recipes[0]["encoder"] == str(finished.folder / "start" / "pretrain" / "model")
    batches = finished.batches
    assert len(batches["mlm/pretrain"]) == len(set(batches["mlm/pretrain"])) == 6
    assert batches["mlm/pretrain"] == batches["condenser/pretrain"]
    assert len(batches["start/pretrain"]) == 3


def test_a_figure_is_the_mean_over_the_finetuning_seeds(
    finished: Recorded, collection: Path
) -> None:
    for arm, result in finished.results.arms.items():
        values = [
            evaluate_system(
                finished.folder / arm / f"finetuned-{seed}" / "model",
                collection,
                finished.folder / arm / f"finetuned-{seed}" / "evaluation",
                name=arm,
                measures=MEASURES,
            ).evaluation.per_query["MRR@10"]
            for seed in (0, 1)
        ]
        expected = {query: (values[0][query] + values[1][query]) / 2 for query in values[0]}
        assert result.evaluation.per_query["MRR@10"] == pytest.approx(expected)
        mean = sum(expected.values()) / 20
        assert result.evaluation.means["MRR@10"] == pytest.approx(mean)


def test_an_arm_fused_with_bm25_is_the_mean_over_its_seeds_fused_runs(
    finished: Recorded, collection: Path
) -> None:
    folder, qrels = finished.folder, load_collection(collection).qrels
    bm25 = read_run(folder / "bm25" / "run-100.trec")
    for arm in ("mlm", "condenser"):
        for group, places in (
            ("no labels", ["evaluation"]),
            ("16 labels", ["finetuned-0/evaluation", "finetuned-1/evaluation"]),
        ):
            runs = [read_run(folder / arm / place / "run-100.trec") for place in places]
            fused = [reciprocal_rank_fusion([bm25, run]) for run in runs]
            means = [evaluate_run(qrels, run, measures=MEASURES).means for run in fused]
            found = finished.results.groups[group][f"bm25 + {arm}"].evaluation.means
            assert found == pytest.approx(
                {measure: sum(m[measure] for m in means) / len(means) for measure in MEASURES}
            )


def test_no_vectors_are_encoded_twice(finished: Recorded) -> None:
    places = [
        f"{arm}/{folder}evaluation/embeddings"
        for arm in ("mlm", "condenser")
        for folder in ("", "finetuned-0/", "finetuned-1/")
    ]
    assert sorted(finished.encoded) == sorted(places)


def test_the_swap_cost_by_step_is_the_logs(finished: Recorded) -> None:
    log = json.loads((finished.folder / "condenser" / "pretrain" / "log.json").read_text())
    logged = [(entry["step"], entry["swap_cost"]) for entry in log if "swap_cost" in entry]
    assert [step for step, _ in logged] == [2, 4, 6]
    written = json.loads((finished.folder / "results.json").read_text())["swap_costs"]
    assert written == {"condenser": [{"step": s, "swap_cost": cost} for s, cost in logged]}
    row = ", ".join(f"{cost:.3f} ({step})" for step, cost in logged)
    assert f"| condenser | {row} |" in (finished.folder / "results.md").read_text()


def test_the_figures_without_labels_are_the_exported_encoders(
    finished: Recorded, collection: Path, tmp_path: Path
) -> None:
    for arm, result in finished.results.groups["no labels"].items():
        encoder = finished.folder / arm / "encoder"
        if arm.startswith("bm25"):
            continue
        again = evaluate_system(encoder, collection, tmp_path / arm, name=arm, measures=MEASURES)
        assert result.evaluation == again.evaluation


def test_every_arms_retriever_has_its_results_on_its_card(finished: Recorded) -> None:
    for arm in finished.results.arms:
        folder = finished.folder / arm / "finetuned-0"
        metrics = json.loads((folder / "evaluation" / "metrics.json").read_text())
        card = ModelCard.load(folder / "model" / "README.md")
        found = {r.metric_type: r.metric_value for r in card.data.eval_results}
        means = metrics["evaluation"]["means"]
        assert found == {measure: round(value, 4) for measure, value in means.items()}
        bm25 = finished.results.bm25.evaluation.means["MRR@10"]
        [row] = [line for line in card.text.splitlines() if line.startswith("| MRR@10 |")]
        assert f"| {means['MRR@10']:.4f} |" in row and f"| bm25 | {bm25:.4f} |" in row
        assert "condenser evaluate OWNER/NAME small --baseline bm25 --split test" in card.text
        assert str(finished.folder.parent) not in card.text


def test_the_search_file_leads_to_the_best_arm(finished: Recorded, collection: Path) -> None:
    named = json.loads((finished.folder / "search.json").read_text())
    best = finished.results.best_arm
    means = {a: r.evaluation.means["MRR@10"] for a, r in finished.results.arms.items()}
    assert means[best] == max(means.values())
    assert named["model"] == f"{best}/finetuned-0/model"
    assert Embeddings.open(finished.folder / named["embeddings"]).n_passages == N_PASSAGES
    assert (finished.folder / named["collection"]).resolve() == collection


def test_a_second_run_trains_nothing_and_says_the_same(
    finished: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CondenserTrainer, "train", refuse)
    monkeypatch.setattr(SentenceTransformerTrainer, "train", refuse)
    monkeypatch.setattr(encoding_stage, "encode_collection", refuse)
    again = run_study(finished.settings)
    assert again.table() == finished.results.table()
    assert again.verdict() == finished.results.verdict()


def test_a_study_goes_on_where_it_was_killed_and_without_an_arm_that_fails(
    finished: Recorded, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(collection, tmp_path / "study")
    trained: list[str] = []
    pretrain, train = study.pretrain_and_measure, CondenserTrainer.train

    def killed(given: dict[str, Any]) -> Path:
        if "condenser" in given["output_dir"].rpartition("study")[2]:
            raise KeyboardInterrupt
        return pretrain(given)

    def recorded(self: CondenserTrainer, *args: Any, **kwargs: Any) -> Any:
        trained.append(str(Path(self.args.output_dir).relative_to(tmp_path / "study")))
        return train(self, *args, **kwargs)

    monkeypatch.setattr(CondenserTrainer, "train", recorded)
    monkeypatch.setattr(study, "pretrain_and_measure", killed)
    with pytest.raises(KeyboardInterrupt):
        run_study(settings)
    assert trained == ["start/pretrain", "mlm/pretrain"]

    def failing(given: dict[str, Any]) -> Path:
        if "condenser" in given["output_dir"].rpartition("study")[2]:
            raise RuntimeError("no memory\nleft")
        return pretrain(given)

    monkeypatch.setattr(study, "pretrain_and_measure", failing)
    partial = run_study(settings)
    assert list(partial.arms) == ["mlm"] and trained == ["start/pretrain", "mlm/pretrain"]
    assert partial.groups["16 labels"] == {
        arm: finished.results.groups["16 labels"][arm] for arm in ("mlm", "bm25 + mlm")
    }
    named = "- The arm condenser failed and is left out from there on: RuntimeError: no memory left"
    assert named in (tmp_path / "study" / "results.md").read_text().splitlines()
    written = json.loads((tmp_path / "study" / "results.json").read_text())
    assert written["failures"] == {"condenser": "RuntimeError: no memory left"}
    monkeypatch.setattr(study, "pretrain_and_measure", pretrain)
    results = run_study(settings)
    assert results.failures == {}
    assert trained == ["start/pretrain", "mlm/pretrain", "condenser/pretrain"]
    # And neither the interruption nor the failure changed anything.
    assert results.table() == finished.results.table()


def test_a_control_that_is_no_arm_is_refused(collection: Path, tmp_path: Path) -> None:
    settings = {**make_settings(collection, tmp_path / "study"), "control": "dpr"}
    with pytest.raises(ValueError, match="control arm 'dpr' is none of the arms mlm, condenser"):
        run_study(settings)
    assert not (tmp_path / "study").exists()


def test_only_a_contrastive_arm_may_choose_its_batch_and_its_steps(
    collection: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(collection, tmp_path / "study")
    own = {"per_device_train_batch_size": 4, "max_steps": 20}
    settings["arms"]["condenser"] |= own
    with pytest.raises(ValueError, match="changes max_steps, per_device_train_batch_size, but"):
        run_study(settings)
    contrasted = {**settings["arms"]["condenser"], "objective": "cocondenser", "span_length": 12}
    settings["arms"] = {"mlm": {"objective": "mlm"}, "co": contrasted}
    with pytest.raises(ValueError, match="changes max_length, but"):
        run_study({**settings, "arms": {**settings["arms"], "co": {**contrasted, "max_length": 9}}})
    results = run_study(settings)
    seen = results.facts["tokens_seen"]
    assert list(results.arms) == ["mlm", "co"] and seen["co"] > seen["mlm"]
    assert f"Arm co has seen {seen['co']} tokens, the control {seen['mlm']}" in caplog.text


@pytest.mark.parametrize(
    ("part", "field", "nearest"),
    [
        ("start", "learning_rat", "learning_rate"),
        ("pretraining", "max_step", "max_steps"),
        ("finetuning", "train_siz", "train_size"),
        ("fusion", "weigh", "weight"),
    ],
)
def test_a_wrong_setting_of_any_stage_is_found_before_the_first_one_starts(
    collection: Path, tmp_path: Path, part: str, field: str, nearest: str
) -> None:
    settings = make_settings(collection, tmp_path / "study")
    settings[part] = {**settings[part], field: 1}
    with pytest.raises(ValueError, match=f"no field '{field}'.*'{nearest}'"):
        run_study(settings)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": ["MRR@10", "R"]}, "measure 'R': R takes cutoff"),
        ({"fusion": {"method": "sum"}}, "method is 'sum', expected one of 'rrf', 'weighted'"),
        ({"arms": {"mlm": {}, "bm25 + x": {}}}, "cannot be called 'bm25 \\+ x'"),
    ],
)
def test_what_cannot_be_measured_is_found_before_anything_is_trained(
    collection: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_study({**make_settings(collection, tmp_path / "study"), **changes})
    assert not (tmp_path / "study").exists()


def test_an_encoder_without_sizes_is_refused(collection: Path, tmp_path: Path) -> None:
    settings = {**make_settings(collection, tmp_path / "study"), "encoder_config": {}}
    with pytest.raises(ValueError, match="lacks max_position_embeddings, vocab_size"):
        run_study(settings)


def make_results(fusion: Fusion | None = None, **values: list[float]) -> StudyResults:
    systems = {}
    for name, numbers in values.items():
        per_query = {"MRR@10": {f"q{i}": value for i, value in enumerate(numbers)}}
        means = {"MRR@10": sum(numbers) / len(numbers)}
        systems[name] = SystemResult(name, "small", "test", Evaluation(means, per_query))
    bm25 = systems.pop("bm25")
    return StudyResults(bm25, {"512 labels": systems}, "mlm", {"n_queries": 8}, fusion)


def test_the_table_and_the_verdict_say_whether_arms_differ() -> None:
    flat = [0.25] * 8
    results = make_results(
        bm25=[0.5] * 8,
        mlm=flat,
        # Better on each of 8 queries: 2 of 256 sign flips are as extreme.
        condenser=[0.375] * 8,
        # Better on one, worse on another, as much: every sign flip is as extreme.
        other=[0.5, 0.0, *flat[2:]],
    )
    assert results.best_arm == "condenser"
    *rows, _, explanation = results.table().splitlines()
    assert rows == [
        "| system | MRR@10 |",
        "| --- | --- |",
        "| bm25 | 0.500 |",
        "| mlm, 512 labels | 0.250 |",
        # Five tests; the p-values of three others are 1/128 too, so Holm takes this one times 5.
        "| condenser, 512 labels | 0.375 (+0.125, p = 0.039) |",
        "| other, 512 labels | 0.250 (+0.000, p = 1.000) |",
    ]
    assert "the 5 tests of this table" in explanation
    first, second = results.verdict().splitlines()
    assert first == (
        "- With 512 labels, condenser differs significantly from mlm in MRR@10: +0.125 (95 % "
        "interval +0.125 to +0.125, p = 0.0391)."
    )
    interval = re.fullmatch(
        r"- With 512 labels, other does not differ significantly from mlm in MRR@10: \+0\.000 "
        r"\(95 % interval "
        r"(-0\.\d+) to (\+0\.\d+), p = 1\.0000\)\.",
        second,
    )
    assert interval is not None
    assert -0.125 <= float(interval[1]) < 0 < float(interval[2]) <= 0.125


def test_fused_arms_are_compared_with_the_fused_control_and_corrected_with_the_rest() -> None:
    results = make_results(
        Fusion("rrf"),
        bm25=[0.5] * 10,
        mlm=[0.25] * 10,
        condenser=[0.25] * 10,
        **{"bm25 + mlm": [0.5] * 10, "bm25 + condenser": [0.625] * 10},
    )
    *rows, _, explanation = results.table().splitlines()
    # Six tests: of p = 2/1024 are two arms against bm25, the last row against bm25 and against
    # the fused control; of p = 1 the fused control against bm25, and condenser against mlm.
    assert rows[3:] == [
        "| mlm, 512 labels | 0.250 |",
        "| condenser, 512 labels | 0.250 (+0.000, p = 1.000) |",
        "| bm25 + mlm, 512 labels | 0.500 ~ |",
        "| bm25 + condenser, 512 labels | 0.625 (+0.125, p = 0.012) |",
    ]
    assert explanation.startswith(
        "In brackets: the difference from mlm, for fused arms from bm25 + mlm. bm25 + ARM: the "
        "runs of both, fused by reciprocal rank fusion (k = 60). ~ marks"
    )
    assert "the 6 tests of this table" in explanation
    assert (
        "- With 512 labels, bm25 + condenser differs significantly from bm25 + mlm in MRR@10: "
        in (results.verdict())
    )
    assert list(results.arms) == ["mlm", "condenser"]  # the best of which is to search with


def test_of_a_long_log_a_few_swap_costs_are_shown() -> None:
    log = [{"step": step, "loss": 1.0, "swap_cost": step / 100} for step in range(1, 12)]
    assert swap_costs([*log, {"step": 12, "loss": 1.0}]) == [
        {"step": step, "swap_cost": step / 100} for step in (1, 3, 5, 7, 9, 11)
    ]
    assert swap_costs([{"step": 1, "loss": 1.0}]) == []


def test_a_tiny_p_value_is_not_shown_as_zero() -> None:
    results = make_results(bm25=[0.5] * 40, mlm=[0.25] * 40, condenser=[0.5] * 40)
    comparison = results.comparisons["512 labels"]["condenser"]["MRR@10"]
    assert 0 < comparison.p_value < 0.001
    assert results.table().splitlines()[-3] == (
        "| condenser, 512 labels | 0.500 ~ (+0.250, p < 0.001) |"
    )


def test_results_are_written_with_their_comparisons(tmp_path: Path) -> None:
    results = make_results(bm25=[0.5] * 4, mlm=[0.25] * 4, condenser=[0.5, 0.5, 0.5, 0.25])
    results.write(tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    comparison = written["comparisons"]["512 labels"]["condenser"]["MRR@10"]
    assert comparison["difference"] == 0.1875
    assert comparison["p_value"] == 0.25  # three of three non-zero differences: 2 * 2 / 16
    adjusted = {(row["arm"], row["other"]): row["p"] for row in written["adjusted_p_values"]}
    # By Holm over 0.125 (mlm, bm25), 0.25 (condenser, mlm) and 1 (condenser, bm25).
    assert adjusted == {
        ("mlm", "bm25"): 0.375,
        ("condenser", "mlm"): 0.5,
        ("condenser", "bm25"): 1.0,
    }
    assert written["facts"] == {"n_queries": 8}
