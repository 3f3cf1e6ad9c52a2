"""`condenser analyze`: which models are measured, and what it writes."""

import json
import shutil

import pytest
import torch
from datasets import Dataset
from transformers import AutoModel

from hub_scripts.main import main
from modeling_condenser.analysis.analyze import report
from modeling_condenser.analysis.models import Subject
from modeling_condenser.analysis.sample import Measuring, Sample
from modeling_condenser.hub.export import export_encoder


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


def lines_of(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


@pytest.mark.slow
def test_a_run_is_measured_as_it_was_during_training_and_its_card_shows_it(
    run, readiness, tmp_path, capsys, figures
):
    """From the start, which is made again, to the end."""
    out = tmp_path / "what-happened"
    sizes = [f"--{name}={value}" for name, value in readiness.items() if name != "every"]
    assert main(["analyze", str(run), str(out), *sizes, "--card", "true"]) == 0
    printed = capsys.readouterr().out
    names = ["attention_entropy.png", "readiness.json", "readiness.md", "readiness.png"]
    assert sorted(file.name for file in out.iterdir()) == names
    found = json.loads((out / "readiness.json").read_text())
    labels = ["start", "step 4", "end, step 5"]
    assert [model["label"] for model in found["models"]] == labels
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    entries = json.loads((run / "log.json").read_text())
    log = {e["step"]: e for e in entries if "readiness/entropy" in e}
    for model in found["models"]:
        expected = {n: model[n] for n in log[model["step"]] if n in model}
        assert len(expected) > 15 and expected.pop("readiness/seconds") > 0
        assert expected == pytest.approx({n: log[model["step"]][n] for n in expected}, abs=1e-6)
        row = f"| {model['label']} | {model['readiness/head_loss']:.4f}"
        assert row in printed and row in (out / "readiness.md").read_text()

    first, *_, last = found["models"]
    row = f"| zero cost | {first['readiness/zero_cost']:.4f} | {last['readiness/zero_cost']:.4f} |"
    exported = export_encoder(run, tmp_path / "export")
    for folder in (run / "model", exported):
        assert row in (folder / "README.md").read_text()

    entropy_figure, course = figures[:2]
    lines = lines_of(entropy_figure.axes[0])
    assert list(lines) == [*labels, "even attention"]
    for model in found["models"]:
        assert lines[model["label"]] == [model[f"readiness/entropy_layer_{k}"] for k in range(1, 5)]
    swap_costs = [model["readiness/swap_cost"] for model in found["models"]]
    assert lines_of(course.axes[0])["mine, swap cost"] == swap_costs


def test_the_vector_of_an_encoder_without_a_stated_pooling_is_cls(bert_folder):
    subject = Subject.open(bert_folder, max_length=32)
    encoder = AutoModel.from_pretrained(bert_folder).eval()
    with torch.no_grad():
        inputs = subject.tokenizer("It rained.", return_tensors="pt")
        cls = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state[:, 0]
    assert subject.encode_queries(["It rained."]) == pytest.approx(cls.numpy(), abs=1e-5)
    assert subject.condenser is None


def test_tables_show_each_model_with_its_difference_from_the_first():
    def entry(label, swap, *layers):
        names = {f"readiness/entropy_layer_{k}": value for k, value in enumerate(layers, start=1)}
        return {"label": label, **swap, "readiness/entropy_even": 3.0, **names}

    entries = [
        entry("start", {"readiness/swap_cost": 0.0}, 1.0, 2.0),
        entry("e|d", {"readiness/swap_cost": 0.25}, 1.5, 1.75),
        entry("plain", {}, 0.5),
    ]
    sample = Sample(Measuring(), ["a b", "c d"], Dataset.from_dict({"query": ["a", "c"]}))
    rows = [line for line in report(entries, sample).splitlines() if "|" in line]
    assert rows == [
        *("| model | swap cost |", "| --- | ---: |"),
        *("| start | 0.0000 |", "| e\\|d | 0.2500 (+0.2500) |", "| plain |  |"),
        *("| model | 1 | 2 |", "| --- | ---: | ---: |", "| start | 1.000 | 2.000 |"),
        *("| e\\|d | 1.500 (+0.500) | 1.750 (-0.250) |", "| plain | 0.500 (-0.500) |  |"),
    ]


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (["no/such/model"], ["--corpus", "CORPUS"], "There is no encoder 'no/such/model'"),
        (["ENCODER", "ENCODER"], ["--corpus", "CORPUS"], "name each model once"),
        (["ENCODER"], [], "There is no text to measure on"),
        (["ENCODER"], ["--corpus", "CORPUS", "--card", "true"], "no model is a pre-training run"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    models, settings, message, bert_folder, corpus_file, tmp_path, capsys
):
    places = {"ENCODER": bert_folder, "CORPUS": corpus_file}
    out = tmp_path / "out"
    words = [str(places.get(word, word)) for word in [*models, str(out), *settings]]
    assert main(["analyze", *words]) == 2
    [line] = [e for e in capsys.readouterr().err.splitlines() if e.startswith("error: ")]
    assert message in line and not out.exists()
