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
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from hub_scripts.main import main
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding import encode as encoding_stage
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.retrieval import fusion
from modeling_condenser.retrieval.fusion import choose_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.study import study
from modeling_condenser.study.recipe import StudyRecipe
from modeling_condenser.study.study import run_study
from tests.encoding.making import save_modules
from tests.publishing.making import write_collection

MEASURES = ["MRR@10", "R@100"]
QUICK = {"use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8}
SHORT = {"max_length": 32, "max_steps": 4, "learning_rate": 1e-3, "logging_steps": 2, **QUICK}


@pytest.fixture(scope="module")
def collection(collection, texts, tmp_path_factory):
    """One of 70 passages with dev queries, and passages that share titles."""
    folder = Path(shutil.copytree(collection, tmp_path_factory.mktemp("collections") / "small"))
    shutil.copy(folder / "qrels/train.tsv", folder / "qrels/dev.tsv")
    rows = list(map(json.loads, (folder / "corpus.jsonl").read_text().splitlines()))
    rows += [{"_id": f"o{i}", "text": text} for i, text in enumerate(texts[60:70])]
    titled = [{**row, "title": f"topic {i % 9}"} for i, row in enumerate(rows)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in titled))
    return folder


def make_settings(collection, encoder, out):
    head = {"new_head": True, "n_head_layers": 1, "skip_from": 1}
    lengths = {"query_max_length": 16, "passage_max_length": 24}
    finetuning = {"similarity": "cosine", "learning_rate": 1e-3, **QUICK}
    while_training = {"collection": str(collection), "texts": 9, "every": 2}
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
        "finetuning": {**finetuning, **lengths, "num_train_epochs": 1},
        "train_sizes": [8],
        "finetuning_seeds": [0, 1],
        "measures": MEASURES,
        "search": {"dtype": "bfloat16"},
        "fusion": "dev",
        "readiness": {"texts": 9},
    }


@pytest.fixture(scope="module", autouse=True)
def few_queries_are_enough():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "FEWEST_QUERIES", 1)
        yield


@pytest.fixture(scope="module")
def finished(collection, bert_folder, tmp_path_factory):
    """A study that was killed, continued with one more arm, and again after an arm had failed."""
    out = tmp_path_factory.mktemp("studies") / "study"
    settings = make_settings(collection, bert_folder, out)
    trained, errors = list[str](), [KeyboardInterrupt(), RuntimeError("no memory\nleft"), None]
    pretrain, train = study.pretrain, CondenserTrainer.train

    def stop(given, **callbacks):
        if errors[0] and "/condenser/" in given["output_dir"]:
            raise errors[0]
        return pretrain(given, **callbacks)

    def recorded(self, *args, **kwargs):
        trained.append(Path(self.args.output_dir).parent.name)
        return train(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(study, "pretrain", stop)
        patched.setattr(CondenserTrainer, "train", recorded)
        fewer = {name: arm for name, arm in settings["arms"].items() if name != "start"}
        with pytest.raises(KeyboardInterrupt):
            run_study({**settings, "arms": fewer})
        errors.pop(0)
        run_study(settings)
        assert trained == ["mlm"]
        page = (out / "results.md").read_text()
        errors.pop(0)
        results = run_study(settings, command="condenser study mine")
    assert trained == ["mlm", "condenser"]
    facts = {"settings": settings, "page_of_failure": page}
    return SimpleNamespace(results=results, folder=out, **facts)


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_a_study_writes_its_results(finished, bert_folder):
    folder, written = finished.folder, read(finished.folder, "results.json")
    assert list(finished.results.groups) == ["no labels", "8 labels"]
    arms = ["start", "mlm", "condenser"]
    assert set(written["groups"]["8 labels"]) == {*arms, *(f"bm25 + {arm}" for arm in arms)}
    assert written["facts"]["n_passages"] == 70 and written["facts"]["n_queries"] == 20
    costs = written["facts"]["costs"]
    records = [read(folder, f"{arm}/pretrain/run.json") for arm in ("mlm", "condenser")]
    for name in ("blocks_sha256", "seed", "tokens_seen"):  # which decide the batches
        assert records[0][name] == records[1][name]
    seen = records[0]["tokens_seen"]
    assert costs["mlm"]["tokens"] == costs["condenser"]["tokens"] == seen
    assert costs["start"]["unlabelled"] == 0 < costs["start"]["labelled"]
    recipes = (folder / f"{arm}/pretrain/recipe.yaml" for arm in ("mlm", "condenser"))
    encoders = [yaml.safe_load(recipe.read_text())["encoder"] for recipe in recipes]
    assert encoders == [str(bert_folder)] * 2
    report = (folder / "results.md").read_text()
    assert f"| mlm | objective mlm | {seen / 1e6:.2f} | " in report
    assert "| start | the start itself | 0 | 0.0 | " in report
    assert report.startswith("# A small study\n\nDoes it help?\n\n```bash\ncondenser study mine\n")
    contract = EncodingContract.load(folder / "mlm/8-labels-0/model")
    assert contract == EncodingContract(16, 24, similarity="cosine")
    page = folder.with_name("page.md")
    pictures = re.findall(r"!\[.*\]\(page-(.*)\)", page.read_text())
    names = ("labels", "finetuning", "curves", "map", "attention_entropy")
    assert pictures == [f"{name}.png" for name in names]
    for name in pictures:
        assert (folder / name).read_bytes() == page.with_name(f"page-{name}").read_bytes()


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
        ("8 labels", ["8-labels-0/evaluation", "8-labels-1/evaluation"]),
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
    folder = finished.folder / "condenser" / "8-labels-0"
    means = read(folder, "evaluation/metrics.json")["evaluation"]["means"]
    card = ModelCard.load(folder / "model" / "README.md")
    found = {r.metric_type: r.metric_value for r in card.data.eval_results}
    assert found == {measure: round(value, 4) for measure, value in means.items()}
    command = "condenser evaluate OWNER/NAME small --baseline bm25 --split test --dtype bfloat16"
    assert command in card.text
    named = read(finished.folder, "search.json")
    assert named["model"] == f"{finished.results.best_arm}/8-labels-0/model,dtype=bfloat16"
    assert (finished.folder / named["embeddings"]).is_dir()
    assert (finished.folder / named["collection"]).resolve() == collection


@pytest.mark.slow
def test_a_failed_arm_is_named_and_a_finished_study_does_nothing_again(
    finished, tmp_path, monkeypatch, capsys
):
    named = "- The arm condenser failed and is left out: RuntimeError: no memory left"
    assert named in finished.page_of_failure.splitlines() and finished.results.failures == {}

    def refuse(*args, **kwargs):
        raise AssertionError("done again")

    monkeypatch.setattr(CondenserTrainer, "train", refuse)
    monkeypatch.setattr(SentenceTransformerTrainer, "train", refuse)
    monkeypatch.setattr(encoding_stage, "encode_collection", refuse)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(finished.settings, sort_keys=False))
    assert main(["study", str(tmp_path / "recipe.yaml")]) == 0
    assert str(finished.results) in capsys.readouterr().out


