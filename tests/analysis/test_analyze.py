"""`condenser analyze`: which models are measured, and what it writes."""

import json
import re

import pytest
import torch
from transformers import AutoModel, set_seed

from hub_scripts.main import main
from modeling_condenser.analysis.analyze import analyze, entropy_table, measures_table
from modeling_condenser.analysis.models import Subject, find_models, models_of_run
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain

SMALL = ["--texts", "5", "--max_length", "32", "--queries", "6", "--passages", "20"]


@pytest.fixture(scope="module")
def run(bert_folder, corpus_file, tmp_path_factory):
    """A pre-training run with a complete checkpoint, an incomplete one and a final model."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    pretrain(
        {
            "encoder": str(bert_folder),
            "corpus": str(corpus_file),
            "n_head_layers": 1,
            "max_length": 32,
            "per_device_train_batch_size": 4,
            "max_steps": 3,
            "save_steps": 1,
            "learning_rate": 1e-3,
            "disable_tqdm": True,
            "use_cpu": True,
            "seed": 7,
            "output_dir": str(folder),
        }
    )
    (folder / "checkpoint-2" / "checkpoint_manifest.json").unlink()
    return folder


LABELS = ["start", "step 1", "end, step 3"]


def drawn_lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines}


def entropies(model):
    return [model[f"readiness/entropy_layer_{layer}"] for layer in (1, 2, 3, 4)]


@pytest.mark.slow
def test_a_run_is_its_start_its_complete_checkpoints_and_its_final_model(run, bert_folder, caplog):
    models = models_of_run(run)
    assert [m.label for m in models] == LABELS
    assert [m.step for m in models] == [0, 1, 3]
    assert "checkpoint-2 is incomplete" in caplog.text
    tokens = [m.tokens_seen for m in models]
    assert tokens[0] == 0 and tokens == sorted(set(tokens))
    # The start is the model that training began with.
    ours = models[0].open(32).condenser.state_dict()
    set_seed(7)
    theirs = open_model(PretrainingRecipe(str(bert_folder), "", n_head_layers=1)).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_the_command_measures_a_run_and_writes_figures_report_and_pictures(
    run, collection, tmp_path, capsys, figures
):
    out = tmp_path / "what-happened"
    words = ["analyze", str(run), str(out), "--collection", str(collection), *SMALL]
    assert main(words) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    names = ["attention_entropy.png", "readiness.json", "readiness.md", "readiness.png"]
    assert sorted(file.name for file in out.iterdir()) == names
    found = json.loads((out / "readiness.json").read_text())
    assert [m["label"] for m in found["models"]] == LABELS
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    assert "torch" in found["versions"]
    report = (out / "readiness.md").read_text()
    for model in found["models"]:
        swap, mrr = model["readiness/swap_cost"], model["readiness/zero_shot_MRR@10"]
        row = next(line for line in report.splitlines() if line.startswith(f"| {model['label']} "))
        assert row in printed and f"| {swap:.4f} |" in row and f"| {mrr:.4f} |" in row
    entropy_figure, course = figures
    lines = drawn_lines(entropy_figure.axes[0])
    assert list(lines) == [*LABELS, "even attention"]
    for model in found["models"]:
        assert list(lines[model["label"]]) == entropies(model)
    [swapped] = [line for line in course.axes[0].lines if "swapped" in line.get_label()]
    assert list(swapped.get_ydata()) == [m["readiness/swap_cost"] for m in found["models"]]


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
    lines = drawn_lines(figure.axes[0])
    first, second = (model["label"] for model in found["models"])
    assert list(lines) == [first, second, "even attention"]
    before, after = map(entropies, found["models"])
    differences = [b - a for a, b in zip(before, after, strict=True)]
    assert max(map(abs, differences)) > 1e-3
    assert f"({differences[0]:+.3f})" in capsys.readouterr().out


def test_the_vector_of_an_encoder_without_a_stated_pooling_is_cls(bert_folder):
    subject = Subject.open(bert_folder, max_length=32)
    encoder = AutoModel.from_pretrained(bert_folder).eval()
    with torch.no_grad():
        inputs = subject.tokenizer("It rained.", return_tensors="pt")
        cls = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state[:, 0]
    assert subject.encode_queries(["It rained."]) == pytest.approx(cls.numpy(), abs=1e-5)
    assert subject.condenser is None


@pytest.mark.slow
def test_measures_of_a_run_can_be_put_on_its_card_afterwards(run, tmp_path):
    card = run / "model" / "README.md"
    assert "## Readiness" not in card.read_text()
    settings = {"models": [str(run)], "out": str(tmp_path / "out"), "texts": 4, "max_length": 32}
    first, *_, last = analyze({**settings, "card": True}).entries.values()
    row = f"| {first['readiness/zero_cost']:.4f} | {last['readiness/zero_cost']:.4f} |"
    assert f"| rise when the late CLS is zeroed {row}" in card.read_text()
    assert (run / "model" / "readiness.png").is_file()
    exported = export_encoder(run, tmp_path / "export")
    assert row in (exported / "README.md").read_text()


def test_labels_distinguish_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["x/a/model", "y/b/model", "y/c"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    assert [m.label for m in find_models(names)] == ["a/model", "b/model", "y/c"]
    (tmp_path / "x/b/model").mkdir(parents=True)
    assert [m.label for m in find_models(["x/b/model", "y/b/model"])] == ["x/b/model", "y/b/model"]
    with pytest.raises(ValueError, match="models is a, a: name each model once"):
        find_models(["a", "a"])


def test_tables_show_each_model_with_its_difference_from_the_first():
    def entry(swap, *layers):
        names = {f"readiness/entropy_layer_{k}": value for k, value in enumerate(layers, start=1)}
        return {"readiness/swap_cost": swap, "readiness/entropy_even": 3.0, **names}

    entries = {"start": entry(0.0, 1.0, 2.0), "end": entry(0.25, 1.5, 1.75)}
    assert "| 0.0000 | 0.2500 | +0.2500 |" in measures_table(entries)
    assert "| b | 0.1250 |" in measures_table({**entries, "b": entry(0.125, 0.5)})
    rows = entropy_table({**entries, "b": entry(0.1, 0.5)}).splitlines()
    assert rows[2:5] == [
        "| start | 1.000 | 2.000 |",
        "| end | 1.500 (+0.500) | 1.750 (-0.250) |",
        "| b | 0.500 |  |",
    ]
    assert rows[-1] == "Even attention to all tokens has 3.000."


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (["no/such/model"], ["--corpus", "CORPUS"], "There is no encoder 'no/such/model'"),
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
    error = capsys.readouterr().err
    [line] = [line for line in error.splitlines() if line.startswith("error: ")]
    assert re.search(message, line) and not out.exists()
