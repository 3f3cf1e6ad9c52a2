"""A folder of messy files becomes a collection: what is read, cut, left out, and judged."""

import gzip
import json
import logging
import os
import random
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer

from modeling_condenser.collection.collect import collect
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import MODULES_CONFIG_FILE
from modeling_condenser.files.run_folder import folder_lock
from modeling_condenser.pretraining.corpus import load_documents
from tests.encoding.making import change_json, save_modules

collect_module = sys.modules[collect.__module__]  # the package has a function of its name
CHINESE = "企鹅生活在南极。它们吃磷虾。"
GERMAN = "Grüße aus Köln. Die Straße ist größer."
PAGE = "<html><head><title>Shop</title><body><h1>Refunds</h1><p>Any item.<h2>Cards</h2><div>Money"
PAGE += " goes <b>back</b>\nto the card.</div><table><tr><td>fee<td>none</table></body></html>"
MARKDOWN = "# Setup\n\nInstall *it*.\n\n## Linux\n\nUse `apt`.\n\n## Old\n\nGone.\n"


def rows_of(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]


def relevant(out: Path) -> dict[str, set[str]]:
    """Question -> its passages, of all splits."""
    judged: dict[str, set[str]] = {}
    for file in (out / "qrels").glob("*.tsv"):
        loaded = load_collection(out, split=file.stem)
        judged |= {loaded.queries[query]: {*grades} for query, grades in loaded.qrels.items()}
    return judged


@pytest.fixture
def messy(tmp_path):
    """A folder of files in several formats and encodings, some of which cannot be read."""
    folder = tmp_path / "my files"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "hidden.txt").write_text("hidden")
    (folder / "~$open.docx").write_bytes(bytes(162))  # Word's, while a document is open
    (folder / "de.rst").write_bytes(GERMAN.encode("cp1252"))
    (folder / "deep" / "zh one.txt").write_bytes(CHINESE.encode("gb18030"))
    (folder / "deep" / "page.html").write_text(PAGE)
    (folder / "setup.md").write_text(MARKDOWN)
    (folder / "deep" / "copy.md").write_text(MARKDOWN)
    (folder / "faq.csv").write_text('id;title;text\n7;No;"He said ""no"""\n11;Chinese;企鹅\n12;;\n')
    (folder / "other.csv").write_text("question,answer\na,b\n")
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "deep" / "long.txt").write_text(
        " ".join(f"Sentence {i} is here." for i in range(3000))
    )
    return folder


def test_a_messy_folder_is_read_and_all_that_is_left_out_is_named(messy, tmp_path, caplog):
    settings = {"sources": [messy], "out": tmp_path / "out", "max_tokens": 64}
    with caplog.at_level(logging.WARNING):
        done = collect(**settings)
    rows = rows_of(tmp_path / "out")
    texts = {row["_id"]: (row["title"], row["text"], row["headings"]) for row in rows}
    long = {name: texts.pop(name) for name in list(texts) if "long.txt" in name}
    assert texts == {
        "my_files/de.rst#1": ("de", GERMAN, ""),
        "my_files/deep/page.html#1": ("Refunds", "Any item.", ""),
        "my_files/deep/page.html#2": (
            "Refunds > Cards",
            "Money goes back to the card.\n\n| fee | none |",
            "Cards",
        ),
        "my_files/deep/zh_one.txt#1": ("zh one", CHINESE, ""),
        "my_files/faq.csv#7": ("No", 'He said "no"', ""),
        "my_files/faq.csv#11": ("Chinese", "企鹅", ""),
        "my_files/deep/copy.md#1": ("Setup", "Install it.", ""),
        "my_files/deep/copy.md#2": ("Setup > Linux", "Use apt.", "Linux"),
        "my_files/deep/copy.md#3": ("Setup > Old", "Gone.", "Old"),
    }
    assert {row["file"] for row in rows} >= {"my files/deep/zh one.txt", "my files/faq.csv"}
    # All of the long text is there, in whole sentences that fill passages of 63 words and a title.
    assert " ".join(text for _, text, _ in long.values()) == (messy / "deep/long.txt").read_text()
    assert {len(text.split()) for _, text, _ in list(long.values())[:-1]} == {60}
    unread = {
        f"my files/{name}" for name in ("empty.txt", "binary.txt", "picture.png", "other.csv")
    }
    assert done.unread.keys() == unread and "other.csv cannot be read" in caplog.text
    assert done.copies == {
        f"my_files/setup.md#{i}": f"my_files/deep/copy.md#{i}" for i in (1, 2, 3)
    }
    assert json.loads((tmp_path / "out/collected.json").read_text())["copies"] == done.copies
    assert " ".join(repr(done).split()) == (
        "files 11 4 not read or not to their end (.txt 2, .csv 1, .png 1) "
        "documents 9 1 without text passages "
        f"{len(rows)} 3 copies left out"
    )
    # What it wrote is a collection and a corpus.
    assert load_passages(tmp_path / "out")["_id"][:2] == [row["_id"] for row in rows[:2]]
    assert len(load_documents(str(tmp_path / "out"))) == len(rows)
    # A second call replaces the first.
    assert collect(**settings) == done and rows_of(tmp_path / "out") == rows


