"""What files of rows become, whoever wrote them."""

import bz2
import csv
import json
import logging
import lzma

import pandas as pd
import pyarrow as pa
import pytest

from modeling_condenser.collection.text_files import read_rows

TEXTS = ["plain", 'He said "hi", once', "two\nlines", '"whole"', "a\ttab", "", "it's 3\" long"]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("start", range(4))  # which row is the first with a quotation mark
def test_a_tsv_that_pandas_wrote_is_read_as_its_csv(start, quoting, tmp_path):
    texts = TEXTS[start:] + TEXTS[:start]
    table = pd.DataFrame({"query": [f"q{i}" for i in range(len(texts))], "text": texts})
    table.to_csv(tmp_path / "a.csv", index=False, quoting=quoting)
    table.to_csv(tmp_path / "a.tsv", index=False, quoting=quoting, sep="\t")
    expected = table.to_dict("records")
    assert list(read_rows(tmp_path / "a.tsv")) == list(read_rows(tmp_path / "a.csv")) == expected


@pytest.mark.parametrize(
    "texts", [['"a" and ""b""', "c"], ['"open', 'closed"'], ['3" long', '"x"'], ['"x"', "y"]]
)
def test_quotes_of_a_tsv_without_quoting_are_text(texts, tmp_path):
    lines = [f"q{i}\t{text}\n" for i, text in enumerate(texts)]
    (tmp_path / "a.tsv").write_text("query\ttext\n" + "".join(lines))
    assert [row["text"] for row in read_rows(tmp_path / "a.tsv")] == texts


@pytest.mark.parametrize("is_array", [True, False])
def test_half_a_character_is_replaced_with_a_warning(is_array, tmp_path, caplog):
    rows = [{"text": "a 😀"}, {"text": "\ud83d", "more": ["b\ude00 c"]}, {"text": "\\ud83d"}]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(rows) if is_array else "\n".join(map(json.dumps, rows)))
    with caplog.at_level(logging.WARNING):
        read = list(read_rows(file))
    assert read == [rows[0], {"text": "\ufffd", "more": ["b\ufffd c"]}, rows[2]]
    [message] = caplog.messages
    assert message.endswith("a.json: replaced halves of characters in 1 items by U+FFFD")


def test_compressed_files_are_read(tmp_path):
    content = b'{"text": "caf\xc3\xa9"}\n'
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(content))
    (tmp_path / "a.jsonl.zst").write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    for file in tmp_path.iterdir():
        assert list(read_rows(file)) == [{"text": "café"}]
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(ValueError, match=r"cannot be read .* complete compressed file"):
            list(read_rows(file))
