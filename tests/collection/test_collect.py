"""A folder of messy files becomes a collection: what is read, cut, left out, and judged."""

import json
import logging
import os
import random
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer

from modeling_condenser.collection.collect import collect
from modeling_condenser.collection.document_files import (
    parse_html,
    parse_markdown,
    parse_underlined,
)
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.collection.text_files import parse_table
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.pretraining.documents import load_documents
from modeling_condenser.retrieval.index import Index
from tests.encoding.making import save_modules

CHINESE = "企鹅生活在南极。它们吃磷虾。"
GERMAN = "Grüße aus Köln. Die Straße ist größer."
FRENCH = "L'élève a été reçu à l'école où sa sœur étudie."
PAGE = """<html><head><title>Shop</title><style>p {}</style></head><body><nav>Home</nav>
<h1>Refunds</h1><p>Any item can be <b>re</b>turned.<h2>Cards</h2><div>Money goes back
to the card.</div><table><tr><td>fee</td><td>none</td></tr></table><footer>2024</footer></body>"""
MARKDOWN = (
    "# Setup\n\nInstall *it* [here](https://a.b).\n\n## Linux\n\nUse `apt`.\n\n## Old\n\nGone.\n"
)
PDF = b"""%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R
/Resources <</Font <</F <</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>>>>>>> endobj
4 0 obj <</Length 43>> stream
BT /F 12 Tf 20 200 Td (Paid in Oslo.) Tj ET
endstream endobj
trailer <</Root 1 0 R>>
startxref
0
%%EOF
"""
CSV = """id;title;text
7;No;"He said ""no"", twice; really"
8;Two lines;"first
second"
9;too;many;fields
10;Blank;
11;Chinese;企鹅
"""


def rows_of(folder):
    return [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]


@pytest.fixture
def messy(tmp_path):
    """A folder of files in several formats and encodings, some of which cannot be read."""
    folder = tmp_path / "my files"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "hidden.txt").write_text("hidden")
    (folder / "~$open.docx").write_bytes(bytes(162))  # Word's, while a document is open
    (folder / "de.rst").write_bytes(GERMAN.encode("cp1252"))
    (folder / "fr.txt").write_bytes(f"{FRENCH}\r\nFin.".encode("cp1252"))
    (folder / "deep" / "zh one.txt").write_bytes(CHINESE.encode("gb18030"))
    (folder / "deep" / "er" / "utf16.txt").write_text("Sixteen bits.", encoding="utf-16")
    (folder / "deep" / "page.html").write_text(PAGE)
    (folder / "setup.md").write_text(MARKDOWN)
    (folder / "deep" / "copy.md").write_text(MARKDOWN)
    (folder / "faq.csv").write_text(CSV)
    (folder / "more.jsonl").write_text('{"text": "A line."}\n{"text": null}\n{"text": 5}\nbroken\n')
    (folder / "other.csv").write_text("question,answer\na,b\n")
    pd.DataFrame({"content": ["From parquet."], "id": ["x 1"]}).to_parquet(folder / "p.parquet")
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "deep" / "long.txt").write_text(
        " ".join(f"Sentence {i} is here." for i in range(3000))
    )
    return folder