LABELS = [
    ("Where do penguins live?", "企鹅生活在南极", "", ""),
    ("What is gone?", "gone.", "", ""),  # of the copy, too
    ("Who pays?", "Money goes back\nto the **card**. Fee", "", ""),
    ("How do I install it?", "", r".\setup.md", ""),  # as Windows writes it
    ("Who said no?", "", "", "7"),
    ("Who SAID no?", "", "my files/faq.csv#11", ""),
    ("Which sentence?", "Sentence 14 is here. Sentence 15 is here.", "", ""),  # of two passages
    ("Which of two?", "in two", "", ""),
    ("Which, then?", "in two", "b.txt", ""),
    ("Which file?", "", "c.txt", ""),  # there are two
    ("Nothing?", "There is no such text.", "", ""),
    ("Nothing at all?", "", "", ""),
    ("", "Gone.", "", ""),
]


def test_labels_become_queries_and_judgements_of_which_a_document_has_one_split(
    messy, tmp_path, caplog
):
    columns = ["question", "passage", "file", "id"]
    rows = [{"id": f"r{i}", "text": f"Row {i}."} for i in range(200)]
    many = [(f"Sentence {i}?", f"sentence {i} IS here", "", "") for i in range(0, 3000, 60)]
    many += [(f"Row {row['id'][1:]}?", row["text"], "", "") for row in rows]
    random.Random(0).shuffle(many)
    for name in ("a.txt", "b.txt", "c.txt", "deep/c.txt"):
        (messy / name).write_text(f"This is {'in two' if name < 'c' else name}: {name}.")
    (messy / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labels, out = tmp_path / "pairs.csv", tmp_path / "out"
    pd.DataFrame(LABELS + many, columns=columns).to_csv(labels, index=False)
    settings = {"sources": [messy], "out": out, "labels": labels, "max_tokens": 64}
    done = collect(**settings)
    assert done.left_out == {
        "names several documents": 2,
        "passage not found": 1,
        "without passage, file and id": 1,
        "no question": 1,
    }
    assert "left out, passage not found '" in caplog.text and ": 'Nothing?'" in caplog.text
    judged = relevant(out)
    expected = {
        "Where do penguins live?": ["deep/zh_one.txt#1"],
        "What is gone?": ["deep/copy.md#3"],
        "Who pays?": ["deep/page.html#2"],
        "How do I install it?": [f"deep/copy.md#{i}" for i in (1, 2, 3)],
        "Who said no?": ["faq.csv#7", "faq.csv#11"],
        "Which sentence?": ["deep/long.txt#1", "deep/long.txt#2"],
        "Which, then?": ["b.txt#1"],
        "Row 17?": ["rows.jsonl#r17"],
    }
    for question, passages in expected.items():
        assert judged[question] == {f"my_files/{name}" for name in passages}, question
    assert len(judged) == 257
    loaded = {split: load_collection(out, split=split) for split in ("train", "dev", "test")}
    assert done.questions == {split: len(part.queries) for split, part in loaded.items()}
    assert min(done.questions.values()) > 20
    documents = [
        {row if "rows.jsonl" in row else row.partition("#")[0] for row in passages}
        for passages in (
            {p for ids in each.qrels.values() for p in ids} for each in loaded.values()
        )
    ]
    assert not (documents[0] & documents[1] or (documents[0] | documents[1]) & documents[2])
    # A run file of today fits the queries of next week.
    names = {text: query for part in loaded.values() for query, text in part.queries.items()}
    pd.DataFrame(LABELS[1:], columns=columns).to_csv(labels, index=False)
    collect(**settings)
    fewer = [json.loads(line) for line in (out / "queries.jsonl").read_text().splitlines()]
    assert len(fewer) > 3 and all(names[query["text"]] == query["_id"] for query in fewer)
    with pytest.raises(ValueError, match="out has queries, which would be lost: give --labels"):
        collect(sources=[messy], out=out)


def test_labels_that_fit_nothing_are_refused_and_the_passages_are_kept(messy, tmp_path):
    labels, out = tmp_path / "pairs.csv", tmp_path / "out"
    settings = {"sources": [messy / "setup.md"], "out": out, "labels": labels}
    labels.write_text("Question,Answer\na,b\n")
    with pytest.raises(
        ValueError, match="has the columns Answer, Question: expected question, and"
    ):
        collect(**settings)
    assert not out.exists()
    labels.write_text("question,file\na,b.md\n")
    with pytest.raises(
        ValueError, match="No label .*no passages of its file: 1.*has all passages, but"
    ):
        collect(**settings)
    assert {file.name for file in out.iterdir()} == {"corpus.jsonl", "collected.json"}
    labels.write_text("question,file\na,setup.md\n")
    assert sum(collect(**settings).questions.values()) == 1
    before = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    labels.write_text("question,file\na,b.md\n")
    with pytest.raises(ValueError, match="out keeps its passages and queries: correct"):
        collect(**settings)
    assert {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    labels.write_text("question,file\n")
    with pytest.raises(ValueError, match="pairs.csv has no rows"):
        collect(**settings)


def test_labels_of_documents_may_have_ids_of_their_own(tmp_path, write_text):
    pages = [write_text(f"It is {word}.", f"{word}.md") for word in ("red", "blue")]
    table = write_text("id,text\n2,It is new.\n", "rows.csv")  # whose row has the same id
    labels = write_text("id,question,file\n1,warm,red.md\n2,cold,blue.md\n", "labels.csv")
    collect(sources=[*pages, table], out=tmp_path / "out", labels=labels)
    assert relevant(tmp_path / "out") == {"warm": {"red.md#1"}, "cold": {"blue.md#1"}}


def test_a_table_may_be_passages_and_labels_at_once_with_columns_of_any_name(tmp_path):
    rows = [f"What is number {i}?,It is the letter {chr(97 + i)}.,{i:03}" for i in range(20)]
    faq, out = tmp_path / "faq.csv", tmp_path / "out"
    faq.write_text("\n".join(["Frage,Antwort,nr", *rows]))
    columns = {"text_column": "Antwort", "id_column": "nr"}
    named = {"question": "Frage", "passage": "Antwort"}
    collect(sources=faq, out=out, labels=faq, label_columns=named, **columns)
    assert rows_of(out)[3]["_id"] == "faq.csv#003"
    assert relevant(out)["What is number 3?"] == {"faq.csv#003"} and len(relevant(out)) == 20
    (tmp_path / "broken.csv").write_text(f"{faq.read_text()}\nbroken,off,x,y")
    broken = collect(sources=tmp_path / "broken.csv", out=tmp_path / "broken", **columns)
    assert (broken.passages, [*broken.unread]) == (20, ["broken.csv"])
    for wrong in ({"title_column": "titel"}, {"text_column": ["antwrt", "Antwort"]}):
        with pytest.raises(ValueError, match=r"No table has a column '.*'. Columns are Antwort"):
            collect(sources=faq, out=tmp_path / "other", **{**columns, **wrong})
    with pytest.raises(ValueError, match="the columns Antwort, Frage, nr: .*no 'Fragen'"):
        collect(sources=faq, out=out, labels=faq, label_columns={"question": "Fragen"}, **columns)


def test_ids_of_rows_may_have_anchors_and_repeat_and_then_need_a_file(tmp_path):
    long = " ".join(f"This is number {i}." for i in range(6))
    rows = f"id,text\na/b,{long}\na/b#2,Another.\n17,First.\n17,Second.\n"
    (tmp_path / "t.csv").write_text(rows)
    (tmp_path / "u.csv").write_text("id,text\n17,Third.\n")
    (tmp_path / "labels.jsonl").write_text(
        '{"question": "a", "id": "a/b#2"}\n{"question": "b", "id": 17.0}\n'
        '{"question": "c", "id": 17, "file": "u.csv"}\n'
    )
    sources = [tmp_path / "t.csv", tmp_path / "u.csv"]
    labels, out = tmp_path / "labels.jsonl", tmp_path / "out"
    done = collect(sources=sources, out=out, labels=labels, max_tokens=16)
    names = ["t.csv#a/b", "t.csv#a/b#2", "t.csv#a/b#2_", "t.csv#17", "t.csv#17_", "u.csv#17"]
    assert [row["_id"] for row in rows_of(out)] == names
    assert relevant(out) == {"a": {"t.csv#a/b#2_"}, "c": {"u.csv#17"}}
    assert done.left_out == {"names several documents": 1}


def test_a_quote_counts_beside_an_id_of_the_label_or_the_name_of_a_table(tmp_path, write_text):
    table = write_text("id,text\na1,It is free.\na2,It is blue.\n", "faq.csv")
    other = write_text("It is free.", "b.txt")
    numbered = write_text("text\nIt is red.\nIt is new.\n", "rows.csv")  # whose ids are numbers
    rows = ["what,It is blue.,,2", "price,It is free.,faq.csv,", "none,It is free.,no.csv,"]
    labels = write_text("\n".join(["question,passage,file,id", *rows]), "labels.csv")
    collect(sources=[table, other, numbered], out=tmp_path / "out", labels=labels)
    assert relevant(tmp_path / "out") == {"what": {"faq.csv#a2"}, "price": {"faq.csv#a1"}}


def test_the_file_of_a_label_decides_where_its_quote_is(tmp_path, write_text):
    page = write_text("# One\n\nIt is red.\n\n# Two\n\nIt is free. It is blue.\n", "a.md")
    table = write_text("id,text\na1,It is free.\n", "faq.csv")  # all of which is the quote
    rows = ["part,It is free.,a.md,", "own,It is blue.,a.md,1", "whole,It is free.,faq.csv,"]
    labels = write_text("\n".join(["question,passage,file,id", *rows]), "labels.csv")
    collect(sources=[page, table], out=tmp_path / "out", labels=labels)
    expected = {"part": {"a.md#2"}, "own": {"a.md#2"}, "whole": {"faq.csv#a1"}}
    assert relevant(tmp_path / "out") == expected


def test_labels_may_lack_their_last_fields_as_excel_writes_them(tmp_path, write_text):
    page = write_text("It is free.", "a.md")
    labels = write_text("question,passage,file\nprice,It is free.\ncost,,a.md\n", "labels.csv")
    collect(sources=[page], out=tmp_path / "out", labels=labels)
    assert relevant(tmp_path / "out") == {"price": {"a.md#1"}, "cost": {"a.md#1"}}


def test_tables_may_lack_their_last_fields_and_have_headers_in_capitals(
    tmp_path, write_text, caplog
):
    table = write_text("ID,Title,Text,Note\na,Price,It is free.,x\nb,Colour,It is blue.\n", "t.csv")
    collect(sources=[table], out=tmp_path / "out")
    found = [(row["_id"], row["title"], row["text"]) for row in rows_of(tmp_path / "out")]
    assert found == [("t.csv#a", "Price", "It is free."), ("t.csv#b", "Colour", "It is blue.")]
    assert "row 3 has 3 fields of 4" in caplog.text


def test_labels_may_name_files_by_the_path_that_was_typed(tmp_path, write_text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/docs").mkdir(parents=True)
    (tmp_path / "data/docs/a.md").write_text("It is free.")
    absolute = tmp_path / "data/docs/a.md"
    rows = f"question,file\nprice,data/docs/a.md\ncost,{absolute}\nfee,./data/docs/a.md\n"
    labels = write_text(rows, "labels.csv")
    for source in ("data/docs", "data/docs/a.md"):
        collect(sources=[source], out="out", labels=labels)
        assert relevant(tmp_path / "out").keys() == {"price", "cost", "fee"}


def test_other_files_in_the_folder_of_a_collection_are_not_lost(tmp_path, write_text):
    file, out = write_text("It is free.", "a.txt"), tmp_path / "out"
    collect(sources=file, out=out)
    (out / "negatives").mkdir()
    with pytest.raises(ValueError, match="out also has negatives, which would be lost"):
        collect(sources=file, out=out)
    (out / "negatives").rmdir()
    assert collect(sources=file, out=out).passages == 1


def test_ids_that_repeat_are_numbered(tmp_path, write_jsonl):
    rows = write_jsonl([{"id": "a", "text": f"Text {i}."} for i in range(5)], "rows.jsonl")
    collect(sources=rows, out=tmp_path / "out")
    names = [row["_id"].removeprefix("rows.jsonl#") for row in rows_of(tmp_path / "out")]
    assert names == ["a", "a_", "a_2", "a_3", "a_4"]


def test_passages_fit_a_model_of_an_older_version_of_the_library(bert_folder, tmp_path, texts):
    model = save_modules(tmp_path / "model", bert_folder, lambda n: [Pooling(n)], length=32)
    (model / "sentence_bert_config.json").unlink()
    (model / "sentence_roberta_config.json").write_text('{"max_seq_length": 32}')
    change_json(model / "tokenizer_config.json", model_max_length=512)
    (tmp_path / "a.txt").write_text(" ".join(texts[:20]))
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", model=model)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    assert max(len(tokenizer(row["text"])["input_ids"]) for row in rows_of(tmp_path / "out")) <= 32


def test_a_tokenizer_in_python_cuts_at_words(bert_folder, tmp_path, texts, monkeypatch):
    class Slow:
        is_fast, model_max_length = False, 32

        def num_special_tokens_to_add(self):
            return 2

        def tokenize(self, word):
            return [word[i : i + 4] for i in range(0, len(word), 4)]

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_: Slow())
    (tmp_path / "a.txt").write_text(" ".join(texts[:20]))
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", model=bert_folder, max_tokens=32)
    passages = [row["text"] for row in rows_of(tmp_path / "out")]
    assert len(passages) > 3
    assert max(sum(-(-len(word) // 4) for word in text.split()) for text in passages) <= 30


def test_an_id_counts_in_the_named_file_only(tmp_path):
    folder = tmp_path / "in" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,text\n17,First.\n18,Second.\n")
    (folder / "b.csv").write_text("id,text\n19,Third.\n")
    labels = tmp_path / "labels.csv"
    rows = [
        "in a,a.csv,17.0",
        "in b,b.csv,18",
        "nowhere,c.csv,18",
        "passage,a.csv,in/deep/a.csv#18",
    ]
    labels.write_text("\n".join(["question,file,id", *rows]))
    done = collect(sources=tmp_path / "in", out=tmp_path / "out", labels=labels)
    assert relevant(tmp_path / "out") == {
        "in a": {"in/deep/a.csv#17"},
        "passage": {"in/deep/a.csv#18"},
    }
    assert done.left_out == {"unknown id": 1, "no passages of its file": 1}


def test_files_that_share_a_passage_are_in_different_splits(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(40):
        own = f"## Use\n\nTurn it on {i} times.\n\n## Care\n\nClean it {i} times."
        (folder / f"{i}.md").write_text(f"{own}\n\n## Support\n\nWrite to us.")
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["question,file", *(f"what is {i},{i}.md" for i in range(40))]))
    done = collect(sources=folder, out=tmp_path / "out", labels=labels)
    assert min(done.questions.values()) > 0 and sum(done.questions.values()) == 40


def test_questions_about_one_document_are_in_different_splits(tmp_path, write_text, caplog):
    caplog.set_level("INFO")
    book = write_text("\n\n".join(f"## {i}\n\nTurn it on {i} times." for i in range(40)), "a.md")
    rows = [f"what is {i},Turn it on {i} times." for i in range(40)]
    labels = write_text("\n".join(["question,passage", *rows]), "labels.csv")
    done = collect(sources=book, out=tmp_path / "out", labels=labels)
    assert min(done.questions.values()) > 0 and sum(done.questions.values()) == 40
    assert "fewer than 20 documents, so questions are divided one by one" in caplog.text


def test_a_folder_may_have_the_mark_before_ids_of_rows_in_its_name(tmp_path):
    folder = tmp_path / "in" / "C#"
    folder.mkdir(parents=True)
    (folder / "notes.md").write_text("It has classes.")
    (folder / "rows.csv").write_text("id,text\nq7,It is compiled.\n")
    labels, out = tmp_path / "labels.jsonl", tmp_path / "out"
    rows = [{"question": "what?", "file": "notes.md"}, {"question": "how?", "id": "q7"}]
    labels.write_text("\n".join(map(json.dumps, rows)))
    collect(sources=tmp_path / "in", out=out, labels=labels)
    assert relevant(out) == {"what?": {"in/C#/notes.md#1"}, "how?": {"in/C#/rows.csv#q7"}}


def test_a_label_is_about_each_passage_that_has_a_part_of_its_text(tmp_path, write_text):
    sentences = [f"Sentence {n} is about the thing called {n}." for n in range(8)]
    file = write_text(" ".join(sentences), "a.txt")
    quotes = f"which,{sentences[1]}\nwhich four,{' '.join(sentences[2:6])}\n"
    labels = write_text(f"question,passage\n{quotes}", "labels.csv")
    collect(sources=file, out=tmp_path / "out", labels=labels, max_tokens=17)  # two sentences
    assert relevant(tmp_path / "out") == {
        "which": {"a.txt#1"},
        "which four": {"a.txt#2", "a.txt#3"},
    }


def test_a_quote_judges_all_passages_of_a_document_that_have_it(tmp_path, write_text):
    file = write_text("# A\n\nIt is free.\n\n# B\n\nIt is free.\n\n# C\n\nAnd more.", "a.md")
    labels = write_text("question,passage\nwhat,it is free\npart,free\n", "labels.csv")
    collect(sources=file, out=tmp_path / "out", labels=labels)
    assert relevant(tmp_path / "out") == {
        "what": {"a.md#1", "a.md#2"},
        "part": {"a.md#1", "a.md#2"},
    }


def test_a_quote_of_two_equal_sentences_is_found_over_the_end_of_a_passage(tmp_path, write_text):
    press = "Please press the big red button now."
    file = write_text(f"First open the green box there. {press} {press} Then close it.", "a.txt")
    labels = write_text(f"question,passage\nhow,{press} {press}\n", "labels.csv")
    collect(sources=file, out=tmp_path / "out", labels=labels, max_tokens=16)
    assert relevant(tmp_path / "out") == {"how": {"a.txt#1", "a.txt#2"}}


def test_labels_find_texts_and_files_whatever_the_unicode_form(tmp_path, write_text):
    file = write_text("Die Bru\u0308cke ist scho\u0308n und \ufb01nster.", "wells.txt")
    mill = write_text("Mills.", "Mu\u0308hle.txt")
    hindi = [write_text(f"रोम ने काल जीता और वह {word}", f"{word}.txt") for word in ("गया", "गयी")]
    table = "question,passage,file\na,Die Brücke ist schön und finster.,\nb,,Mühle.txt\n"
    labels = write_text(f"{table}c,रोम ने काल जीता और वह गयी,\n", "pairs.csv")
    collect(sources=[file, mill, *hindi], out=tmp_path / "out", labels=labels)
    expected = {"a": {"wells.txt#1"}, "b": {"Mu\u0308hle.txt#1"}, "c": {"गयी.txt#1"}}
    assert relevant(tmp_path / "out") == expected


def test_passages_fit_a_model_with_their_title(bert_folder, tmp_path, texts):
    text = f"{' '.join(texts[:20])} {'/'.join(texts[20:25])}"  # the last sentences are long
    (tmp_path / "a.md").write_text(f"# Poets and museums of Oslo\n\n{text}")
    out = tmp_path / "out"
    collect(sources=tmp_path / "a.md", out=out, model=bert_folder, max_tokens=48)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    rows = rows_of(out)
    lengths = [len(tokenizer(f"{row['title']} {row['text']}")["input_ids"]) for row in rows]
    assert max(lengths) <= 48
    assert "".join("".join(row["text"] for row in rows).split()) == "".join(text.split())


def test_passages_fit_the_length_that_a_published_model_reads(bert_folder, tmp_path, texts):
    model = save_modules(tmp_path / "model", bert_folder, lambda n: [Pooling(n)], length=32)
    (tmp_path / "a.txt").write_text(" ".join(texts[:20]))
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", model=model)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    lengths = [len(tokenizer(row["text"])["input_ids"]) for row in rows_of(tmp_path / "out")]
    assert 16 < max(lengths) <= 32


def test_passages_fit_the_positions_of_an_encoder_that_states_no_length(
    roberta_folder, tmp_path, texts
):
    model = shutil.copytree(roberta_folder, tmp_path / "model")
    change_json(model / "tokenizer_config.json", model_max_length=10**30)
    (tmp_path / "a.txt").write_text(" ".join(texts[:40]))
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", model=model, max_tokens=1000)
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = [len(tokenizer(row["text"])["input_ids"]) for row in rows_of(tmp_path / "out")]
    assert 40 < max(lengths) <= Retriever(model, pooling="cls").contract.passage_max_length


def test_passages_fit_with_the_prompt_and_the_separator_of_a_model_in_a_subfolder(
    bert_folder, tmp_path, texts
):
    model = save_modules(tmp_path / "model", bert_folder, lambda n: [Pooling(n)], length=48)
    (model / "0_Transformer").mkdir()
    for file in model.glob("*"):
        if file.is_file() and file.name not in ("modules.json", MODULES_CONFIG_FILE):
            file.rename(model / "0_Transformer" / file.name)
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (model / "modules.json").write_text(json.dumps(modules))
    prompts = {"query": "", "document": "a river of Oslo: "}
    change_json(model / MODULES_CONFIG_FILE, prompts=prompts, title_separator=" / and / ")
    (tmp_path / "a.md").write_text(f"# Poets of Oslo\n\n{' '.join(texts[:20])}")
    collect(sources=tmp_path / "a.md", out=tmp_path / "out", model=model)
    tokenizer, contract = AutoTokenizer.from_pretrained(bert_folder), Retriever(model).contract
    passages = [contract.passage(row["title"], row["text"]) for row in rows_of(tmp_path / "out")]
    assert passages[0].startswith("a river of Oslo: Poets of Oslo / and / ")
    assert 40 < max(len(tokenizer(passage)["input_ids"]) for passage in passages) <= 48


def test_a_long_text_is_tokenized_in_pieces_and_cut_as_a_whole(
    bert_folder, tmp_path, texts, monkeypatch
):
    (tmp_path / "a.txt").write_text("\n".join(texts[:30]))
    settings = {"sources": tmp_path / "a.txt", "model": bert_folder, "max_tokens": 32}
    collect(**settings, out=tmp_path / "whole")
    piece = collect_module._PIECE.pattern.replace("100000", "50")
    monkeypatch.setattr(collect_module, "_PIECE", re.compile(piece, re.DOTALL))
    text = f"{'x' * 60} {texts[0]}"
    pieces = [match[0] for match in collect_module._PIECE.finditer(text)]
    assert "".join(pieces) == text and max(map(len, pieces)) <= 50 and "x" * 50 in pieces
    collect(**settings, out=tmp_path / "pieces")
    assert rows_of(tmp_path / "pieces") == rows_of(tmp_path / "whole")


def test_a_title_that_is_as_long_as_a_passage_leaves_half_of_it_to_the_text(tmp_path):
    (tmp_path / "a.md").write_text(f"# {'very ' * 30}long\n\n{'word ' * 30}")
    collect(sources=tmp_path / "a.md", out=tmp_path / "out", max_tokens=20)
    sizes = [
        (len(row["title"].split()), len(row["text"].split())) for row in rows_of(tmp_path / "out")
    ]
    assert sizes == [(10, 10)]  # the other two are copies


def test_thai_passages_never_begin_with_a_combining_mark(tmp_path):
    (tmp_path / "a.txt").write_text("ที่นี่" * 30)
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", max_tokens=17)
    assert {row["text"][0] for row in rows_of(tmp_path / "out")} == {"ท"}


@pytest.mark.parametrize("blank", [" ", "\u200b"])
def test_thai_and_khmer_passages_end_at_blanks(blank, tmp_path):
    phrases = [f"{word}{i}" for i in range(9) for word in ("คนไทยไปตลาด", "แล้วกลับบ้าน", "ខ្ញុំទៅផ្សារ")]
    (tmp_path / "a.txt").write_text(blank.join(phrases))
    collect(sources=tmp_path / "a.txt", out=tmp_path / "out", max_tokens=32)
    rows = rows_of(tmp_path / "out")
    assert len(rows) > 3
    for row in rows:
        assert set(row["text"].split(blank)) <= {*phrases, ""}, row["text"]


def test_a_second_call_waits_for_the_first(tmp_path, write_text):
    page, out = write_text("It is free.", "a.txt"), tmp_path / "out"
    with ThreadPoolExecutor(1) as pool:
        with folder_lock(out):
            second = pool.submit(collect, sources=[page], out=out)
            with pytest.raises(TimeoutError):
                second.result(timeout=1)
            assert not out.exists()
        assert second.result().passages == 1


def test_names_that_are_not_utf8_and_closed_folders_are_kept_apart_and_named(
    tmp_path, monkeypatch, caplog
):
    folder = tmp_path / "in"
    (folder / "closed").mkdir(parents=True)
    (folder / "Übersicht").mkdir()
    for name in ("Größe.txt", "Grüße.txt"):
        place = os.fsencode(folder / "Übersicht") + b"/" + name.encode("cp1252")
        Path(os.fsdecode(place)).write_text(name)
    may_read = os.access
    monkeypatch.setattr(os, "access", lambda p, *a: p.name != "closed" and may_read(p, *a))
    done = collect(sources=[folder], out=tmp_path / "out")
    expected = {"in/Übersicht/Größe.txt", "in/Übersicht/Grüße.txt"}
    assert {row["file"] for row in rows_of(tmp_path / "out")} == expected
    assert done.unread == {"in/closed": "permission to read the folder is missing"}
    assert "in/closed: permission to read" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 15}, "max_tokens is 15, expected at least 16"),
        ({"labels": "none.csv"}, "There is no file none.csv"),
        ({"out": "made", "labels": "made/corpus.jsonl"}, "corpus.jsonl is in made, which is repl"),
        ({"sources": ["none"]}, "There is no file or folder none"),
        ({"out": "full"}, "full is not empty and was not written by `collect`. The last word"),
        ({"sources": ["made"]}, "made is a collection that `collect` wrote"),
        ({"sources": ["."]}, "made is a collection that `collect` wrote"),
        ({"encoding": "latin-77"}, "unknown encoding: latin-77"),
        (
            {"sources": "pictures"},
            "1 of which cannot be read .pictures/a.png: .* .png are not read",
        ),
        ({"sources": ["a/docs", "b/docs"]}, "would have the same name"),
        ({"folders": ["a"]}, "There is no field 'folders'"),
    ],
)
def test_a_mistake_is_explained(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("full/a.txt", "a/docs/a.txt", "b/docs/a.txt", "pictures/a.png"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("text")
    collect(sources=["a"], out="made")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        collect(**{"sources": ["a"], "out": "out", **settings})
    assert not Path("out").exists()
    assert Path("full/a.txt").read_text() == "text"


def test_a_stated_encoding_is_used_where_text_is_not_utf8(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/pl.csv").write_bytes("text,title\nProszę o zwrot,Książka\n".encode("cp1250"))
    (tmp_path / "in/utf8.csv").write_text("title,text\nBook,größer\n")
    labels = tmp_path / "pairs.csv"
    labels.write_bytes("question,passage\nKsiążka?,Proszę o zwrot\n".encode("cp1250"))
    collect(sources=tmp_path / "in", out=tmp_path / "out", encoding="cp1250", labels=labels)
    assert relevant(tmp_path / "out") == {"Książka?": {"in/pl.csv#1"}}
    texts = [(row["title"], row["text"]) for row in rows_of(tmp_path / "out")]
    assert texts == [("Książka", "Proszę o zwrot"), ("Book", "größer")]


def test_links_to_files_are_followed_and_other_links_are_left_out(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("Bread.")
    for name, target in (("a.txt", "other/a.txt"), ("folder", "other"), ("gone.txt", "none.txt")):
        (folder / name).symlink_to(tmp_path / target)
    done = collect(sources=folder, out=tmp_path / "out")
    assert (done.passages, done.files, done.unread) == (1, 1, {})


def test_a_file_gives_its_title_without_endings(tmp_path):
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in" / "my_notes.txt.gz", "wt") as file:
        file.write("Bread.")
    collect(sources=tmp_path / "in", out=tmp_path / "out")
    assert [row["title"] for row in rows_of(tmp_path / "out")] == ["my notes"]


def test_names_that_are_not_utf8_are_read_as_those_of_windows(tmp_path):
    folder = tmp_path / os.fsdecode(b"in-caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"\xe9.txt")).write_text("Bread.")
    collect(sources=folder, out=tmp_path / "out")
    assert [row["_id"] for row in rows_of(tmp_path / "out")] == ["in-café/é.txt#1"]
    assert [*load_documents(str(folder))["text"]] == ["Bread."]
