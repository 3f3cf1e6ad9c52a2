"""The mining stage: every recipe's lines equal those of one plain loop over all candidates."""

import json
import math
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from modeling_condenser.finetuning.mine import mine, open_cross_encoder
from modeling_condenser.retrieval.runs import write_run
from tests.publishing.making import write_collection

N_PASSAGES, N_QUERIES = 50, 23
WORDS = "amber birch coral delta ember fjord grove haven inlet juniper kelp lagoon".split()


def make_labelled(folder: Path, *, has_answers: bool = True, has_qrels: bool = True) -> Path:
    """A BEIR folder: q3 has one grade 0 only; p40 and p41 are copies of p4, p42 of p5."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=9)) + f" café {i}" for i in range(N_PASSAGES)]
    texts[40] = texts[41] = texts[4]
    texts[42] = texts[5]
    texts[43] = texts[44] = ""
    passages = [
        {"_id": f"p{i}", "title": f"Title {i}" if i % 4 == 0 else "", "text": text}
        for i, text in enumerate(texts)
    ]
    passages[43]["title"], passages[44]["title"] = "one", "another"
    queries = []
    for i in range(N_QUERIES):
        query = {"_id": f"q{i}", "text": " ".join(rng.choices(WORDS, k=3))}
        if has_answers and i % 5:
            query["answers"] = [f"{WORDS[i % 12]} {word}" for word in WORDS[:3]]
        queries.append(query)
    judged = [("q3", "p3", 0)]
    for i in range(N_QUERIES):
        if i != 3:
            judged += [(f"q{i}", f"p{i}", 1), (f"q{i}", f"p{i + 20}", 0)]
            judged += [(f"q{i}", f"p{i + 5}", 2)] if i % 6 == 0 else []
    return write_collection(folder, passages, queries, **({"train": judged} if has_qrels else {}))


def make_run_file(file: Path) -> dict[str, dict[str, float]]:
    """A run with ties over the same collection, in which q7 found nothing, and q8 two passages."""
    rng = random.Random(1)
    run = {}
    for i in range(N_QUERIES):
        n_found = {7: 0, 8: 2}.get(i, rng.randint(25, 45))
        found = rng.sample(range(N_PASSAGES), n_found)
        run[f"q{i}"] = {f"p{j}": rng.randint(-40, 160) / 8 for j in found}
    write_run(run, file, tag="made")
    return run


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


class Naive:
    """A collection, a run over it, and a plain reading of both."""

    def __init__(self, folder: Path) -> None:
        self.collection, self.run_file = make_labelled(folder / "labelled"), folder / "made.trec"
        self.passages = {p["_id"]: p for p in read_lines(self.collection / "corpus.jsonl")}
        self.queries = {q["_id"]: q for q in read_lines(self.collection / "queries.jsonl")}
        self.positives: dict[str, list[str]] = {}
        for line in (self.collection / "qrels" / "train.tsv").read_text().splitlines()[1:]:
            query, passage, grade = line.split("\t")
            if int(grade) > 0:
                self.positives.setdefault(query, []).append(passage)
        self.run = {
            query: sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
            for query, scores in make_run_file(self.run_file).items()
        }

    def has_answer(self, query: str, passage: str) -> bool:
        text = unicodedata.normalize("NFD", self.passages[passage]["text"]).lower()
        answers = self.queries[query].get("answers") or []
        return any(f" {answer} " in f" {text} " for answer in answers)

    def content(self, passage: str) -> str:
        return self.passages[passage]["text"] or f"title {self.passages[passage]['title']}"

    def text(self, passage: str) -> str:
        title, text = self.passages[passage]["title"], self.passages[passage]["text"]
        return f"{title} {text}" if title else text

    def negatives(self, query: str, settings: dict[str, Any]) -> list[tuple[str, float]]:
        """All candidates that pass, in the order of their ranks."""
        positives, found = self.positives[query], self.run[query]
        lowest = min(dict(found).get(positive, -math.inf) for positive in positives)
        absolute, relative = settings.get("absolute_margin"), settings.get("relative_margin")
        first, last = settings.get("first_rank", 1), settings.get("last_rank", 200)
        kept = []
        for passage, score in found[first - 1 : last]:
            passes = self.content(passage) not in map(self.content, positives)
            if relative is not None:
                passes &= lowest > -math.inf and score <= lowest - abs(lowest) * relative
            if absolute is not None:
                passes &= lowest > -math.inf and score <= lowest - absolute
            if settings.get("answer_filter"):
                passes &= not self.has_answer(query, passage)
            if passes:
                kept.append((passage, score))
        return kept

    def line(self, query: str, positives: list[str], chosen: list[tuple[str, float]]) -> Any:
        return {
            "query_id": query,
            "positive_ids": positives,
            "negative_ids": [passage for passage, _ in chosen],
            "negative_scores": [score for _, score in chosen],
        }


@pytest.fixture(scope="module")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Naive:
    return Naive(tmp_path_factory.mktemp("mining"))


@pytest.fixture
def mine_into(tmp_path: Path, naive: Naive, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Mines the run over the collection, with changed settings, into a folder of a name."""
    monkeypatch.setattr("modeling_condenser.finetuning.mine._QUERIES_AT_ONCE", 6)

    def mined(name: str = "out", **changes: Any) -> Path:
        settings = {"system": naive.run_file, "collection": naive.collection, **changes}
        return mine(**settings, output_dir=tmp_path / name)

    return mined