@pytest.fixture(scope="module")
def published(bert_folder, tmp_path_factory):
    """Two embedding models, with mean and CLS pooling."""
    folder, how = tmp_path_factory.mktemp("published"), {"similarity_fn_name": "cosine"}
    return [
        save_modules(
            folder / mode,
            bert_folder,
            lambda n, mode=mode: [Pooling(n, pooling_mode=mode), Normalize()],
            **how,
        )
        for mode in ("mean", "cls")
    ]


def make_comparison(collection, out, **changes):
    small = {"n_queries": 30, "steps": 5, "batch_size": 8, "kinds": ["sentence", "span"]}
    return {
        "collection": str(collection),
        "output_dir": str(out),
        "control": "untouched",
        "arms": {
            "untouched": None,
            "adapted": {"objective": "adapt", "keep_adapted": True, **small},
            "labelled": {"objective": "adapt", "labels": True, **small},
        },
        "pretraining": {},
        "finetuning": {**QUICK, "num_train_epochs": 1},
        "train_sizes": [8],
        "measures": ["MRR@10"],
        **changes,
    }


def test_each_start_goes_through_all_arms_beside_the_system_of_today(
    collection, published, tmp_path, monkeypatch
):
    adapted, out = {}, tmp_path / "study"

    def adapt(settings):
        adapted[str(Path(settings["output_dir"]).relative_to(out))] = settings
        start = published[0] if "8-labels" in settings["model"] else settings["model"]
        return SimpleNamespace(model=start, verdict="better: much", is_adapted=False)

    def finetune(settings):
        run = Path(settings["output_dir"])
        shutil.copytree(settings["encoder"], run / "model", dirs_exist_ok=True)
        return run / "model"

    monkeypatch.setattr(study, "adapt", adapt)
    monkeypatch.setattr(study, "finetune", finetune)
    qrels = load_collection(collection).qrels
    lines = [f"{query} Q0 {max(found)} 1 1.0 today\n" for query, found in qrels.items()]
    (tmp_path / "today.trec").write_text("".join(lines))
    starts = list(map(str, published))
    settings = make_comparison(collection, out, start=starts, fusion="rrf")
    results = run_study({**settings, "systems": [str(tmp_path / "today.trec")]})
    names = [f"{s}/{a}" for s in ("mean", "cls") for a in ("untouched", "adapted", "labelled")]
    assert results.arms == names
    for name, control in (
        ("cls/adapted", "cls/untouched"),
        ("bm25 + cls/adapted", "bm25 + cls/untouched"),
        ("cls/untouched", "mean/untouched"),
        ("today", "mean/untouched"),
    ):
        assert results.control_of(name) == control
    means = evaluate_run(qrels, read_run(tmp_path / "today.trec"), measures=["MRR@10"]).means
    for group in ("no labels", "8 labels"):
        assert list(results.groups[group]) == ["today", *names, *(f"bm25 + {n}" for n in names)]
        assert results.groups[group]["today"].means == means
    # Those with labels adapt what fine-tuning made, or the start itself by the labels.
    tuned = str(out / "cls/untouched/8-labels-0/model")
    assert [adapted[f"cls/adapted{place}"]["model"] for place in ("", "/8-labels-0")] == [
        starts[1],
        tuned,
    ]
    own = [adapted[f"cls/labelled{place}"] for place in ("", "/8-labels-0")]
    assert [(o["model"], o["labels"], o["train_size"]) for o in own] == [
        (starts[1], False, None),
        (starts[1], True, 8),
    ]
    assert (
        "- cls/adapted, 8 labels: better: much; the start is kept\n"
        in (out / "results.md").read_text()
    )
    named = read(out, "search.json")
    assert (out / named["model"].partition(",")[0]).is_dir()