def test_a_messy_folder_is_read_and_all_that_is_left_out_is_named(messy, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        done = collect([str(messy)], str(tmp_path / "out"), max_tokens=64)
    rows = rows_of(tmp_path / "out")
    texts = {row["_id"]: (row["title"], row["text"], row["headings"]) for row in rows}
    long = {name: texts.pop(name) for name in list(texts) if "long.txt" in name}
    assert texts == {
        "my_files/de.rst#1": ("de", GERMAN, ""),
        "my_files/deep/er/utf16.txt#1": ("utf16", "Sixteen bits.", ""),
        "my_files/deep/page.html#1": ("Refunds", "Any item can be returned.", ""),
        "my_files/deep/page.html#2": (
            "Refunds > Cards",
            "Money goes back to the card.\n\nfee none",
            "Cards",
        ),
        "my_files/deep/zh_one.txt#1": ("zh one", CHINESE, ""),
        "my_files/faq.csv#7": ("No", 'He said "no", twice; really', ""),
        "my_files/faq.csv#8": ("Two lines", "first\nsecond", ""),
        "my_files/faq.csv#11": ("Chinese", "企鹅", ""),
        "my_files/fr.txt#1": ("fr", f"{FRENCH}\nFin.", ""),
        "my_files/more.jsonl#1": ("", "A line.", ""),
        "my_files/more.jsonl#3": ("", "5", ""),
        "my_files/p.parquet#x_1": ("", "From parquet.", ""),
        "my_files/deep/copy.md#1": ("Setup", "Install it here.", ""),
        "my_files/deep/copy.md#2": ("Setup > Linux", "Use apt.", "Linux"),
        "my_files/deep/copy.md#3": ("Setup > Old", "Gone.", "Old"),
    }
    assert {row["file"] for row in rows} >= {"my files/deep/zh one.txt", "my files/faq.csv"}
    # All of the long text is there, in whole sentences that fill passages of 63 words and a title.
    assert " ".join(text for _, text, _ in long.values()) == (messy / "deep/long.txt").read_text()
    assert all(text.endswith("here.") for _, text, _ in long.values())
    assert {len(text.split()) for _, text, _ in list(long.values())[:-1]} == {60}
    assert done.unread.keys() == {
        *("my files/empty.txt", "my files/binary.txt", "my files/picture.png"),
        *("my files/other.csv", "my files/more.jsonl"),  # which is read up to the broken line
    }
    assert done.left_out["passages"] == {"copies of another passage": 3}
    assert done.left_out["documents"] == {"no text": 3, "rows with more fields than columns": 1}
    assert done.notes["files"] == {"cp1252": 2, "gb18030": 1, "utf_16": 1}
    warned = "\n".join(caplog.messages)
    assert "other.csv cannot be read: there is no column text or content or body, only" in warned
    assert "more.jsonl:4: 'broken' is not JSON" in warned
    assert "4 of 15 files were left out: not readable (3), of another kind (.png) (1)" in warned
    printed = " ".join(str(done).split())
    assert "files 11 cp1252 2, utf_16 1, gb18030 1 left out 3 not readable" in printed
    # What it wrote is a collection and a corpus.
    assert load_passages(tmp_path / "out")["_id"][:2] == [row["_id"] for row in rows[:2]]
    assert len(load_documents(str(tmp_path / "out"))) == len(rows)
    # A second call replaces the first, and reads neither its output nor the labels.
    again = collect([str(messy)], str(tmp_path / "out"), max_tokens=64)
    assert again.counts == done.counts and rows_of(tmp_path / "out") == rows


LABELS = [
    ("Where do penguins live?", "企鹅生活在南极", "", ""),
    ("What is gone?", "gone.", "", ""),  # of the copy, too
    ("Who pays?", "Money goes back\nto the **card**. Fee", "", ""),
    ("How do I install it?", "", r".\setup.md", ""),  # as Windows writes it
    ("Who said no?", "", "", "7"),
    ("Who SAID no?", "", "", "my_files/faq.csv#8"),
    ("Which sentence?", "Sentence 14 is here. Sentence 15 is here.", "", ""),  # of two passages
    ("Which row?", "Row", "", ""),  # of 200
    ("Which of two?", "folder", "", ""),  # a word of two documents
    ("Which section?", "The *deepest* wells", "", ""),  # a heading
    ("Which copy?", "", "copy.md", ""),  # of two that are different
    ("Nothing?", "There is no such text.", "", ""),
    ("", "Gone.", "", ""),
]


def test_labels_become_queries_and_judgements_of_which_a_document_has_one_split(messy, tmp_path):
    columns = ["Question", "passage", "file", "id"]
    rng = random.Random(0)
    many = [
        (f"Sentence {i}?", f"sentence {i} IS here", "", "") for i in rng.sample(range(3000), 50)
    ]
    many += [(f"Row {i}?", f"Row {i}.", "", "") for i in range(200)]
    rows = [{"id": f"r{i}", "text": f"Row {i}."} for i in range(200)]
    (messy / "deep" / "er" / "copy.md").write_text("Another.")
    (messy / "deep" / "er" / "folder.md").write_text("This folder is empty.")
    (messy / "wells.md").write_text("# Wells\n\nMany.\n\n## The deepest wells\n\nThey are old.")
    (messy / "deep" / "setup.md").write_text("Yet another, in another folder.")
    (messy / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pd.DataFrame(LABELS + many, columns=columns).to_csv(messy / "pairs.csv", index=False)
    done = collect([str(messy)], str(messy / "out"), labels=str(messy / "pairs.csv"), max_tokens=64)
    why = {
        "no such passage, or several documents": 2,
        "no question": 1,
        "the text is in more than 5 documents": 1,
        "the text is short and in several documents": 1,
    }
    assert done.left_out["labels"] == why
    loaded = {
        split: load_collection(messy / "out", split=split) for split in ("train", "dev", "test")
    }
    judged = {
        found.queries[query]: set(passages)
        for found in loaded.values()
        for query, passages in found.qrels.items()
    }
    names = ("deep/copy.md#1", "deep/copy.md#2", "deep/copy.md#3")
    expected = {
        "Where do penguins live?": ["deep/zh_one.txt#1"],
        "What is gone?": ["deep/copy.md#3"],
        "Who pays?": ["deep/page.html#2"],
        "How do I install it?": names,
        "Who said no?": ["faq.csv#7", "faq.csv#8"],
        "Which sentence?": ["deep/long.txt#1", "deep/long.txt#2"],
        "Row 17?": ["rows.jsonl#r17"],
        "Which section?": ["wells.md#2"],
    }
    for question, passages in expected.items():
        assert judged[question] == {f"my_files/{name}" for name in passages}, question
    assert len(judged) == 257
    assert done.notes["labels"] == {name: len(found.queries) for name, found in loaded.items()}
    assert all(len(found.queries) > 20 for found in loaded.values())
    splits = [
        {row.rpartition("#")[0] if "rows.jsonl" not in row else row for row in ids}
        for found in loaded.values()
        for ids in [{p for passages in found.qrels.values() for p in passages}]
    ]
    assert not (splits[0] & splits[1] or splits[0] & splits[2] or splits[1] & splits[2])
    with pytest.raises(ValueError, match="out has queries, which would be lost: give --labels"):
        collect([str(messy)], str(messy / "out"))
    # A run file of today fits the queries of next week.
    pd.DataFrame(LABELS[1:], columns=columns).to_csv(messy / "pairs.csv", index=False)
    collect([str(messy)], str(messy / "out"), labels=str(messy / "pairs.csv"), max_tokens=64)
    named = {text: query for found in loaded.values() for query, text in found.queries.items()}
    fewer = [json.loads(line) for line in (messy / "out/queries.jsonl").read_text().splitlines()]
    assert len(fewer) > 3 and all(named[query["text"]] == query["_id"] for query in fewer)


def test_a_messy_folder_is_evaluated_and_searched_and_the_index_follows_its_changes(
    messy, tmp_path
):
    kinds = ["oak", "elm", "ash", "fir", "yew", "gum", "fig", "bay", "box", "tea"]
    rows = [{"id": f"t{i}", "text": f"The {kind} is a tree."} for i, kind in enumerate(kinds)]
    (messy / "trees.json").write_text(json.dumps(rows))
    labels = [(f"What is {row['text'].split()[1]}?", "", row["id"]) for row in rows]
    labels += [("When is money returned?", "deep/page.html", ""), ("Sixteen?", "utf16.txt", "")]
    table, out = tmp_path / "pairs.csv", str(tmp_path / "out")
    pd.DataFrame(labels, columns=["question", "file", "id"]).to_csv(table, index=False)

    done = collect([str(messy)], out, labels=str(table))
    assert done.notes["labels"].total() == 12 and "labels            12  train" in repr(done)
    for split, n_queries in done.notes["labels"].items():
        report = evaluate(["bm25"], out, split=split, measures=["MRR@10"], output_dir=f"{out}-runs")
        assert len(report.results[0].evaluation.per_query["MRR@10"]) == n_queries > 0
        assert report.means["bm25"]["MRR@10"] == 1

    def find(query: str) -> list[str]:
        [found] = index.search([query], k=1)
        return [passage.text for passage in found]

    index = Index.build(out, "bm25", folder=tmp_path / "index")
    assert find("wie groß ist die Straße") == [GERMAN]
    (messy / "de.rst").unlink()
    (messy / "new.txt").write_text("Whales sing at night.", encoding="utf-16")
    (messy / "trees.json").write_text(json.dumps(rows[1:]))
    collect([str(messy)], out, labels=str(table))
    index.update(out)
    assert find("do whales sing") == ["Whales sing at night."]
    assert GERMAN not in find("wie groß ist die Straße") and find("oak") == []
    assert find("elm") == ["The elm is a tree."]


def test_labels_that_fit_nothing_are_refused_and_nothing_is_written(messy, tmp_path):
    labels = tmp_path / "pairs.csv"
    for content, message in (
        ("Question,Answer\na,b\n", "no column passage or text .* are Question, Answer. Name"),
        (
            "question,file\na,b.md\n",
            r"no label has a passage .*no such passage, or several documents: 1",
        ),
    ):
        labels.write_text(content)
        with pytest.raises(ValueError, match=message):
            collect([str(messy / "setup.md")], str(tmp_path / "out"), labels=str(labels))
        assert not (tmp_path / "out").exists()


def test_a_faq_whose_questions_are_titles_is_no_test(tmp_path, caplog):
    rows = [f"What is number {i}?,It is the letter {chr(97 + i)}." for i in range(20)]
    (tmp_path / "faq.csv").write_text("\n".join(["Frage,Antwort", *rows]))
    faq, out = [str(tmp_path / "faq.csv")], str(tmp_path / "out")
    how = {"label_columns": {"question": "Frage", "passage": "Antwort"}, "labels": faq[0]}
    done = collect(faq, out, text_column=["Antwort"], **how)
    assert done.notes["labels"].total() == 20 and "are the title" not in caplog.text
    collect(faq, out, text_column=["Antwort"], title_column="Frage", **how)
    assert "20 of 20 questions are the title of their own passage" in caplog.text
    corpus = (tmp_path / "out/corpus.jsonl").read_text()
    with pytest.raises(ValueError, match="no column question or query: its columns are Frage, Ant"):
        collect(faq, out, text_column=["Antwort"], labels=faq[0])
    with pytest.raises(ValueError, match="expected some of question.* which are Frage, Antwort"):
        collect(faq, out, labels=faq[0], label_columns={"question": "Fragen"})
    with pytest.raises(ValueError, match="No table has a column 'nr'. Columns are Antwort"):
        collect(faq, out, text_column=["Antwort"], id_column="nr", **how)
    collect(faq, str(tmp_path / "named"), text_column=["Antwort"], id_column="Frage")
    assert rows_of(tmp_path / "named")[0]["_id"] == "faq.csv#What_is_number_0?"
    with pytest.raises(ValueError, match="No table has a column 'antwrt'. Did you mean Antwort?"):
        collect(faq, out, text_column=["antwrt"], **how)
    assert (tmp_path / "out/corpus.jsonl").read_text() == corpus


def relevant(out: Path) -> dict[str, set[str]]:
    """Question -> its passages, of all splits."""
    found: dict[str, set[str]] = {}
    for file in (out / "qrels").glob("*.tsv"):
        loaded = load_collection(out, split=file.stem)
        found |= {loaded.queries[query]: {*own} for query, own in loaded.qrels.items()}
    return found


def test_a_named_column_of_labels_replaces_one_with_our_name(tmp_path):
    rows = [f"Is {word} a word?,{word} is one.,{word} is none." for word in ("oak", "elm")]
    (tmp_path / "t.csv").write_text("\n".join(["question,answer,passage", *rows]))
    texts = [f"{word} is {number}.\n" for word in ("oak", "elm") for number in ("one", "none")]
    for name, text in zip("abcd", texts, strict=True):
        (tmp_path / f"{name}.txt").write_text(text)
    files = [str(tmp_path / f"{name}.txt") for name in "abcd"]
    how = {"labels": str(tmp_path / "t.csv"), "label_columns": {"passage": "answer"}}
    collect(files, str(tmp_path / "out"), **how)
    found = relevant(tmp_path / "out")
    assert found == {"Is oak a word?": {"a.txt#1"}, "Is elm a word?": {"c.txt#1"}}
    with pytest.raises(ValueError, match="label_columns is set, but there are no labels"):
        collect(files, str(tmp_path / "other"), label_columns={"passage": "answer"})


def test_an_id_of_two_rows_names_neither_and_a_row_without_one_takes_none(tmp_path, caplog):
    ids = ["", "5", "17", "17", "1"]
    rows = [f"{own},Row {number} is here" for number, own in enumerate(ids)]
    (tmp_path / "t.csv").write_text("\n".join(["nr, text", *rows]))  # a blank before a name
    labels = [{"question": f"What is {own}?", "id": float(own)} for own in (1, 5, 17)]  # by pandas
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    how = {"id_column": "nr", "labels": str(tmp_path / "labels.jsonl")}
    collect([str(tmp_path / "t.csv")], str(tmp_path / "out"), **how)
    names = ["t.csv#row-1", "t.csv#5", "t.csv#17", "t.csv#17_2", "t.csv#1"]
    assert [row["_id"] for row in rows_of(tmp_path / "out")] == names
    found = relevant(tmp_path / "out")
    assert found == {"What is 1?": {"t.csv#1"}, "What is 5?": {"t.csv#5"}}
    assert "cannot name one in labels (1 times, such as t.csv#17)" in caplog.text


def test_ids_with_anchors_are_named_by_labels_and_are_no_parts_of_others(tmp_path):
    long = " ".join(f"This is number {i}." for i in range(6))
    (tmp_path / "t.csv").write_text(f"id,text\na/b,{long}\na/b#2,Another text.\n")
    (tmp_path / "labels.csv").write_text("question,id\nWhich?,a/b#2\n")
    out = tmp_path / "out"
    collect([str(tmp_path / "t.csv")], out, labels=str(tmp_path / "labels.csv"), max_tokens=16)
    names = ["t.csv#a/b", "t.csv#a/b#2", "t.csv#a/b#2_"]
    assert [row["_id"] for row in rows_of(out)] == names
    assert relevant(out) == {"Which?": {"t.csv#a/b#2_"}}


def test_a_label_that_names_nothing_is_not_about_the_only_document(tmp_path, write_text):
    write_text("# Refunds\n\nWithin 30 days.\n", "refunds.md")
    labels = write_text("question,passage\nhow long,30 days\nwho is the boss,\n", "labels.csv")
    collect([str(tmp_path / "refunds.md")], str(tmp_path / "out"), labels=str(labels))
    assert relevant(tmp_path / "out") == {"how long": {"refunds.md#1"}}


def test_a_label_is_about_each_passage_that_overlaps_with_its_text(tmp_path, write_text):
    sentences = [f"Sentence {n} is about the thing called {n}." for n in range(8)]
    file = write_text(" ".join(sentences), "a.txt")
    labels = write_text(f"question,passage\nwhich,{sentences[1]}\n", "labels.csv")
    collect([str(file)], str(tmp_path / "out"), labels=str(labels), max_tokens=17, overlap=8)
    holding = {row["_id"] for row in rows_of(tmp_path / "out") if sentences[1] in row["text"]}
    assert relevant(tmp_path / "out") == {"which": holding}
    assert len(holding) == 2


def test_texts_that_differ_in_vowel_signs_alone_are_two(tmp_path):
    texts = ["रोम ने काल जीता और वह गया", "रोम ने काल जीता और वह गयी"]
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    (tmp_path / "labels.csv").write_text(f"question,passage\nकौन?,{texts[1]}\n", "utf-8")
    files = [str(tmp_path / f"{name}.txt") for name in "ab"]
    collect(files, str(tmp_path / "out"), labels=str(tmp_path / "labels.csv"))
    assert relevant(tmp_path / "out") == {"कौन?": {"b.txt#1"}}


def test_labels_find_texts_and_files_whatever_the_unicode_form(tmp_path, write_text):
    file = write_text("Die Bru\u0308cke ist scho\u0308n und \ufb01nster.", "wells.txt")
    mill = write_text("Mills.", "Mu\u0308hle.txt")
    table = "question,passage,file\na,Die Brücke ist schön und finster.,\nb,,Mühle.txt\n"
    labels = write_text(table, "pairs.csv")
    collect([str(file), str(mill)], str(tmp_path / "out"), labels=str(labels))
    expected = {"a": {"wells.txt#1"}, "b": {"Mu\u0308hle.txt#1"}}
    assert relevant(tmp_path / "out") == expected


def test_labels_of_a_whole_document_are_warned_of(tmp_path, caplog):
    sections = [f"# Part {i}\n\nPart {i} is about the number {i}.\n" for i in range(8)]
    (tmp_path / "long.md").write_text("\n".join(sections))
    (tmp_path / "short.md").write_text(sections[0])
    (tmp_path / "labels.csv").write_text("question,file\nWhich part?,long.md\nOne?,short.md\n")
    files = [str(tmp_path / name) for name in ("long.md", "short.md")]
    collect(files, str(tmp_path / "out"), max_tokens=16, labels=str(tmp_path / "labels.csv"))
    assert "1 of 2 questions have more than 5 passages" in caplog.text


def test_a_collection_is_no_folder_of_documents_and_copies_are_named(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("one.md", "two.md"):
        (tmp_path / "in" / name).write_text("# Title\n\nThe same.")
    done = collect([str(tmp_path / "in")], str(tmp_path / "out"))
    assert done.copies == {"in/two.md#1": "in/one.md#1"}
    assert json.loads((tmp_path / "out" / "collected.json").read_text())["copies"] == done.copies
    with pytest.raises(ValueError, match="out is a collection that `collect` wrote"):
        collect([str(tmp_path / "in"), str(tmp_path / "out")], str(tmp_path / "new"))


def test_passages_fit_a_model_with_their_title_and_may_overlap(bert_folder, tmp_path, texts):
    text = f"{' '.join(texts[:20])} {'/'.join(texts[20:25])}"  # the last sentences are long
    (tmp_path / "a.md").write_text(f"# Poets and museums of Oslo\n\n{text}")
    done = collect(
        [str(tmp_path / "a.md")], str(tmp_path / "out"), model=str(bert_folder), max_tokens=48
    )
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    rows = rows_of(tmp_path / "out")
    lengths = [len(tokenizer(f"{row['title']} {row['text']}")["input_ids"]) for row in rows]
    assert max(lengths) <= 48
    assert "".join("".join(row["text"] for row in rows).split()) == "".join(text.split())
    assert done.notes["passages"]["cut within a sentence"] > 0
    (tmp_path / "b.txt").write_text(" ".join(f"This is number {i}." for i in range(40)))
    collect([str(tmp_path / "b.txt")], str(tmp_path / "out"), max_tokens=17, overlap=5)
    first, second, *_ = [row["text"] for row in rows_of(tmp_path / "out")]
    assert first == " ".join(f"This is number {i}." for i in range(4))
    assert second == " ".join(f"This is number {i}." for i in range(3, 7))


def test_passages_fit_the_length_that_a_published_model_reads(bert_folder, tmp_path, texts):
    model = save_modules(tmp_path / "model", bert_folder, lambda n: [Pooling(n)], length=32)
    (tmp_path / "a.txt").write_text(" ".join(texts[:20]))
    collect([str(tmp_path / "a.txt")], str(tmp_path / "out"), model=str(model))
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    lengths = [len(tokenizer(row["text"])["input_ids"]) for row in rows_of(tmp_path / "out")]
    assert 16 < max(lengths) <= 32


def test_a_title_that_is_as_long_as_a_passage_leaves_half_of_it_to_the_text(tmp_path):
    (tmp_path / "a.md").write_text(f"# {'very ' * 30}long\n\n{'word ' * 30}")
    collect([str(tmp_path / "a.md")], str(tmp_path / "out"), max_tokens=20)
    sizes = [
        (len(row["title"].split()), len(row["text"].split())) for row in rows_of(tmp_path / "out")
    ]
    assert sizes == [(10, 10)]  # the other two are copies


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"overlap": 30, "max_tokens": 20},
            "max_tokens is 20 and overlap is 30: expected at least",
        ),
        ({"encoding": "cp9999"}, "encoding is 'cp9999', expected a name such as cp1252"),
        ({"labels": "none.csv"}, "There is no file none.csv"),
        ({"folders": ["none"]}, "There is no file or folder none"),
        ({"out": "full"}, "full is not empty and was not written by `collect`. The last word"),
        ({"folders": [Path("pictures")]}, "There are no documents in pictures:\nfiles +0\n  left"),
        ({"folders": ["a/docs", "b/docs"]}, "would have the same name"),
    ],
)
def test_a_mistake_is_explained(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("full/a.txt", "a/docs/a.txt", "b/docs/a.txt", "pictures/a.png"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("text")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        collect(**{"folders": ["a"], "out": "out", **settings})
    assert not Path("out").exists()
    assert Path("full/a.txt").read_text() == "text"


def test_a_stated_encoding_and_column_are_used(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/pl.csv").write_bytes("tekst,title\nProszę o zwrot,Książka\n".encode("cp1250"))
    (tmp_path / "in/usual.csv").write_text("title,text\nBook,I want my money back\n")
    collect(tmp_path / "in", tmp_path / "out", encoding="cp1250", text_column="tekst")
    found = [(row["title"], row["text"]) for row in rows_of(tmp_path / "out")]
    assert found == [("Książka", "Proszę o zwrot"), ("Book", "I want my money back")]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('a,b\n"x, y",z\n', ("x, y", "z")),
        ('a, b\n"x", "y, z"\n', ("x", "y, z")),  # blanks before quotes
        ('a\tb\n3" long\t"quoted"\n', ('3" long', "quoted")),
        ('a;b\n"say \\"hi; you\\"";z\n', ('say "hi; you"', "z")),  # escaped as in MySQL
        ('a,b\nx,"open\ny,z\n', ("x", '"open')),  # a mark that nothing closes
        ("a|b\nx\n", ("x",)),
        ("text\nOne column, and a comma\n", ("One column, and a comma",)),
    ],
)
def test_the_delimiter_and_the_quoting_of_a_table_are_found(text, row):
    rows, n_ragged = parse_table(text)
    assert tuple(rows[0].values()) == row and n_ragged == 0


def test_documents_are_divided_at_headings_and_say_which_are_above():
    document = parse_markdown(
        '---\ntitle: "Guide"\n---\n# One\n\na\n\n### Deep\n\nb\n\n## Up\n\n'
        "- c\n- d\n\n# Two\n\n```\ne\n```\n"
    )
    assert document.title == "Guide"
    assert document.sections == [
        (("One",), "a"),
        (("One", "Deep"), "b"),
        (("One", "Up"), "c\nd"),
        (("Two",), "e"),
    ]
    unclosed = "<div><nav>menu</div>text<h2>A heading without an end<p>" + "word " * 50
    assert [text[:20] for _, text in parse_html(unclosed).sections] == ["text\n\nA heading with"]


def test_underlined_lines_are_headings_and_their_rules_are_levels():
    document = parse_underlined(
        "=====\nGuide\n=====\n\nintro\n\n.. _wells:\n\nWells\n=====\nDeep ones\n---------\n\na\n\n"
        "  code\n  ----\n\nRivers\n======\n\nb\n\n----\n\nlong heading\n---\n"
    )
    assert document == (
        "Guide",
        [
            ((), "intro"),
            (("Wells", "Deep ones"), "a\n\n  code\n  ----"),
            (("Rivers",), "b\n\n----\n\nlong heading\n---"),
        ],
    )
    plain = "No headings.\n\n- one\n---\n\na line\nof two\n------\n"
    assert parse_underlined(f"\n{plain}") == ("", [((), plain.strip())])


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("{skip}<main><h2>Wells</h2>deep</main>{aside}", ["deep"]),
        ('{skip}<div role="main">very deep</div>{aside}', ["very deep"]),
        ("{skip}<main> </main>deep", ["Skip\n\ndeep"]),
        ("<main>Loading</main>" + "deep " * 9, ["Loading\n\n" + " ".join(["deep"] * 9)]),
        ("<main>one</main><main>two</main>", ["one\n\ntwo"]),
    ],
)
def test_of_html_with_one_main_element_only_that_is_read(body, texts):
    around = {"skip": "<p>Skip</p>", "aside": "<aside>More</aside>"}
    assert [text for _, text in parse_html(body.format(**around)).sections] == texts
    above = parse_html("<title>Site</title><h1>Wells</h1><main><p>Some are deep.</main>")
    assert above == ("Wells", [((), "Some are deep.")])


