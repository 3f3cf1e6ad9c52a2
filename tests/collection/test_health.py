"""The collection that comes with the package."""

from pathlib import Path

from modeling_condenser.collection.load import load_collection, load_dev, resolve_collection_name


def test_the_stored_collection_is_what_its_card_says():
    card = Path(resolve_collection_name("health"), "README.md").read_text()
    diseases = {}
    for split in ("train", "dev", "test"):
        loaded = load_collection("health", split=split)
        assert f"| {split} | {len(loaded.queries):,} |" in card
        assert loaded.name == "health"
        titles = dict(zip(loaded.passages["_id"], loaded.passages["title"], strict=True))
        diseases[split] = {titles[p].casefold() for q in loaded.qrels.values() for p in q}
    assert f"{len(loaded.passages):,} answers" in card and "license: cc-by-4.0" in card
    # Each disease is in one split.
    assert sum(map(len, diseases.values())) == len(set().union(*diseases.values()))
    dev = load_collection("health", split="dev")
    assert load_dev("health", judged="test").queries == dev.queries
