"""`condenser analyze`: which models are measured, and what it writes."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset

from hub_scripts.main import main
from modeling_condenser.analysis.analyze import analyze, measure_models, write_analysis
from modeling_condenser.analysis.readiness import measure_model, uniformity
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.run_folder import claim_run_folder
from modeling_condenser.publishing.export import export_encoder
from tests.publishing.making import plain_vectors


@pytest.fixture
def run(measured, tmp_path):
    """A run with a complete checkpoint, an incomplete one, a final model, and no readiness."""
    folder = shutil.copytree(measured, tmp_path / "mine")
    (folder / "checkpoint-2" / "checkpoint_manifest.json").unlink()
    stages = json.loads((folder / "model" / "provenance.json").read_text())
    plain = [{name: value for name, value in s.items() if name != "readiness"} for s in stages]
    (folder / "model" / "provenance.json").write_text(json.dumps(plain))
    (folder / "model" / "README.md").unlink()
    return folder


@pytest.mark.slow
def test_a_run_is_measured_as_it_was_during_training_and_its_card_shows_it(
    run, readiness, tmp_path, capsys, figures
):
    out = tmp_path / "what-happened"
    sizes = [f"--{name}={value}" for name, value in readiness.items() if name != "every"]
    assert main(["analyze", str(run), str(out), *sizes, "--card", "true"]) == 0
    printed = capsys.readouterr().out
    names = ["attention_entropy.png", "readiness.json", "readiness.md", "readiness.png"]
    assert sorted(file.name for file in out.iterdir()) == names
    found = json.loads((out / "readiness.json").read_text())
    labels = ["step 4", "end, step 5"]
    assert [model["label"] for model in found["models"]] == labels
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    entries = json.loads((run / "log.json").read_text())
    log = {e["step"]: e for e in entries if "readiness/entropy" in e}
    for model in found["models"]:
        expected = {n: model[n] for n in log[model["step"]] if n in model}
        assert len(expected) > 15 and expected.pop("readiness/seconds") > 0
        assert expected == pytest.approx({n: log[model["step"]][n] for n in expected}, abs=1e-6)
        row = f"| {model['label']} | {model['readiness/head_loss']:.4f}"
        assert row in (out / "readiness.md").read_text()

    costs = [f"{model['readiness/swap_cost']:.4f}" for model in found["models"]]
    assert costs in [line.split()[-2:] for line in printed.splitlines() if "swap cost" in line]
    assert "![" not in printed and "|" not in printed
    costs = [model["readiness/zero_cost"] for model in found["models"]]
    row = f"| zero cost | {costs[0]:.4f} | {costs[-1]:.4f} |"
    assert row in (run / "model" / "README.md").read_text()
    entropies, course = figures[:2]
    assert [x.get_label() for x in entropies.axes[0].lines] == [*labels, "even attention"]
    panels = {axes.get_title(): axes.lines for axes in course.axes}
    assert [list(line.get_ydata()) for line in panels["zero cost"]] == [costs]


@pytest.mark.slow
def test_runs_of_the_same_folder_name_are_both_drawn(measured, tmp_path, figures):
    runs = [str(shutil.copytree(measured, tmp_path / arm / "run")) for arm in "ab"]
    analyze({"models": runs, "out": str(tmp_path / "out"), "texts": 2, "max_length": 8})
    assert [line.get_label() for line in figures[1].axes[0].lines] == runs


def test_the_vector_of_an_encoder_without_a_stated_pooling_is_cls(bert_folder, texts):
    sample = Sample.choose(Measuring(texts=4), Dataset.from_dict({"text": texts}))
    entry = measure_model(bert_folder, sample)
    cls = plain_vectors(bert_folder, sample.texts, pooling="cls")
    assert entry["readiness/uniformity"] == pytest.approx(uniformity(cls.numpy()), abs=1e-5)
    assert "readiness/swap_cost" not in entry


def test_a_checkpoint_and_its_export_have_the_same_figures(bert_run, collection, tmp_path):
    run = Path(shutil.copytree(bert_run, tmp_path / "run"))
    stages = json.loads((run / "model" / "provenance.json").read_text())
    stages[-1]["recipe"]["similarity"] = "cosine"
    (run / "model" / "provenance.json").write_text(json.dumps(stages))
    models = [run / "model", export_encoder(run, tmp_path / "encoder")]
    sizes = {"texts": 4, "max_length": 16, "queries": 99, "passages": 99}
    measuring = Measuring(collection=str(collection), split="train", **sizes)
    sample = Sample.choose(measuring, load_passages(collection))
    entries = measure_models([(model, {"label": model.name}) for model in models], sample)
    ours, theirs = (
        {name: value for name, value in entry.items() if name in entries[1]} for entry in entries
    )
    varying = ("label", "readiness/seconds")
    for entry in (ours, theirs):
        assert len([entry.pop(name) for name in varying]) == 2
    assert "readiness/zero_shot_MRR@10" in ours
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_tables_show_each_model_with_its_difference_from_the_first(tmp_path):
    def entry(label, swap, *layers):
        names = {f"readiness/entropy_layer_{k}": value for k, value in enumerate(layers, start=1)}
        return {"label": label, **swap, "readiness/entropy_even": 3.0, **names}

    entries = [
        entry("start", {"readiness/swap_cost": 0.0}, 1.0, 2.0),
        entry("e|d", {"readiness/swap_cost": 0.25}, 1.5, 1.75),
        entry("plain", {}, 0.5),
    ]
    sample = Sample(Measuring(), ["a b", "c d"], Dataset.from_dict({"query": ["a", "c"]}))
    report = write_analysis(tmp_path / "out", entries, sample)
    assert [line for line in report.splitlines() if "|" in line] == [
        *("| model | swap cost |", "| --- | ---: |"),
        *("| start | 0.0000 |", "| e\\|d | 0.2500 (+0.2500) |", "| plain |  |"),
        *("| model | 1 | 2 |", "| --- | ---: | ---: |", "| start | 1.000 | 2.000 |"),
        *("| e\\|d | 1.500 (+0.500) | 1.750 (-0.250) |", "| plain | 0.500 (-0.500) |  |"),
    ]


def test_an_adaptation_is_measured_as_the_retriever_that_it_wrote(exported, corpus_file, tmp_path):
    run = tmp_path / "adapted"
    claim_run_folder(run, {"model": "its/start", "corpus": "health"}, "data")
    shutil.copytree(exported, run / "model")
    sizes = {"texts": 4, "corpus": str(corpus_file)}
    own, model = (
        analyze({"models": [str(folder)], "out": str(tmp_path / "out"), **sizes})
        for folder in (run, run / "model")
    )
    assert own.columns == [str(run)] and (own.to_numpy() == model.to_numpy()).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no/such/model out --corpus CORPUS", "There is no folder 'no/such/model'"),
        ("ENCODER out", "There is no text to measure on"),
        ("ENCODER out --corpus CORPUS --card true", "no model is a finished pre-training run"),
    ],
)
def test_bad_input_is_explained_and_nothing_is_written(
    words, message, bert_folder, corpus_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = words.replace("ENCODER", str(bert_folder)).replace("CORPUS", str(corpus_file))
    assert main(["analyze", *words.split()]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