def test_words_of_html_are_whole_where_it_says_that_they_may_be_broken():
    page = "<h1>Fahr&shy;plan</h1><p>Halte&#xAD;stelle am\u00ad Markt, <code>&amp;shy;</code>"
    assert parse_html(page) == ("Fahrplan", [((), "Haltestelle am Markt, &shy;")])


def test_the_parts_of_a_folded_text_and_of_a_form_are_lines_of_their_own():
    page = "<details><summary>Deep wells</summary>Dig <b>far</b></details>more"
    page += "<form><legend>Depth</legend><select><option>low<option>high</select></form>"
    [(_, text)] = parse_html(page).sections
    assert text.split() == "Deep wells Dig far more Depth low high".split()
    assert text.startswith("Deep wells\nDig far\n\nmore\n\nDepth\nlow")


def test_names_and_pdf_texts_that_are_no_unicode_are_collected(tmp_path):
    pytest.importorskip("pypdf")
    folder = tmp_path / os.fsdecode(b"in-caf\xe9")
    folder.mkdir()
    half = b"/ToUnicode 5 0 R>>>>>>>> endobj\n5 0 obj <</Length 45>> stream\n1 beginbfchar\n"
    half += b"<50> <D835>\nendbfchar\nendcmap   \nendstream endobj"
    (folder / "a.pdf").write_bytes(PDF.replace(b">>>>>>>> endobj", half))
    (folder / os.fsdecode(b"\xe9.txt")).write_text("Bread.")
    collect([str(folder)], str(tmp_path / "out"))
    assert [(row["_id"], row["text"]) for row in rows_of(tmp_path / "out")] == [
        ("in-caf\ufffd/a.pdf#1", "\ufffdaid in Oslo."),
        ("in-caf\ufffd/\ufffd.txt#1", "Bread."),
    ]
    assert [*load_documents(str(folder))["text"]] == ["\ufffdaid in Oslo.", "Bread."]


def test_word_and_pdf_files_need_an_extra_which_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "in").mkdir()
    document = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
        '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Terms</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>Pay within a week.</w:t></w:r></w:p></w:body></w:document>"
    )
    with zipfile.ZipFile(tmp_path / "in" / "a.docx", "w") as file:
        file.writestr("word/document.xml", document)
    (tmp_path / "in" / "a.txt").write_text("Text.")
    (tmp_path / "in" / "b.pdf").write_bytes(PDF)
    (tmp_path / "in" / "damaged.pdf").write_bytes(b"%PDF-1.4 and no more")
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "mammoth", None)
        done = collect(tmp_path / "in", tmp_path / "out")
    assert ".docx needs mammoth: pip install" in done.unread["in/a.docx"]
    pytest.importorskip("mammoth")
    pytest.importorskip("pypdf")
    done = collect(tmp_path / "in", tmp_path / "out")
    assert [(row["title"], row["text"]) for row in rows_of(tmp_path / "out")] == [
        ("Terms", "Pay within a week."),
        ("a", "Text."),
        ("b", "Paid in Oslo."),
    ]
    assert "damaged.pdf is not a readable PDF" in done.unread["in/damaged.pdf"]
