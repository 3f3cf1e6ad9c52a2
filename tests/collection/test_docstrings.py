"""The collection of docstrings that benchmarks and result pages use, from two tiny packages."""

import json
import sys

from benchmarks import make_docstrings
from benchmarks.make_docstrings import STANDARD_LIBRARY, split_of
from modeling_condenser.collection.load import load_collection

PROSE = "The rest of this docstring tells in some fifteen words what {} does to its input and why."
MODULE = f'''
raise RuntimeError("this package must not be imported")

class Zoo:
    """Hold many animals.

    {PROSE.format("the class")}
    """

    def feed(self):
        """Feed all animals
        at once.

        {PROSE.format("feeding")}
        """

    def eat(self):
        """FEED all  animals at once.

        {PROSE.format("a repeated query, up to case and white space,")}
        """
'''


def test_docstrings_become_a_collection_whose_splits_follow_a_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(make_docstrings, "_MAX_QUERIES", 5)
    functions = "".join(
        f'def f{i}():\n    """Do thing number {i}.\n\n    {PROSE.format(i)}\n    """\n'
        for i in range(100)
    )
    roots = {STANDARD_LIBRARY: tmp_path / "lib", "zoo": tmp_path / "zoo"}
    for root, content in zip(roots.values(), (functions, MODULE), strict=True):
        root.mkdir()
        (root / "many.py").write_text(content)
    (roots["zoo"] / "broken.py").write_text("def f(:")
    (roots["zoo"] / "test_a.py").write_text(functions.replace("thing", "test"))
    out = make_docstrings.make_docstrings(tmp_path / "out", roots=roots)
    assert "zoo" not in sys.modules
    passages = load_collection(out).passages
    assert passages["_id"][100:] == ["zoo.many.Zoo", "zoo.many.Zoo.feed"]
    assert passages[101] == {
        "_id": "zoo.many.Zoo.feed",
        "title": "",
        "text": PROSE.format("feeding"),
    }
    n_train = sum(split_of(name) == "train" for name in passages["_id"])
    for split, n in (("train", n_train), ("dev", 5), ("test", 5)):
        collection = load_collection(out, split=split)
        assert len(collection.queries) == n
        for query_id, grades in collection.qrels.items():
            name = query_id.removeprefix("q:")
            assert grades == {name: 1} and split_of(name) == split
    sources = json.loads((out / "sources.json").read_text())
    assert sources["packages"]["zoo"] == {"version": None, "pairs": 2}
