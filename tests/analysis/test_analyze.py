"""`condenser analyze`: which models are measured, and what it writes."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset

from hub_scripts.main import main
from modeling_condenser.analysis.analyze import analyze, make_table, write_analysis
from modeling_condenser.analysis.readiness import measure_model, uniformity
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.run_folder import claim_run_folder
from modeling_condenser.publishing.export import export_encoder
from tests.publishing.making import plain_vectors

READ = "readiness/entropy"


@pytest.mark.slow
def test_a_run_is_measured_as_it_was_during_training(measured, readiness, tmp_path, capsys):
    out = tmp_path / "what-happened"
    sizes = [f"--{name}={value}" for name, value in readiness.items() if name != "every"]
    assert main(["analyze", str(measured), str(out), *sizes]) == 0
    printed = capsys.readouterr().out
    names = ["readiness.json", "readiness.md"]
    assert sorted(file.name for file in out.iterdir()) == names
    found = json.loads((out / "readiness.json").read_text())
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    log = {e["step"]: e for e in json.loads((measured / "log.json").read_text()) if READ in e}
    steps = {"checkpoint-2": 2, "checkpoint-4": 4, "checkpoint-5": 5, "model": 5}
    labels = [str(measured / folder) for folder in steps if (measured / folder).is_dir()]
    assert list(found["models"]) == sorted(labels) and len(labels) > 2
    for label, entry in found["models"].items():
        expected = log[steps[Path(label).name]]
        assert len(entry) >= 14
        assert entry == pytest.approx({name: expected[name] for name in entry}, abs=1e-6)
    costs = [f"{found['models'][label]['readiness/swap_cost']:.4f}" for label in sorted(labels)]
    assert f"| swap cost | {' | '.join(costs)} |" in (out / "readiness.md").read_text()
    assert f"{costs[0]}" in printed


def test_the_vector_of_an_encoder_without_a_stated_pooling_is_cls(bert_folder, texts):
    sample = Sample.choose(Measuring(texts=4), Dataset.from_dict({"text": texts}))
    entry = measure_model(bert_folder, sample)
    cls = plain_vectors(bert_folder, sample.texts, pooling="cls")
    assert entry["readiness/uniformity"] == pytest.approx(uniformity(cls.numpy()), abs=1e-5)
    assert "readiness/swap_cost" not in entry


def test_a_checkpoint_and_its_export_have_the_same_figures(bert_run, collection, tmp_path):
    run = Path(shutil.copytree(bert_run, tmp_path / "run"))
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps({**config, "similarity": "cosine"}))
    models = [run / "model", export_encoder(run, tmp_path / "encoder")]
    sizes = {"texts": 4, "max_length": 16, "queries": 99, "passages": 99}
    measuring = Measuring(collection=str(collection), split="train", **sizes)
    sample = Sample.choose(measuring, load_passages(collection))
    ours, theirs = (measure_model(model, sample) for model in models)
    assert "readiness/zero_shot_MRR@10" in theirs
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-6)


def test_a_table_has_a_row_for_each_measure_and_a_column_for_each_model(tmp_path):
    def entry(swap, *layers):
        names = {f"readiness/entropy_layer_{k}": value for k, value in enumerate(layers, start=1)}
        return {**swap, "readiness/entropy_even": 3.0, **names}

    entries = {"e|d": entry({"readiness/swap_cost": 0.25}, 1.5, 1.75), "plain": entry({}, 0.5)}
    sample = Sample(Measuring(), ["a b", "c d"], Dataset.from_dict({"query": ["a", "c"]}))
    table = make_table(entries)
    write_analysis(tmp_path / "out", entries, table, sample)
    report = (tmp_path / "out" / "readiness.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("|")] == [
        *("| measure | e\\|d | plain |", "| --- | ---: | ---: |", "| swap cost | 0.2500 |  |"),
        "| CLS attention entropy, all tokens alike | 3.0000 | 3.0000 |",
        "| CLS attention entropy, layer 1 | 1.5000 | 0.5000 |",
        "| CLS attention entropy, layer 2 | 1.7500 |  |",
    ]


def test_an_adaptation_is_measured_as_the_retriever_that_it_wrote(exported, corpus_file, tmp_path):
    run = tmp_path / "adapted"
    claim_run_folder(run, {"model": "its/start", "corpus": "health"}, "data")
    shutil.copytree(exported, run / "model")
    sizes = {"texts": 4, "corpus": str(corpus_file)}
    own, model = (
        analyze(models=[str(folder)], out=str(tmp_path / "out"), **sizes)
        for folder in (run, run / "model")
    )
    assert own.columns == [str(run)] and (own.to_numpy() == model.to_numpy()).all()
    (tmp_path / "out" / "notes.md").write_text("Mine.")
    with pytest.raises(ValueError, match="out has other files"):
        analyze(models=[str(run)], out=str(tmp_path / "out"), **sizes)
    with pytest.raises(ValueError, match="models is empty"):
        analyze(models=[], out=str(tmp_path / "new"), **sizes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no/such/model out --corpus CORPUS", "There is no folder 'no/such/model'"),
        ("ENCODER out", "There is no text to measure on"),
    ],
)
def test_bad_input_is_explained_and_nothing_is_written(
    words, message, bert_folder, corpus_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = words.replace("ENCODER", str(bert_folder)).replace("CORPUS", str(corpus_file))
    assert main(["analyze", *words.split()]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
