"""The index of passages."""

import pytest

from modeling_condenser.mining.passage_index import PassageIndex
from tests.mining.making import make_passages


def test_passages_are_found_by_id_and_equal_texts_have_equal_content():
    texts = {"a": "same", "b": "other", "c": "same", "d": "same ", "e": "", "f": "", "g": ""}
    index = PassageIndex(make_passages(texts, titles={"c": "title", "e": "x", "f": "y", "g": "x"}))
    assert index.rows(["g", "a", "d", "g"]).tolist() == [6, 0, 3, 6]
    assert index.read(["c", "a", "c"]) == {"c": ("title", "same"), "a": ("", "same")}
    assert index.read([]) == {}
    contents = dict(zip(texts, index.content.tolist(), strict=True))
    equal = {(x, y) for x in texts for y in texts if x < y and contents[x] == contents[y]}
    assert equal == {("a", "c"), ("e", "g")}  # without a text, the title counts
    with pytest.raises(ValueError, match="no passage 'z'"):
        index.rows(["a", "z"])
