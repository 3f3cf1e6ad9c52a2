"""The built-in collection, from two tiny packages."""

import json
import sys

import pytest

from modeling_condenser.collection.builtin import (
    STANDARD_LIBRARY,
    build_builtin_collection,
    split_docstring,
    split_of,
)
from modeling_condenser.collection.load import load_collection, load_passages

PROSE = "The rest of this docstring tells in some fifteen words what {} does to its input and why."
MODULE = f'''
"""Tools for zoos.

{PROSE.format("the module")}
"""
raise RuntimeError("this package must not be imported")

class Zoo:
    """Hold many animals.

    {PROSE.format("the class")}

    Parameters
    ----------
    size : int
    """

    def feed(self):
        """Feed all animals
        at once.

        {PROSE.format("feeding")}
        """

    async def clean(self):
        """Too short."""

    def eat(self):
        """FEED all  animals at once.

        {PROSE.format("a repeated query, up to case and white space,")}
        """

if True:
    def count():
        """Count the animals slowly.

        {PROSE.format("counting")}
        """
'''


@pytest.fixture
def roots(tmp_path):
    zoo, library = tmp_path / "site" / "zoo", tmp_path / "lib"
    docstrings = (f'"""Do thing number {i}.\n\n    {PROSE.format(i)}\n    """' for i in range(100))
    files = {zoo / "__init__.py": MODULE, zoo / "broken.py": "def f(:"}
    functions = (f"def f{i}():\n    {text}\n" for i, text in enumerate(docstrings))
    files[library / "many.py"] = "".join(functions)
    for skipped in (zoo / "tests" / "a.py", zoo / "test_a.py", library / "site-packages" / "a.py"):
        files[skipped] = MODULE.replace("animals", skipped.name)
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return {STANDARD_LIBRARY: library, "zoo": zoo}


def test_docstrings_become_passages_without_title(tmp_path, roots):
    out = build_builtin_collection(tmp_path / "out", roots={"zoo": roots["zoo"]})
    corpus = [json.loads(line) for line in (out / "corpus.jsonl").open()]
    assert [r["_id"] for r in corpus] == ["zoo", "zoo.Zoo", "zoo.Zoo.feed", "zoo.count"]
    text = PROSE.format("the class") + "\n\nParameters\n----------\nsize : int"
    assert corpus[1] == {"_id": "zoo.Zoo", "title": "", "text": text}
    queries = {r["_id"]: r["text"] for r in map(json.loads, (out / "queries.jsonl").open())}
    assert queries == {
        "q:zoo": "Tools for zoos.",
        "q:zoo.Zoo": "Hold many animals.",
        "q:zoo.Zoo.feed": "Feed all animals at once.",
        "q:zoo.count": "Count the animals slowly.",
    }
    assert "zoo" not in sys.modules
    # A finished collection is left unchanged, and nothing else is overwritten.
    assert build_builtin_collection(out, roots=roots) == out
    assert [json.loads(line) for line in (out / "corpus.jsonl").open()] == corpus
    with pytest.raises(FileExistsError, match=r"site exists and has no sources.json"):
        build_builtin_collection(tmp_path / "site", roots=roots)


def test_splits_follow_the_hash_and_every_build_is_the_same(tmp_path, roots, monkeypatch):
    few, more = tmp_path / "3", tmp_path / "5"
    for out in (few, more):
        monkeypatch.setattr("modeling_condenser.collection.builtin._MAX_QUERIES", int(out.name))
        build_builtin_collection(out, roots=roots)
    assert (few / "corpus.jsonl").read_bytes() == (more / "corpus.jsonl").read_bytes()
    n_train = sum(split_of(name) == "train" for name in load_passages(more)["_id"])
    for split, n in (("train", n_train), ("dev", 5), ("test", 5)):
        collection = load_collection(more, split=split)
        assert (len(collection.passages), len(collection.queries)) == (104, n)
        for query_id, grades in collection.qrels.items():
            name = query_id.removeprefix("q:")
            assert grades == {name: 1} and split_of(name) == split
    # Eval queries stay when more are asked for.
    lines = [(out / "qrels" / "dev.tsv").read_text().splitlines() for out in (few, more)]
    assert lines[1][:4] == lines[0] and len(lines[1]) == 6
    sources = json.loads((more / "sources.json").read_text())
    assert sources["packages"]["zoo"] == {"version": None, "pairs": 4}


@pytest.mark.parametrize(
    "passage",
    [
        "Parameters\n----------\nx : array\n    " + "A long list of words about the array. " * 4,
        "Args:\n    x: " + "A long list of words about the array. " * 4,
        "x : int\n    " + "words " * 20 + "\n\n- item " + "words " * 20,
        "Ten words are too few for a passage, I think.",
    ],
)
def test_boilerplate_and_texts_of_other_lengths_are_dropped(passage):
    assert split_docstring(f"A fine short query.\n\n{passage}") is None
    prose = PROSE.format("it")
    assert split_docstring(f"Two words\n\n{prose}") is None
    assert split_docstring(f"{'word ' * 65}\n\n{prose}") is None
    assert split_docstring(f"A title\n======= here\n\n{prose}") is not None


def test_the_split_of_a_name_never_changes():
    # int(the first 16 digits of `printf NAME | sha256sum`, 16) % 10: 0 is test, 1 is dev.
    assert split_of("math.cos") == "test"
    assert split_of("numpy.mean") == "dev"
    assert split_of("torch.nn.Linear") == "train"