def record_of(negatives: Path) -> dict[str, Any]:
    return json.loads((negatives.parent / "run.json").read_text())


RECIPES = {
    "ranks": {"first_rank": 5, "last_rank": 20, "n_negatives": 4, "sampling": "top"},
    "relative": {"relative_margin": 0.3, "n_negatives": None, "last_rank": 40},
    "absolute": {"absolute_margin": 2.5, "n_negatives": 3, "sampling": "top"},
    "everything": {
        **{"first_rank": 3, "last_rank": 40, "relative_margin": 0.05, "answer_filter": True},
        **{"n_negatives": 5, "sampling": "top"},
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_lines_are_those_of_a_plain_loop(mine_into, naive, name):
    settings = RECIPES[name]
    file = mine_into(**settings)
    n = settings["n_negatives"]
    lines = read_lines(file)
    assert lines == [
        naive.line(query, naive.positives[query], naive.negatives(query, settings)[:n])
        for query in naive.queries
        if query in naive.positives
    ]
    facts = record_of(file)
    sizes = [len(line["negative_ids"]) for line in lines]
    assert sum(sizes) > 20
    assert facts["queries"] == len(lines) == N_QUERIES - 1
    assert facts["queries_without_positive"] == 1
    assert facts["negatives"] == sum(sizes)
    assert facts["queries_without_negatives"] == sizes.count(0) > 0
    assert facts["queries_with_fewer"] == sum(0 < size < (n or 0) for size in sizes)
    first, last = settings.get("first_rank", 1), settings.get("last_rank", 200)
    if n is None:  # each candidate is a negative or was dropped by a filter
        n_found = sum(len(naive.run[query][first - 1 : last]) for query in naive.positives)
        assert sum(facts["dropped"].values()) == n_found - sum(sizes)


def test_random_negatives_are_a_sample_of_those_that_pass_nested_and_seeded(mine_into, naive):
    n = 6
    settings = {"answer_filter": True, "relative_margin": 0.0, "last_rank": 40}

    def negatives(name: str, **changes: Any) -> dict[str, list[str]]:
        lines = read_lines(mine_into(name, **{"n_negatives": n, **settings, **changes}))
        return {line["query_id"]: line["negative_ids"] for line in lines}

    drawn, larger = negatives("n"), negatives("larger", n_negatives=n + 4)
    assert negatives("again") == drawn != negatives("seed", seed=1)
    n_sampled = 0
    for query, chosen in drawn.items():
        passing = [passage for passage, _ in naive.negatives(query, settings)]
        assert len(chosen) == min(n, len(passing))
        assert chosen == [passage for passage in passing if passage in chosen]
        assert set(chosen) <= set(larger[query])
        n_sampled += n < len(passing) and chosen != passing[:n]
    assert n_sampled > 2


def make_cross_encoder(folder: Path, encoder: Path, *, n_labels: int = 1, seed: int = 0) -> Path:
    """A tiny random cross-encoder whose scores differ."""
    config = BertConfig.from_pretrained(encoder, num_labels=n_labels, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def plain_logits(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Logits of pairs by transformers alone, one pair at a time and so without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    settings = {"truncation": True, "max_length": 64, "return_tensors": "pt"}
    with torch.no_grad():
        return [model(**tokenizer(*pair, **settings)).logits.item() for pair in pairs]


def test_a_cross_encoder_scores_and_drops_by_its_probabilities(
    mine_into, naive, bert_folder, tmp_path
):
    settings, n = {"last_rank": 11}, 3
    candidates = {
        query: [passage for passage, _ in naive.negatives(query, settings)]
        for query in naive.positives
    }
    pairs = [(q, p) for q, found in candidates.items() for p in [*naive.positives[q], *found]]
    texts = [(naive.queries[query]["text"], naive.text(passage)) for query, passage in pairs]
    folder = make_cross_encoder(tmp_path / "cross-encoder", bert_folder)
    scores = dict(zip(pairs, plain_logits(folder, texts), strict=True))
    relevant = {pair: 1 / (1 + math.exp(-score)) for pair, score in scores.items()}
    ordered = sorted(relevant.values())
    # In the middle of a gap, so that rounding decides nothing.
    first = len(ordered) // 3
    gap = max(range(first, first + 20), key=lambda i: ordered[i + 1] - ordered[i])
    threshold = (ordered[gap] + ordered[gap + 1]) / 2
    settings |= {"cross_encoder": folder, "sampling": "top", "n_negatives": n}
    file = mine_into(**settings, negative_below=threshold)
    n_dropped = 0
    for line in read_lines(file):
        query, negatives = line["query_id"], []
        for passage in candidates[query]:
            if len(negatives) == n:
                break
            if relevant[query, passage] < threshold:
                negatives.append(passage)
            else:
                n_dropped += 1
        for side, passages in (("positive", naive.positives[query]), ("negative", negatives)):
            assert line[f"{side}_ids"] == passages
            expected = [scores[query, passage] for passage in passages]
            assert line[f"{side}_teacher_scores"] == pytest.approx(expected, abs=1e-4)
    assert record_of(file)["dropped"]["cross_encoder"] == n_dropped > 5
    make_cross_encoder(folder, bert_folder, seed=1)  # another model in its place
    with pytest.raises(ValueError, match="holds another run .model or data: "):
        mine_into(**settings, negative_below=threshold)


def test_scores_are_logits_whatever_is_applied_to_them_and_other_models_are_refused(
    bert_folder, tmp_path
):
    folder = make_cross_encoder(tmp_path / "made", bert_folder)
    model = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Sigmoid())
    model.save_pretrained(str(tmp_path / "saved"))
    pairs = [("another query", text) for text in ("A passage.", "It is a longer one. " * 9, "No.")]
    scores = open_cross_encoder(str(tmp_path / "saved"), device="cpu").predict(pairs)
    assert scores == pytest.approx(plain_logits(folder, pairs), abs=1e-5)
    with pytest.raises(ValueError, match="BertForMaskedLM, .* is not a cross-encoder"):
        open_cross_encoder(str(bert_folder))
    with pytest.raises(ValueError, match="3 labels"):
        open_cross_encoder(str(make_cross_encoder(tmp_path / "3", bert_folder, n_labels=3)))


def test_by_answers_the_first_passage_with_one_is_the_positive(tmp_path, mine_into, naive):
    collection = make_labelled(tmp_path / "questions", has_qrels=False)
    file = mine_into(collection=collection, last_rank=30, n_negatives=None)
    expected = []
    for query in naive.queries:
        found = naive.run[query][:30]
        holding = [passage for passage, _ in found if naive.has_answer(query, passage)]
        rest = [pair for pair in found if not naive.has_answer(query, pair[0])]
        expected += [naive.line(query, holding[:1], rest)] if holding else []
    assert read_lines(file) == expected
    assert 5 < len(expected) < N_QUERIES - 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_rank": 30, "last_rank": 29}, "last_rank is 29, expected at least 30"),
        ({"negative_below": 0.1}, "set cross_encoder"),
        ({"answer_filter": True}, "has no answers"),
    ],
)
def test_a_wrong_setting_is_an_error_before_a_folder_is_made(tmp_path, mine_into, changes, message):
    plain = make_labelled(tmp_path / "plain", has_answers=False)
    with pytest.raises(ValueError, match=message):
        mine_into(collection=plain, **changes)
    assert not (tmp_path / "out").exists()


def test_a_run_that_does_not_fit_is_refused_and_leaves_no_file(tmp_path, mine_into):
    for name, content, message in (
        ("queries", "other Q0 p1 1 1.0 t\n", "No query .* has a negative"),
        ("passages", "q1 Q0 p1 1 2.0 t\nq1 Q0 other 2 1.0 t\n", "no passage 'other'"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            mine_into(f"out-{name}", system=tmp_path / name)
        assert not (tmp_path / f"out-{name}" / "negatives.jsonl").exists()


def test_mining_that_found_nothing_can_be_repeated_with_other_settings(mine_into, tmp_path):
    run_file = tmp_path / "run"
    make_run_file(run_file)
    with pytest.raises(ValueError, match="No query .* has a negative"):
        mine_into(system=run_file, first_rank=200)
    assert mine_into(system=run_file, first_rank=1).is_file()
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        mine_into("", system=run_file)  # a folder of other files


def test_a_finished_folder_is_neither_mined_again_nor_by_another_recipe(mine_into, tmp_path):
    run_file = tmp_path / "run"
    make_run_file(run_file)
    settings = {"system": run_file, "n_negatives": 4}
    file = mine_into(**settings)
    mined = file.stat()
    assert {path.name for path in file.parent.glob("[!.]*")} == {
        *("negatives.jsonl", "recipe.yaml", "run.json")
    }
    assert mine_into(**settings).stat() == mined
    with pytest.raises(ValueError, match="holds another run .seed"):
        mine_into(**settings, seed=1)
    run_file.write_text(run_file.read_text().replace(" made", " changed"))
    with pytest.raises(ValueError, match="holds another run .model or data: "):
        mine_into(**settings)


def test_the_query_itself_near_copies_and_positives_of_its_twin_are_no_negatives(tmp_path):
    """q1 is a passage by its id and by its text; q2 asks the same in other letters."""
    texts = {
        "q1": "Is tea healthy",
        "own": "is  tea healthy ",
        "yes": "tea is healthy for most",
        "copy": "Tea is healthy for most ",
        "twin": "tea is healthy, says q2",
        "other": "coffee is healthy too",
    }
    passages = [{"_id": name, "text": text} for name, text in texts.items()]
    queries = [{"_id": "q1", "text": "Is tea healthy"}, {"_id": "q2", "text": "is tea  healthy"}]
    judged = [("q1", "yes", 1), ("q1", "absent", 1), ("q2", "twin", 1)]
    folder = write_collection(tmp_path / "tea", passages, queries, train=judged)
    settings = {"system": "bm25", "collection": folder, "output_dir": tmp_path / "out"}
    file = mine(**settings, n_negatives=3, sampling="top")
    lines = {line["query_id"]: line for line in read_lines(file)}
    assert lines["q1"]["positive_ids"] == ["yes"]
    assert lines["q1"]["negative_ids"] == lines["q2"]["negative_ids"] == ["other"]
    dropped = record_of(file)["dropped"]
    # Of q1: q1, yes, twin; and own, copy. Of q2: yes, twin; and q1, own, copy.
    assert dropped == {"positive_or_query": 5, "same_text_as_these": 5}
