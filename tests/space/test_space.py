"""The folder of a page: its data, what is kept and refused, and its push."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml

from hub_scripts.main import main
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.space import space
from modeling_condenser.space.space import write_space
from tests.encoding.making import note_encoded
from tests.publishing.loopback_hub import contents


@pytest.fixture
def write(retriever, shuffled, tmp_path, monkeypatch):
    """Writes a page, without packages of npm."""
    pytest.importorskip("onnxscript")
    library = tmp_path / "library.js"
    library.write_text("/* see /home/web_user */")
    monkeypatch.setattr(space, "fetch_npm_files", lambda: [library])

    def write_page(out=tmp_path / "page", **settings):
        return write_space(str(retriever), str(shuffled), out, **settings)

    return write_page


@pytest.mark.slow
def test_the_data_hold_bm25_and_int8_vectors_in_the_order_of_the_ids(write, retriever, shuffled):
    report = write(text_length=50)
    data = report.folder / "data"
    passages, rows = load_passages(shuffled), json.loads((data / "passages.json").read_text())
    texts = dict(zip(passages["_id"], passages["text"], strict=True))
    assert rows["ids"] == sorted(texts) != passages["_id"][:]
    for name, shown in zip(rows["ids"], rows["texts"], strict=True):
        assert shown == texts[name] or shown.rstrip(" …") == texts[name][:50].rstrip()

    words = json.loads((data / "words.json").read_text())
    number, raw = words.index("glacier"), (data / "bm25.bin").read_bytes()
    offsets = np.frombuffer(raw, "<u4", len(words) + 1)
    n = offsets[-1]
    here = slice(*offsets[number : number + 2])
    found_rows = np.frombuffer(raw, "<u4", n, offset=offsets.nbytes)[here]
    scores = np.frombuffer(raw, "<f4", n, offset=offsets.nbytes + 4 * int(n))[here]
    of_page = {rows["ids"][row]: score for row, score in zip(found_rows, scores, strict=True)}
    assert of_page == Bm25(passages).search({"q": "glacier"})["q"]
    assert len(raw) == 4 * (len(words) + 1) + 8 * n and "the" not in words

    vectors = Retriever(retriever, device="cpu").encode_passages(passages)
    by_id = vectors[np.argsort(passages["_id"][:])]
    raw, dimension = (data / "vectors.bin").read_bytes(), vectors.shape[1]
    starts, steps = np.frombuffer(raw, "<f4", 2 * dimension).reshape(2, -1)
    codes = np.frombuffer(raw, "u1", offset=8 * dimension).reshape(by_id.shape)
    np.testing.assert_allclose(starts - steps / 2, by_id.min(0), atol=1e-6)
    assert (np.abs(starts + steps * codes - by_id) <= 1.01 * steps).all()


@pytest.mark.slow
def test_a_page_is_kept_as_it_is_and_another_one_refused(write, collection, retriever):
    out = write().folder
    (out / "index.html").write_text("mine")
    before = contents(out)
    assert write().sizes == {path: len(content) for path, content in before.items()}
    with pytest.raises(ValueError, match="holds something else, made with another .*passages"):
        write_space(str(retriever), str(collection), out)
    with pytest.raises(ValueError, match="made with another weights"):
        write(weights="float32")
    assert contents(out) == before


def test_a_page_of_a_changed_collection_is_written_again_from_what_has_changed(
    write, shuffled, tmp_path, retriever, monkeypatch
):
    monkeypatch.setattr(space, "write_encoder", lambda folder, *_, **how: folder.mkdir())
    settings = {"title": "Museums", "embeddings": str(tmp_path / "vectors")}
    out = write(**settings, license="mit").folder
    with (out / "README.md").open("a") as card:
        card.write("My words.")
    changed = shutil.copytree(shuffled, tmp_path / shuffled.name)
    row = {"_id": "new", "title": "", "text": "A new passage."}
    with (changed / "corpus.jsonl").open("a") as corpus:
        corpus.write(json.dumps(row) + "\n")
    encoded = note_encoded(monkeypatch)
    write_space(str(retriever), str(changed), out, **settings)
    shown = json.loads((out / "data" / "passages.json").read_text())
    assert encoded == ["new"] and len(shown["ids"]) == 83 and "A new passage." in shown["texts"]
    card = (out / "README.md").read_text()
    assert "license: mit" in card and "83 passages of" in card and card.endswith("My words.")
    (out / "index.html").write_text("mine")
    with pytest.raises(ValueError, match="index.html differs from what would be written again"):
        write(**settings)
    assert (out / "index.html").read_text() == "mine"


@pytest.mark.slow
def test_a_page_is_pushed_as_a_static_space_in_one_commit(
    write, loopback_hub, retriever, shuffled, capsys
):
    with pytest.raises(ValueError, match="nothing was sent:\n  - no license is named"):
        write(push="owner/search", title="Museums")
    assert not loopback_hub.repositories
    report = write(push="owner/search", title="Museums", license="mit")
    repository = loopback_hub.repo("owner/search", kind="spaces")
    sent = repository.files()
    del sent[".gitattributes"]
    assert sent == contents(report.folder) and len(repository.commits()) == 2
    metadata = yaml.safe_load(sent["README.md"].decode().split("---\n")[1])
    assert (metadata["sdk"], metadata["license"]) == ("static", "mit")
    assert metadata["title"] == "Museums" and "models" not in metadata  # a local folder
    words = (retriever, shuffled, report.folder, "--title", "Museums", "--push", "owner/search")
    assert main(["space", *map(str, words)]) == 0  # the license on the card is kept
    printed = capsys.readouterr().out
    assert re.search(f"files\npushed: http.*/commit/{report.commit.oid}\n$", printed)
    assert f"{len(sent['index.html']):,} bytes  index.html\n" in printed

    (report.folder / "README.md").write_text("see https://me:pass@example.org")
    with pytest.raises(ValueError, match=r"(?s)nothing was sent:.*README.md: an access token"):
        write(push="owner/search", title="Museums")
    assert len(repository.commits()) == 2


def test_what_no_page_can_search_is_refused(retriever, shuffled, tmp_path, monkeypatch):
    out, model = tmp_path / "page", str(retriever)
    for wrong in ("bm25", "hybrid:{}", "{},precision=binary", "{},dtype=bfloat16"):
        with pytest.raises(ValueError, match="cannot be searched in a page"):
            write_space(wrong.format(model), str(shuffled), out)
    for wrong_setting in ({"weights": "int4"}, {"text_length": 0}):
        with pytest.raises(ValueError, match="expected float16, float32 or int8, and at least 1"):
            write_space(model, str(shuffled), out, **wrong_setting)
    with pytest.raises(ValueError, match="'search', expected owner/name"):
        write_space(model, str(shuffled), out, push="search")
    monkeypatch.setattr(space, "MAX_PASSAGES", 81)
    with pytest.raises(ValueError, match="has 82 passages, .* at most 81 are supported"):
        write_space(model, str(shuffled), out)
    assert not list(tmp_path.iterdir())


def test_the_examples_are_evenly_spaced_short_queries(shuffled, monkeypatch):
    loaded = load_collection(shuffled)  # 20 queries
    monkeypatch.setattr(space, "N_EXAMPLES", 3)
    _, found = space._load(str(shuffled), "test")
    ids = list(loaded.queries)
    assert [each["query"] for each in found] == [loaded.queries[ids[i]] for i in (0, 7, 14)]
    assert [each["relevant"] for each in found] == [list(loaded.qrels[ids[i]]) for i in (0, 7, 14)]
    monkeypatch.setattr(space, "LONGEST_EXAMPLE", 0)
    assert space._load(str(shuffled), "test")[1] == []
    passages, found = space._load(str(shuffled), "other")
    assert len(passages) == 82 and found == []