@pytest.mark.slow
def test_an_adapted_arm_is_measured_without_labels_and_after_fine_tuning(
    collection, published, tmp_path
):
    settings = make_comparison(collection, tmp_path / "study", encoder=str(published[0]))
    del settings["arms"]["labelled"]
    results = run_study(settings)
    for group, place in (("no labels", ""), ("8 labels", "8-labels-0")):
        own, start = (tmp_path / "study" / arm / place for arm in ("adapted", "untouched"))
        verdict = read(own, "verdict.json")["verdict"]["comparison"]
        assert f"{verdict['difference']:+.3f}" in results.verdicts[f"adapted, {group}"]
        runs = [read_run(folder / "evaluation/run-100.trec") for folder in (own, start)]
        assert runs[0] != runs[1]
        queries = list(load_collection(collection).queries.values())
        embeddings = Embeddings.open(own / "evaluation/embeddings")
        found = Retriever(own / "model").search(queries, embeddings, depth=1)
        assert [{name for name, _ in one} for one in found] == [
            {next(iter(run))} for run in runs[0].values()
        ]


def test_an_empty_prompt_holds_for_arms_without_labels_too(collection, bert_folder, tmp_path):
    settings = make_settings(collection, bert_folder, tmp_path)
    settings["finetuning"] = {"query_prompt": "", "passage_prompt": None}
    assert StudyRecipe(**settings).stated_contract == {"query_prompt": ""}


def test_few_labels_of_readiness_are_those_of_the_collection(collection, bert_folder, tmp_path):
    settings = make_settings(collection, bert_folder, tmp_path)
    assert StudyRecipe(**{**settings, "readiness": {"labels": 8}}).readiness == {"labels": 8}


@pytest.fixture
def untrained(collection, bert_folder, tmp_path):
    """Settings of a study of the encoder as it is."""
    settings = make_settings(collection, bert_folder, tmp_path / "study")
    changes = {"arms": {"start": None}, "control": "start", "train_sizes": [], "fusion": None}
    return {**settings, **changes}


def test_the_search_file_of_a_study_below_a_link_names_the_collection(
    untrained, collection, tmp_path
):
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/deep")
    run_study({**untrained, "output_dir": str(tmp_path / "link/study")})
    named = read(tmp_path / "link/study", "search.json")
    assert (tmp_path / "link/study" / named["collection"]).samefile(collection)


def test_a_study_searches_as_deep_as_its_measures_look(untrained, texts, tmp_path):
    passages = [{"_id": f"p{i}", "text": text} for i, text in enumerate(texts[:150])]
    judged = [("q", passage["_id"], 1) for passage in passages]
    queries = [{"_id": "q", "text": "Why?"}]
    more = write_collection(tmp_path / "more", passages, queries, test=judged)
    results = run_study({**untrained, "collection": str(more), "measures": ["R@150"]})
    assert results.groups["no labels"]["start"].means == {"R@150": 1.0}


