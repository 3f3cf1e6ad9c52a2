"""Menus, language lists and footers of a site are left out, and its text is kept."""

import json

from modeling_condenser.collection.collect import collect

LANGUAGES = "<ul><li>Deutsch<li>English<li>Français</ul>"
PAGE = (
    "<h1>About {0}</h1><p>Prev Home Next</p>{1}<p>The {0} is fast.</p><p>The {0} eats.</p>"
    "<p>The {0} sleeps.</p><p>The {0} runs.</p>"
    "<p>Price:<br>{2} coins</p><table><tr><td>Prev<td>Next<tr><td>Up<td>Top</table>"
)
ANIMALS = ["ant", "bee", "cat", "dog", "eel", "fox"]


def test_menus_and_footers_are_kept_in_the_first_page_and_counted(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for place, animal in enumerate(ANIMALS):
        (folder / f"{animal}.html").write_text(PAGE.format(animal, LANGUAGES, place))
    (folder / "own.html").write_text("<p>Prev Home Next</p>")  # nothing else
    for place in range(6):
        (folder / f"{place}.txt").write_text(f"Prev Home Next\n\nNumber {place}.")
    done = collect(sources=folder, out=out)
    texts = {}
    for line in (out / "corpus.jsonl").read_text().splitlines():
        row = json.loads(line)
        texts[row["file"].removeprefix("in/")] = row["text"]
    body = "The {0} is fast.\n\nThe {0} eats.\n\nThe {0} sleeps.\n\nThe {0} runs."
    menu = "Prev Home Next\n\nDeutsch\nEnglish\nFrançais\n\n"
    assert texts["ant.html"] == (
        f"{menu}{body.format('ant')}\n\nPrice:\n0 coins\n\n| Prev | Next |\n| Up | Top |"
    )
    for place, animal in enumerate(ANIMALS[1:], start=1):
        assert texts[f"{animal}.html"] == f"{body.format(animal)}\n\nPrice:\n{place} coins"
    assert texts["own.html"] == "Prev Home Next"
    assert texts["5.txt"] == "Prev Home Next\n\nNumber 5."
    expected = {"Prev Home Next": 5, "Deutsch": 5, "| Prev | Next |": 5}
    assert json.loads((out / "collected.json").read_text())["shared_text"] == expected
    assert "15  paragraphs of menus and footers left out" in str(done)


def test_text_of_few_pages_and_the_heading_of_a_page_are_kept(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for place, animal in enumerate(ANIMALS):
        swims = "It swims." if place < 4 else "It sinks."
        page = f"<h2>{animal}</h2><p>It is fast.</p><h2>More</h2><p>{swims}"
        (folder / f"{animal}.html").write_text(page)
    collect(sources=folder, out=out)
    rows = [json.loads(line) for line in (out / "corpus.jsonl").read_text().splitlines()]
    by_heading = [row["headings"] for row in rows if row["text"] == "It is fast."]
    assert by_heading == ANIMALS  # or these headings would be lost
    assert {row["text"] for row in rows} == {"It is fast.", "It swims.", "It sinks."}


def test_what_pages_share_in_the_middle_of_their_text_is_kept(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for animal in ANIMALS:
        around = "".join(f"<p>The {animal} {verb}.</p>" for verb in ("eats", "runs", "sleeps"))
        (folder / f"{animal}.html").write_text(f"{around}<p>It is an animal.</p>{around}")
    collect(sources=folder, out=out)
    rows = [json.loads(line) for line in (out / "corpus.jsonl").read_text().splitlines()]
    assert ["It is an animal." in row["text"] for row in rows] == [True] * len(ANIMALS)
