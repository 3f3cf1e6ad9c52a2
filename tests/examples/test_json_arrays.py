"""JSON arrays, read item by item."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.examples import json_arrays
from modeling_condenser.examples.json_arrays import read_array


def random_value(rng: random.Random, depth: int = 0) -> Any:
    text = "".join(rng.choice('aé"\\\n\t 東😀[]{},:0') for _ in range(rng.randrange(12)))
    simple = [None, True, False, rng.random(), -rng.randrange(10**9), 1e-7, text, "", [], {}]
    if depth == 3 or rng.random() < 0.5:
        return rng.choice(simple)
    values = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if rng.random() < 0.5 else {f'k{i}"{text}': v for i, v in enumerate(values)}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_items_come_out_as_json_reads_them_however_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    rng = random.Random(chunk)
    values = [random_value(rng) for _ in range(60)]
    file = tmp_path / "array.json"
    text = json.dumps(values, indent=indent, ensure_ascii=bool(chunk % 2))
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(json_arrays, "_CHUNK", chunk)
    items = list(read_array(file))
    assert [value for _, value in items] == values
    lines = text.split("\n")
    if indent:
        for (number, value), start in zip(items, [n for n, _ in items], strict=True):
            assert lines[number - 1].startswith("  ") and number == start
            begin = "\n".join(lines[number - 1 :]).lstrip()
            assert json.JSONDecoder().raw_decode(begin)[0] == value


def test_an_empty_array_a_mark_and_compression_are_read(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text(" [ ] \n")
    assert list(read_array(tmp_path / "empty.json")) == []
    (tmp_path / "marked.json").write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert list(read_array(tmp_path / "marked.json")) == [(1, {"a": 1})]
    (tmp_path / "small.json.gz").write_bytes(gzip.compress(b"[1,\n2]"))
    assert list(read_array(tmp_path / "small.json.gz")) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1},\n{"a": 2},\n{"a"', r"array.json:3: not JSON .*damaged or cut off"),
        ('[{"a": 1},\n{"a": 2 "b": 3},\n' + '{"c": 1},' * 50 + "{}]", r"json:2: not JSON \(Exp"),
        ('[{"a": 1}\n{"a": 2}]', r"json:2: '\{' came, expected ','"),
        ('[{"a": 1},\n', r"json:2: not JSON"),
        ('[{"a": 1}', r"json:1: the end came, expected ','"),
        ('{"a": 1}', r"json:1: '\{' came, expected '\['"),
        ("[1]\n\n[2]", r"json:3: '\[' came, expected the end of the file"),
        ("", r"json:1: the end came, expected '\['"),
        ('["open, 1, 2]', r"json:1: not JSON \(Unterminated"),
    ],
)
def test_a_damaged_array_is_refused_with_its_line(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "array.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_array(file))


def test_an_error_is_found_without_reading_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "array.json"
    file.write_text("[{]}," + '{"a": 1},\n' * 10_000 + "{}]")
    monkeypatch.setattr(json_arrays, "_CHUNK", 1000)
    read = []
    original = json_arrays._Reader.read_on
    monkeypatch.setattr(
        json_arrays._Reader, "read_on", lambda self: (read.append(1), original(self))
    )
    with pytest.raises(ValueError, match="json:1: not JSON"):
        list(read_array(file))
    assert len(read) < 3


def test_other_encodings_and_torn_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes('["café"]'.encode("latin-1"))
    with pytest.raises(ValueError, match="latin.json: not UTF-8"):
        list(read_array(tmp_path / "latin.json"))
    whole = gzip.compress(json.dumps(list(range(50_000))).encode())
    (tmp_path / "torn.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="torn.json.gz is damaged"):
        list(read_array(tmp_path / "torn.json.gz"))