def test_the_encoder_of_another_pre_training_is_not_measured(
    collection, bert_folder, bert_run, roberta_run, tmp_path, monkeypatch
):
    settings = make_settings(collection, bert_folder, tmp_path / "study")
    runs = iter([bert_run, bert_run, roberta_run])
    monkeypatch.setattr(study, "pretrain", lambda *_, **__: next(runs) / "model")
    monkeypatch.setattr(study, "readiness_callbacks", lambda _: [])
    own = study._Study(StudyRecipe(**settings))
    assert own.pretrain("mlm").fingerprint == own.pretrain("mlm").fingerprint
    with pytest.raises(ValueError, match="is an export of another run"):
        own.pretrain("mlm")


def test_an_arm_is_pre_trained_with_the_pooling_that_it_is_measured_with(
    collection, bert_folder, bert_run, tmp_path, monkeypatch
):
    settings, given = make_settings(collection, bert_folder, tmp_path / "study"), {}
    monkeypatch.setattr(study, "pretrain", lambda own, **_: given.update(own) or bert_run / "model")
    monkeypatch.setattr(study, "readiness_callbacks", lambda _: [])
    settings["finetuning"]["pooling"] = "mean"
    made = study._Study(StudyRecipe(**settings)).pretrain("mlm")
    assert given["pooling"] == made.settings["pooling"] == "mean"


def test_dev_queries_choose_the_fusion_of_a_hybrid_system(untrained, exported, tmp_path):
    run_study({**untrained, "systems": [f"hybrid:{exported}"]})
    assert len(list((tmp_path / "study/systems").glob("*/dev/run-100.trec"))) == 1


def test_a_card_has_no_figures_of_another_contract(collection, published, tmp_path):
    out = tmp_path / "study"
    settings = make_comparison(collection, out, encoder=str(published[0]), train_sizes=[])
    del settings["arms"]["labelled"]
    run_study({**settings, "finetuning": {"similarity": "cosine", "query_max_length": 8}})
    assert "This model has not been evaluated." in (out / "adapted/model/README.md").read_text()


def test_the_last_number_of_labels_is_the_most_whatever_the_order_of_the_recipe(
    collection, bert_folder, tmp_path
):
    settings = make_settings(collection, bert_folder, tmp_path)
    groups = StudyRecipe(**{**settings, "train_sizes": [32, None, 8]}).groups
    assert list(groups) == ["no labels", "8 labels", "32 labels", "all labels"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": ["a/x", "b/x"]}, "have the same name"),
        ({"systems": ["runs/mlm"]}, "have the same name"),
        ({"arms": {"mlm": {}, "readiness": {}}}, "'readiness' is a folder of the study itself"),
        ({"arms": {"mlm": {}, "w/o": None}}, "arm 'w/o' has no name for a folder"),
        ({"arms": {"mlm": {}, "x": {"objective": "adapt"}}}, "'x' adapts what the start becomes"),
        ({"arms": {"mlm": None, "x": {"objective": "adapt", "step": 1}}}, "no field 'step'"),
        (
            {"split": "dev", "fusion": "rrf", "arms": {"mlm": None, "x": {"objective": "adapt"}}},
            "dev queries decide whether an adapted model is kept",
        ),
        (
            {"split": "dev", "fusion": "rrf", "finetuning": {"load_best_model_at_end": True}},
            "load_best_model_at_end chooses weights by dev queries",
        ),
        ({"train_sizes": [0, 8]}, "train_size is 0, expected at least 1"),
        ({"train_sizes": [None], "finetuning": {"split": "no"}}, "has no split 'no'"),
        ({"train_sizes": [8, 64]}, "names 64, but the split train of .* has 40 labelled pairs"),
        ({"arms": {"mlm": "mlm"}}, "arms is .*expected dict"),
        ({"control": "dpr"}, "control is 'dpr', expected one of"),
        ({"arms": {"mlm": {}, "x": {"max_steps": 20}}}, "changes max_steps, but arms"),
        ({"pretraining": {"max_step": 1}}, "no field 'max_step'.*'max_steps'"),
        ({"finetuning": {"train_siz": 1}}, "no field 'train_siz'.*'train_size'"),
        ({"finetuning": {"train_size": 1}}, "set train_sizes, such as"),
        ({"finetuning": {"seed": 1}}, "set finetuning_seeds, such as"),
        ({"pretraining": {"encoder": "other"}}, "encoder stands under a stage"),
        ({"finetuning_seeds": []}, "finetuning_seeds is empty"),
        ({"split": "dev.small"}, "fusion is dev, but split is dev.small"),
        ({"fusion": "sum"}, "fusion is 'sum', expected one of dev, rrf, 0.1"),
        ({"measures": []}, "measures is empty: name at least one"),
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
