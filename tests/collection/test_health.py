"""The collection that comes with the package, and how it was made."""

from pathlib import Path

from benchmarks.make_health import make_health
from modeling_condenser.collection.load import load_collection, load_dev, resolve_collection_name
from tests.hub.making import write_collection

SPLITS = ("train", "dev", "test")


def titles_by_split(source):
    found = {}
    for split in SPLITS:
        loaded = load_collection(source, split=split)
        titles = dict(zip(loaded.passages["_id"], loaded.passages["title"], strict=True))
        found[split] = {titles[p].casefold() for q in loaded.qrels.values() for p in q}
    return found


def test_the_stored_collection_is_what_its_card_says():
    loaded = {split: load_collection("health", split=split) for split in SPLITS}
    card = Path(resolve_collection_name("health"), "README.md").read_text()
    for split, collection in loaded.items():
        assert f"| {split} | {len(collection.queries):,} |" in card
        assert collection.name == "health"
    assert f"{len(collection.passages):,} answers" in card and "license: cc-by-4.0" in card
    train, dev, test = titles_by_split("health").values()
    assert train.isdisjoint(dev) and train.isdisjoint(test) and dev.isdisjoint(test)
    assert load_dev("health", judged="test").queries == loaded["dev"].queries


def test_half_of_the_diseases_are_kept_and_each_is_in_one_split(tmp_path):
    ids = range(200)
    passages = [{"_id": f"p{i}", "title": f"disease {i // 2}", "text": f"text {i}"} for i in ids]
    passages += [{"_id": "p200", "title": "", "text": "of several diseases"}]
    queries = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(201)]
    judged = [(f"q{i}", f"p{i}", 1) for i in range(201)]
    source = write_collection(tmp_path / "medquad", passages, queries, train=judged)
    counts = make_health(source, tmp_path / "out")
    assert 80 < counts["passages"] < 120 and counts["passages"] % 2 == 0
    assert counts["passages"] == sum(counts[split] for split in SPLITS)
    assert counts["train"] > counts["test"] > counts["dev"] > 0
    train, dev, test = titles_by_split(tmp_path / "out").values()
    assert len(train | dev | test) == counts["passages"] / 2 == len(train) + len(dev) + len(test)
