"""`condenser analyze`: which models are measured, and what it writes."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModel, set_seed

from hub_scripts.main import main
from modeling_condenser.analysis.analyze import Analysis, report
from modeling_condenser.analysis.models import Subject, find_models
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model

LABELS = ["start", "step 4", "end, step 5"]


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


def entropies(model):
    return [model[f"readiness/entropy_layer_{layer}"] for layer in (1, 2, 3, 4)]


@pytest.mark.slow
def test_a_run_stands_for_its_models_the_first_of_which_is_as_training_began(run, bert_folder):
    first, *others = find_models([str(run), str(bert_folder)])
    names = [f"{run}, {label}" for label in LABELS]
    assert [model.label for model in (first, *others)] == [*names, str(bert_folder)]
    ours = first.open(32).condenser.state_dict()
    set_seed(7)
    theirs = open_model(PretrainingRecipe(str(bert_folder), "", n_head_layers=1)).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


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
    assert [model["label"] for model in found["models"]] == LABELS
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    entries = json.loads((run / "log.json").read_text())
    log = {e["step"]: e for e in entries if "readiness/entropy" in e}
    for model in found["models"]:
        assert model["num_input_tokens_seen"] == log[model["step"]]["num_input_tokens_seen"]
        for name, value in model.items():
            if name.startswith("readiness/") and name != "readiness/seconds":
                assert value == pytest.approx(log[model["step"]][name], abs=1e-6), name
        row = f"| {model['label']} | {model['readiness/head_loss']:.4f}"
        assert row in printed and row in (out / "readiness.md").read_text()

    first, *_, last = found["models"]
    row = f"| zero cost | {first['readiness/zero_cost']:.4f} | {last['readiness/zero_cost']:.4f} |"
    exported = export_encoder(run, tmp_path / "export")
    for folder in (run / "model", exported):
        assert row in (folder / "README.md").read_text()

    entropy_figure, course = figures[:2]
    lines = lines_of(entropy_figure.axes[0])
    assert list(lines) == [*LABELS, "even attention"]
    assert [lines[model["label"]] for model in found["models"]] == list(
        map(entropies, found["models"])
    )
    swap_costs = [model["readiness/swap_cost"] for model in found["models"]]
    panels = {axes.get_title(): lines_of(axes) for axes in course.axes}
    assert panels["swap cost"]["mine"] == swap_costs


@pytest.mark.slow
def test_two_models_are_compared_as_in_figure_2(
    bert_folder, bert_run, corpus_file, tmp_path, capsys, figures
):
    models = [str(bert_folder), str(bert_run / "model")]
    words = [*models, str(tmp_path / "out"), "--corpus", str(corpus_file)]
    assert main(["analyze", *words, "--recipe", "analyze/figure-2", "--max_length", "16"]) == 0
    found = json.loads((tmp_path / "out" / "readiness.json").read_text())
    assert found["settings"]["texts"] == 1000
    [figure] = figures  # there is no course over steps
    labels = [model["label"] for model in found["models"]]
    assert list(lines_of(figure.axes[0])) == [*labels, "even attention"]
    before, after = (entropies(model)[0] for model in found["models"])
    assert abs(after - before) > 1e-3
    assert f"| {after:.3f} ({after - before:+.3f}) |" in capsys.readouterr().out


def test_the_vector_of_an_encoder_without_a_stated_pooling_is_cls(bert_folder):
    subject = Subject.open(bert_folder, max_length=32)
    encoder = AutoModel.from_pretrained(bert_folder).eval()
    with torch.no_grad():
        inputs = subject.tokenizer("It rained.", return_tensors="pt")
        cls = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state[:, 0]
    assert subject.encode_queries(["It rained."]) == pytest.approx(cls.numpy(), abs=1e-5)
    assert subject.condenser is None


def test_tables_show_each_model_with_its_difference_from_the_first():
    def entry(swap, *layers):
        names = {f"readiness/entropy_layer_{k}": value for k, value in enumerate(layers, start=1)}
        return {**swap, "readiness/entropy_even": 3.0, **names}

    entries = {
        "start": entry({"readiness/swap_cost": 0.0}, 1.0, 2.0),
        "e|d": entry({"readiness/swap_cost": 0.25}, 1.5, 1.75),
        "plain": entry({}, 0.5),
    }
    facts = {"texts": 4, "pairs": 2, "pairs_are": "halves of one text"}
    sample = SimpleNamespace(facts=lambda: facts)
    rows = [line for line in report(Analysis(entries, sample)).splitlines() if "|" in line]
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
