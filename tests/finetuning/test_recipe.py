"""Settings of a fine-tuning recipe, and the shipped recipes on data of their layouts."""

import json
from typing import Any

import pytest

from modeling_condenser.files.models import EncodingContract
from modeling_condenser.files.settings import parse_settings, read_recipe
from modeling_condenser.finetuning.recipe import FinetuningRecipe

PAIRS = {"data": "pairs.jsonl"}
SCORED = {"data": "s.jsonl", "objective": "kl"}


def recipe(**settings: Any) -> FinetuningRecipe:
    return parse_settings({"encoder": "owner/encoder", **settings}, FinetuningRecipe)[0]


def test_a_loss_by_the_cosine_has_the_temperature_of_pretraining():
    cosine = {"similarity": "cosine"}
    for settings, expected in (
        ({**PAIRS, **cosine}, 0.05),
        ({**PAIRS, **cosine, "temperature": 1.0}, 1.0),
        (PAIRS, 1.0),
        ({**SCORED, **cosine}, 0.05),
        (SCORED, 1.0),
    ):
        assert recipe(**settings).loss_temperature == expected, settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collection": "c", **PAIRS}, "needs either a collection, .* or data"),
        ({"collection": "c", "objective": "kl"}, "kl .* needs negatives: .* `condenser mine`"),
        ({**PAIRS, "similarity": "euclidean"}, "'euclidean' is not supported .* dot, cosine"),
        ({"collection": "c", "data_name": "a"}, "data_name has no effect .* with a collection"),
        ({**PAIRS, "margin": 2.0}, "margin has no effect on the objective contrastive"),
        ({**SCORED, "mini_batch_size": 8}, "mini_batch_size has no effect on the objective"),
        (
            {"data": "g.jsonl", "objective": "mse_cosine", "n_negatives": 3},
            "n_negatives has no effect on the objective mse_cosine",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        recipe(**settings)


def lines(form: str, *, n: int = 12) -> str:
    """Lines of a form with the number i, and the numbers behind 10 + i."""
    later = [",".join(map(str, range(10 + i, 22 + i))) for i in range(n)]
    return "".join(form.format(i=i, later=later[i]) + "\n" for i in range(n))


DPR = [
    {
        "question": f"where is river {i}",
        "positive_ctxs": [{"title": f"River {i}", "text": f"near fjord {i}"}] if i else [],
        "hard_negative_ctxs": [{"title": "Museum", "text": f"museum {i}"}],
    }
    for i in range(12)
]
# tests/test_docs.py runs finetune/own-text; the other recipes have the layouts of these.
FILES = {
    "stsb": {"a.csv": "sentence1,sentence2,score\n" + lines("river {i},museum {i},4.5")},
    "open-qa": {"a.json": json.dumps(DPR, indent=4)},
    "msmarco-passage": {  # RocketQA's edition
        "para.txt": lines("{i}\tfjord {i}", n=40),
        "para.title.txt": lines("{i}\tTitle {i}", n=40),
        "train.query.txt": lines("{i}\triver {i}", n=10),
        "qrels.train.tsv": lines("{i}\t0\t{i}\t1", n=10),
        "train.negatives.tsv": lines("{i}\t{later}", n=10),
    },
}


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_runs(name, train, tmp_path):
    for file, content in FILES[name].items():
        (tmp_path / file).write_text(content)
    data = {"data": str(tmp_path / next(iter(FILES[name])))}
    if name == "msmarco-passage":
        data = {"collection": str(tmp_path), "negatives": str(tmp_path / "train.negatives.tsv")}
    settings = read_recipe(f"finetune/{name}")
    # The tiny encoder has 64 positions.
    lengths = {n: min(settings[n], 64) for n in ("query_max_length", "passage_max_length")}
    short = {"max_steps": 2, "per_device_train_batch_size": 4}
    contract = EncodingContract.load(train(**{**settings, **data, **lengths, **short}))
    named = {"pooling": "mean", "similarity": "cosine", **settings, **lengths}
    expected = {n: named[n] for n in (*lengths, "pooling", "similarity")}
    assert {n: getattr(contract, n) for n in expected} == expected
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["steps"] == 2
    if name == "msmarco-passage":
        assert (run["n_examples"], run["n_negatives"]) == (10, 7)
    if name == "open-qa":
        assert (run["n_examples"], run["n_negatives"]) == (11, 1)
        assert run["left_out"] == {"rows with a blank text": 1}


def test_the_papers_figures_are_in_their_recipes():
    """Condenser A.1 and 4.4; Reimers & Gurevych 2019, 3 and 3.1."""
    schedule = ("per_device_train_batch_size", "learning_rate", "num_train_epochs", "n_negatives")
    expected = {
        "msmarco-passage": (8, 5e-6, 3, 7),
        "open-qa": (128, 1e-5, 40, 1),
        "stsb": (16, 2e-5, 4, None),
        "wikipedia-sections": (16, 2e-5, 1, None),
    }
    for name, figures in expected.items():
        settings = read_recipe(f"finetune/{name}")
        assert tuple(settings.get(field) for field in schedule) == figures, name
