"""The index of passages."""

import pytest
from datasets import Dataset

from modeling_condenser.mining.passage_index import PassageIndex


def test_passages_are_found_by_id_and_equal_texts_have_equal_content():
    ids = list("abcdefg")
    texts = ["same", "other", "same", "same ", "", "", ""]
    titles = ["", "", "title", "", "x", "y", "x"]
    index = PassageIndex(Dataset.from_dict({"_id": ids, "title": titles, "text": texts}))
    assert index.rows(["g", "a", "d", "g"]).tolist() == [6, 0, 3, 6]
    assert index.read(["c", "a", "c"]) == {"c": ("title", "same"), "a": ("", "same")}
    assert index.read([]) == {}
    contents = dict(zip(ids, index.content.tolist(), strict=True))
    equal = {(x, y) for x in ids for y in ids if x < y and contents[x] == contents[y]}
    assert equal == {("a", "c"), ("e", "g")}  # without a text, the title counts
    with pytest.raises(ValueError, match="no passage 'z'"):
        index.rows(["a", "z"])
