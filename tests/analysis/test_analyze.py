"""The analysis stage, from the command line on."""

import json
import re

import pytest
import torch
from transformers import AutoModel, set_seed

from hub_scripts.main import main
from modeling_condenser import CondenserForPreTraining
from modeling_condenser.analysis.analyze import analyze, find_models
from modeling_condenser.analysis.run_models import models_of_run
from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain
from modeling_condenser.publishing.export import export_encoder

SMALL = ["--texts", "5", "--max_length", "32", "--queries", "6", "--passages", "20"]


@pytest.fixture(scope="module")
def run(bert_folder, corpus_file, tmp_path_factory):
    """A run of pre-training with two checkpoints, one of them torn, and a final model."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    pretrain(
        {
            "encoder": str(bert_folder),
            "corpus": str(corpus_file),
            "n_head_layers": 1,
            "max_length": 32,
            "per_device_train_batch_size": 4,
            "max_steps": 4,
            "save_steps": 1,
            "learning_rate": 1e-3,
            "disable_tqdm": True,
            "use_cpu": True,
            "seed": 7,
            "output_dir": str(folder),
        }
    )
    (folder / "checkpoint-3" / "checkpoint_manifest.json").unlink()
    return folder


@pytest.fixture(scope="module")
def export(run, tmp_path_factory):
    return export_encoder(run, tmp_path_factory.mktemp("exports") / "my-encoder")


@pytest.fixture(scope="module")
def retriever(export, collection, tmp_path_factory):
    return finetune(
        {
            "encoder": str(export),
            "collection": str(collection),
            "max_steps": 3,
            "learning_rate": 1e-2,
            "per_device_train_batch_size": 8,
            "use_cpu": True,
            "disable_tqdm": True,
            "output_dir": str(tmp_path_factory.mktemp("runs") / "retriever"),
        }
    )


def drawn_lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines}


def test_a_run_is_its_start_its_whole_checkpoints_and_its_final_model(run, caplog):
    models = models_of_run(run)
    assert [m.label for m in models] == ["start", "step 1", "step 2", "end, step 4"]
    assert [m.step for m in models] == [0, 1, 2, 4]
    assert "checkpoint-3 is not measured: not written to its end" in caplog.text
    tokens = [m.tokens_seen for m in models]
    assert tokens[0] == 0 and tokens == sorted(set(tokens))


def test_the_start_is_the_model_that_training_began_with(run, bert_folder):
    subject = models_of_run(run)[0].open(32)
    set_seed(7)
    began = open_model(PretrainingRecipe(str(bert_folder), "", n_head_layers=1))
    theirs = began.state_dict()
    ours = subject.condenser.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


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
    assert [m["label"] for m in found["models"]] == ["start", "step 1", "step 2", "end, step 4"]
    assert found["measured_on"]["pairs_are"] == "query and judged passage"
    assert "torch" in found["versions"]
    report = (out / "readiness.md").read_text()
    for model in found["models"]:
        swap, mrr = model["condensing"]["swap_cost"], model["zero_shot"]["MRR@10"]
        row = next(line for line in report.splitlines() if line.startswith(f"| {model['label']} "))
        assert row in printed and f"| {swap:.4f} |" in row and f"| {mrr:.4f} |" in row
    entropies, course = figures
    lines = drawn_lines(entropies.axes[0])
    assert list(lines) == ["start", "step 1", "step 2", "end, step 4", "even attention"]
    for model in found["models"]:
        assert list(lines[model["label"]]) == model["entropy"]["layers"]
    assert "(nats)" in entropies.axes[0].get_title()
    titles = [axes.get_title() for axes in course.axes]
    assert titles[1] == "CLS attention entropy (nats)"
    assert "MRR@10 on a small collection" in titles
    [swapped] = [line for line in course.axes[0].lines if "swapped" in line.get_label()]
    assert list(swapped.get_ydata()) == [m["condensing"]["swap_cost"] for m in found["models"]]


def test_pretrained_and_finetuned_are_two_lines_with_differences_by_layer(
    export, retriever, corpus_file, tmp_path, capsys, figures
):
    out = tmp_path / "what-changed"
    words = ["analyze", str(export), str(retriever), str(out), "--corpus", str(corpus_file)]
    assert main([*words, *SMALL]) == 0, capsys.readouterr().err
    found = json.loads((out / "readiness.json").read_text())
    labels = [model["label"] for model in found["models"]]
    assert labels == [f"{export.parent.name}/my-encoder", "retriever/model"]
    before, after = (model["entropy"]["layers"] for model in found["models"])
    report = (out / "readiness.md").read_text()
    row = next(line for line in report.splitlines() if line.startswith("| retriever/model | "))
    cells = [f"{b:.3f} ({b - a:+.3f})" for a, b in zip(before, after, strict=True)]
    assert row == f"| retriever/model | {' | '.join(cells)} |"
    assert max(abs(b - a) for a, b in zip(before, after, strict=True)) > 1e-3
    [entropies] = figures  # nothing is a course over steps
    assert list(drawn_lines(entropies.axes[0])) == [*labels, "even attention"]
    assert "zeroed" not in report  # neither has a head
    assert found["models"][0]["zero_shot"] == {}


def test_the_same_command_gives_the_same_bytes(run, tmp_path):
    words = [str(run), "--texts", "4", "--max_length", "32"]
    for name in ("first", "second"):
        assert main(["analyze", words[0], str(tmp_path / name), *words[1:]]) == 0
    for name in ("attention_entropy.png", "readiness.md", "readiness.png"):
        first, second = (tmp_path / folder / name for folder in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_an_encoder_that_says_no_pooling_is_measured_by_its_cls(bert_folder, corpus_file, tmp_path):
    found = analyze(
        {
            "models": [str(bert_folder)],
            "out": str(tmp_path / "out"),
            "corpus": str(corpus_file),
            "texts": 4,
            "max_length": 32,
        },
        progress=False,
    )
    subject = found.models[0].open(32)
    encoder, tokenizer = AutoModel.from_pretrained(bert_folder).eval(), subject.tokenizer
    with torch.no_grad():
        inputs = tokenizer("It rained.", return_tensors="pt")
        cls = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state[:, 0]
    assert subject.vectors.encode_queries(["It rained."]) == pytest.approx(cls.numpy(), abs=1e-5)
    assert found.readiness[0].condensing is None


def test_a_runs_figures_can_be_put_on_its_card_afterwards(run, tmp_path):
    card = run / "model" / "README.md"
    assert "## Readiness" not in card.read_text()
    found = analyze(
        {
            "models": [str(run)],
            "out": str(tmp_path / "out"),
            "texts": 4,
            "max_length": 32,
            "card": True,
        },
        progress=False,
    )
    first, last = found.readiness[0].condensing, found.readiness[-1].condensing
    row = f"| {first.zero_cost:.4f} | {last.zero_cost:.4f} |"
    assert f"| rise when the late CLS is zeroed {row}" in card.read_text()
    assert (run / "model" / "readiness.png").is_file()
    assert CondenserForPreTraining.from_pretrained(run / "model").config.n_head_layers == 1
    exported = export_encoder(run, tmp_path / "export")
    assert row in (exported / "README.md").read_text()


def test_labels_tell_models_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/model", "b/model", "c/encoder"):
        (tmp_path / name).mkdir(parents=True)
    models, runs = find_models(["a/model", "b/model", "c/encoder"])
    assert [m.label for m in models] == ["a/model", "b/model", "c/encoder"] and not runs
    with pytest.raises(ValueError, match="named twice"):
        find_models(["a", "a"])
    with pytest.raises(ValueError, match="No model came"):
        find_models([])


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (["no/such/model"], ["--corpus", "CORPUS"], "There is no encoder 'no/such/model'"),
        (["EMPTY"], ["--corpus", "CORPUS"], "holds no model"),
        (["EXPORT"], [], "There is no text to measure on"),
        (["EXPORT"], ["--corpus", "no-such-file.jsonl"], "no-such-file"),
        (["EXPORT"], ["--corpus", "ONE"], "at least 2 different texts"),
        (["EXPORT"], ["--collection", "EMPTY"], "no collection in"),
        (["EXPORT"], ["--collection", "COLLECTION", "--split", "dev"], "dev"),
        (["EXPORT"], ["--collection", "COLLECTION", "--labels", "99"], "has 40 in its split"),
        (["EXPORT"], ["--texts", "1"], "texts is 1, expected at least 2"),
        (["EXPORT"], ["--text", "9"], "no field 'text'"),
        (["EXPORT"], ["--corpus", "CORPUS", "--card", "true"], "none of the models is a run"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    models, settings, message, export, collection, corpus_file, tmp_path, capsys
):
    (tmp_path / "empty").mkdir()
    one = tmp_path / "one.txt"
    one.write_text("The only text.\n")
    places = {
        "EMPTY": tmp_path / "empty",
        "EXPORT": export,
        "COLLECTION": collection,
        "CORPUS": corpus_file,
        "ONE": one,
    }
    out = tmp_path / "out"
    words = [str(places.get(word, word)) for word in [*models, str(out), *settings]]
    assert main(["analyze", *words]) == 2
    error = capsys.readouterr().err
    [line] = [line for line in error.splitlines() if line.startswith("error: ")]
    assert re.search(message, line) and not out.exists()


def test_a_folder_that_holds_something_else_is_left_alone(export, corpus_file, tmp_path, capsys):
    words = ["analyze", str(export), str(tmp_path), "--corpus", str(corpus_file), *SMALL]
    (tmp_path / "notes.txt").write_text("mine")
    assert main(words) == 2
    assert "exists and is no earlier analysis" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
