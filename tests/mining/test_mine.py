"""The mining stage: every recipe's lines equal those of one plain loop over all candidates."""

import json
import math
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.mining.mine import mine
from modeling_condenser.mining.recipe import MiningRecipe
from modeling_condenser.runs.recipe import fill, read_recipe
from tests.hub.making import make_run, plain_vectors
from tests.mining.making import N_QUERIES, make_labelled, make_run_file, read_lines


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("collections") / "labelled")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("runs") / "made.trec"
    make_run_file(file)
    return file


@pytest.fixture
def mine_into(tmp_path: Path, collection: Path, run_file: Path) -> Callable[..., Path]:
    """Mines the run over the collection, with changed settings, into a folder of a name."""

    def mined(name: str = "out", **changes: Any) -> Path:
        settings = {"system": run_file, "collection": collection, **changes}
        return mine(**settings, output_dir=tmp_path / name, progress=False)

    return mined


def record_of(negatives: Path) -> dict[str, Any]:
    return json.loads((negatives.parent / "run.json").read_text())


class Naive:
    """A plain reading of the collection's files and of a run."""

    def __init__(self, collection: Path, run_file: Path) -> None:
        self.passages = {p["_id"]: p for p in read_lines(collection / "corpus.jsonl")}
        self.queries = {q["_id"]: q for q in read_lines(collection / "queries.jsonl")}
        self.positives: dict[str, list[str]] = {}
        qrels = collection / "qrels" / "train.tsv"
        for line in qrels.read_text().splitlines()[1:] if qrels.exists() else []:
            query, passage, grade = line.split("\t")
            if int(grade) > 0:
                self.positives.setdefault(query, []).append(passage)
        self.run: dict[str, list[tuple[str, float]]] = {}
        for line in run_file.read_text().splitlines():
            query, _, passage, _, score, _ = line.split()
            self.run.setdefault(query, []).append((passage, float(score)))
        for found in self.run.values():
            found.sort(key=lambda pair: (-pair[1], pair[0]))

    def has_answer(self, query: str, passage: str) -> bool:
        text = unicodedata.normalize("NFD", self.passages[passage]["text"]).lower()
        answers = self.queries[query].get("answers", [])
        return any(f" {answer} " in f" {text} " for answer in answers)

    def has_text_of(self, passage: str, positive: str) -> bool:
        a, b = self.passages[passage], self.passages[positive]
        return a["text"] == b["text"] and (a["text"] != "" or a["title"] == b["title"])

    def text(self, passage: str, separator: str = " ") -> str:
        title, text = self.passages[passage]["title"], self.passages[passage]["text"]
        return f"{title}{separator}{text}" if title else text

    def negatives(self, query: str, settings: dict[str, Any]) -> list[tuple[str, float]]:
        """All candidates that pass, in the order of their ranks."""
        positives, found = self.positives[query], self.run.get(query, [])
        known = dict(found)
        lowest = min((known.get(p, -math.inf) for p in positives), default=-math.inf)
        absolute, relative = settings.get("absolute_margin"), settings.get("relative_margin")
        kept = []
        for rank, (passage, score) in enumerate(found, start=1):
            if not settings.get("first_rank", 1) <= rank <= settings.get("last_rank", 200):
                continue
            if any(passage == p or self.has_text_of(passage, p) for p in positives):
                continue
            low, high = settings.get("min_score", -math.inf), settings.get("max_score", math.inf)
            if not low <= score <= high:
                continue
            if absolute is not None and not score <= lowest - absolute:
                continue
            if relative is not None and (
                math.isinf(lowest) or not score <= lowest - abs(lowest) * relative
            ):
                continue
            if settings.get("answer_filter") and self.has_answer(query, passage):
                continue
            kept.append((passage, score))
        return kept

    def line(self, query: str, positives: list[str], chosen: list[tuple[str, float]]) -> Any:
        return {
            "query_id": query,
            "positive_ids": positives,
            "negative_ids": [passage for passage, _ in chosen],
            "negative_scores": [score for _, score in chosen],
        }


RECIPES = {
    "ranks": {"first_rank": 5, "last_rank": 20, "n_negatives": 4, "sampling": "top"},
    "scores": {"min_score": -1.5, "max_score": 11.0, "n_negatives": None},
    "absolute": {"absolute_margin": 2.0, "n_negatives": None},
    "relative": {"relative_margin": 0.3, "n_negatives": None, "last_rank": 40},
    "everything": {
        **{"first_rank": 3, "last_rank": 40, "min_score": -3.0, "max_score": 15.0},
        **{"absolute_margin": 0.0, "relative_margin": 0.05, "answer_filter": True},
        **{"n_negatives": 5, "sampling": "top"},
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_lines_are_those_of_a_plain_loop(mine_into, collection, run_file, name):
    naive, settings = Naive(collection, run_file), RECIPES[name]
    file = mine_into(queries_per_window=4, **settings)
    n = settings["n_negatives"]
    labelled = [query for query in naive.queries if query in naive.positives]
    lines = read_lines(file)
    assert lines == [
        naive.line(query, naive.positives[query], naive.negatives(query, settings)[:n])
        for query in labelled
    ]
    facts = record_of(file)
    sizes = [len(line["negative_ids"]) for line in lines]
    assert sum(sizes) > 20
    assert facts["queries"] == len(lines) == N_QUERIES - 1
    assert facts["queries_without_positive"] == 1
    assert facts["negatives"] == sum(sizes)
    assert facts["mean_negatives"] == pytest.approx(sum(sizes) / len(sizes), abs=1e-3)
    assert facts["queries_without_negatives"] == sizes.count(0) > 0
    assert facts["queries_with_fewer"] == sum(0 < size < (n or 0) for size in sizes)
    if n is None:
        assert facts["candidates"] == facts["negatives"] + sum(facts["dropped"].values())


def test_random_negatives_are_a_sample_of_those_that_pass_nested_and_seeded(
    mine_into, collection, run_file
):
    naive, n = Naive(collection, run_file), 6
    settings = {"answer_filter": True, "relative_margin": 0.0, "last_rank": 40}
    found = {}
    for key, changes in {
        "n": {},
        "again": {"queries_per_window": 3},
        "seed": {"seed": 1},
        "more": {"n_negatives": n + 4},
    }.items():
        file = mine_into(key, **{"n_negatives": n, **settings, **changes})
        found[key] = {line["query_id"]: line["negative_ids"] for line in read_lines(file)}
    assert found["again"] == found["n"] != found["seed"]
    n_lists = 0
    for query, negatives in found["n"].items():
        passing = [passage for passage, _ in naive.negatives(query, settings)]
        assert len(negatives) == min(n, len(passing))
        assert negatives == [passage for passage in passing if passage in negatives]
        assert set(negatives) <= set(found["more"][query])
        n_lists += n < len(passing) and negatives != passing[:n]
    assert n_lists > 2


def test_a_cross_encoder_drops_and_relabels_by_its_probabilities(
    mine_into, collection, run_file, cross_encoder, plain_logits
):
    naive, settings, n = Naive(collection, run_file), {"last_rank": 14}, 4
    candidates = {query: naive.negatives(query, settings) for query in naive.positives}
    pairs = [
        (query, passage)
        for query, found in candidates.items()
        for passage in [*naive.positives[query], *(passage for passage, _ in found)]
    ]
    texts = [(naive.queries[query]["text"], naive.text(passage)) for query, passage in pairs]
    logits = [row[0] for row in plain_logits(cross_encoder, texts)]
    scores = dict(zip(pairs, logits, strict=True))
    relevant = {pair: 1 / (1 + math.exp(-score)) for pair, score in scores.items()}
    ordered = sorted(relevant.values())

    def threshold(start: int) -> float:
        """In the middle of a gap, so that rounding decides nothing."""
        i = max(range(start, start + 20), key=lambda i: ordered[i + 1] - ordered[i])
        return (ordered[i] + ordered[i + 1]) / 2

    low, high = threshold(len(ordered) // 3), threshold(len(ordered) * 3 // 4)
    thresholds = {"negative_below": low, "positive_above": high, "sampling": "top"}
    file = mine_into(
        **{**settings, **thresholds, "cross_encoder": cross_encoder, "n_negatives": n},
        queries_per_window=5,
        with_text=True,
    )
    counted = {"cross_encoder": 0, "relabelled_as_positive": 0}
    examples = []
    for line in read_lines(file):
        query = line["query_id"]
        negatives, relabelled = [], []
        for passage, _ in candidates[query]:
            if len(negatives) == n:
                break
            if relevant[query, passage] > high:
                relabelled.append(passage)
            elif relevant[query, passage] < low:
                negatives.append(passage)
            else:
                counted["cross_encoder"] += 1
        counted["relabelled_as_positive"] += len(relabelled)
        assert line["positive_ids"] == [*naive.positives[query], *relabelled]
        assert line["negative_ids"] == negatives
        for side in ("positive", "negative"):
            expected = [scores[query, passage] for passage in line[f"{side}_ids"]]
            assert line[f"{side}_teacher_scores"] == pytest.approx(expected, abs=1e-4)
        examples += [
            {
                "query": naive.queries[query]["text"],
                "positive": naive.text(passage),
                "negatives": [naive.text(negative) for negative in negatives],
                "positive_score": score,
                "negative_scores": line["negative_teacher_scores"],
            }
            for passage, score in zip(
                line["positive_ids"], line["positive_teacher_scores"], strict=True
            )
            if negatives
        ]
    assert read_lines(file.parent / "examples.jsonl") == examples
    facts = record_of(file)
    assert {name: facts["dropped"][name] for name in counted} == counted
    assert min(counted.values()) > 5


def test_by_answers_the_first_passage_with_one_is_the_positive(tmp_path, mine_into, run_file):
    collection = make_labelled(tmp_path / "questions", has_qrels=False)
    naive = Naive(collection, run_file)
    file = mine_into(collection=collection, positives="answers", last_rank=30, n_negatives=None)
    expected = []
    for query in naive.queries:
        found = naive.run.get(query, [])[:30]
        holding = [passage for passage, _ in found if naive.has_answer(query, passage)]
        rest = [pair for pair in found if not naive.has_answer(query, pair[0])]
        expected += [naive.line(query, holding[:1], rest)] if holding else []
    assert read_lines(file) == expected
    assert 5 < len(expected) < N_QUERIES - 5


def test_examples_are_opened_as_a_data_set_and_have_titles(tmp_path, mine_into, collection):
    naive = Naive(collection, Path("/dev/null"))
    file = mine_into(system="bm25", n_negatives=3, with_text=True, title_separator=" | ")
    examples = str(file.parent / "examples.jsonl")
    rows = load_dataset("json", data_files=examples, split="train", cache_dir=str(tmp_path / "c"))
    assert list(rows) == [
        {
            "query": naive.queries[line["query_id"]]["text"],
            "positive": naive.text(positive, " | "),
            "negatives": [naive.text(passage, " | ") for passage in line["negative_ids"]],
        }
        for line in read_lines(file)
        if line["negative_ids"]
        for positive in line["positive_ids"]
    ]
    assert sum(" | " in row["positive"] for row in rows) > 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_rank": 30, "last_rank": 40}, "leave 11 candidates"),
        ({"min_score": 2.0, "max_score": 1}, "min_score 2.0 is larger"),
        ({"negative_below": 0.1}, "no cross_encoder"),
        ({"n_negative": 3}, "Did you mean 'n_negatives'"),
        ({"index": "HNSW32"}, "is not an encoder: remove index"),
        ({"cross_encoder": "/none"}, "'/none'"),
    ],
)
def test_a_wrong_setting_is_an_error_before_a_folder_is_made(tmp_path, mine_into, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        mine_into(**changes)
    assert not (tmp_path / "out").exists()


def test_a_collection_or_run_without_what_the_recipe_needs_is_refused(tmp_path, mine_into):
    plain = make_labelled(tmp_path / "plain", has_answers=False)
    with pytest.raises(ValueError, match="has no answers"):
        mine_into(collection=plain, answer_filter=True)
    questions = make_labelled(tmp_path / "questions", has_qrels=False)
    with pytest.raises(ValueError, match="set positives to answers"):
        mine_into(collection=questions)
    (tmp_path / "queries").write_text("other Q0 p1 1 1.0 t\n")
    with pytest.raises(ValueError, match="none of the 23 queries"):
        mine_into("a", n_negatives=1, system=tmp_path / "queries")
    (tmp_path / "passages").write_text("q1 Q0 p1 1 2.0 t\nq1 Q0 other 2 1.0 t\n")
    with pytest.raises(ValueError, match="no passage 'other'"):
        mine_into("b", n_negatives=1, system=tmp_path / "passages")


def test_a_dense_retriever_finds_what_its_vectors_say(tmp_path, mine_into, collection, bert_folder):
    naive = Naive(collection, Path("/dev/null"))
    run = make_run(bert_folder, tmp_path / "run")
    encoder = export_encoder(run, tmp_path / "encoder", contract=EncodingContract(32, 48))
    settings = {"n_negatives": None, "absolute_margin": 0.0, "queries_per_window": 7}
    file = mine_into(system=encoder, shard_size=16, **settings)
    queries = [query for query in naive.queries if query in naive.positives]
    query_vectors = plain_vectors(encoder, [naive.queries[q]["text"] for q in queries], 32)
    passage_vectors = plain_vectors(encoder, [naive.text(p) for p in naive.passages], 48)
    scores = (query_vectors.double() @ passage_vectors.double().T).tolist()
    n_kept = 0
    for line, query, row in zip(read_lines(file), queries, scores, strict=True):
        score = dict(zip(naive.passages, row, strict=True))
        positives = naive.positives[query]
        lowest = min(score[positive] for positive in positives)
        others = [p for p in score if not any(naive.has_text_of(p, own) for own in positives)]
        # Passages within rounding of the positive's score may be on either side.
        sure = {passage for passage in others if score[passage] < lowest - 1e-4}
        assert sure <= set(line["negative_ids"])
        assert all(score[passage] < lowest + 1e-4 for passage in line["negative_ids"])
        expected = [score[passage] for passage in line["negative_ids"]]
        assert line["negative_scores"] == pytest.approx(expected, abs=1e-3)
        n_kept += len(sure)
    assert n_kept > 100


@pytest.mark.parametrize("name", ["msmarco-passage", "dpr", "rocketqa", "nv-retriever"])
def test_shipped_recipes_fit(name):
    given = {"system": "bm25", "collection": "x", "output_dir": "y", "cross_encoder": "x"}
    [recipe] = fill({**read_recipe(f"mine/{name}"), **given}, MiningRecipe)
    assert recipe.n_negatives <= recipe.last_rank
