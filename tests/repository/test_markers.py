"""Sections of a card among a person's own text."""

from pathlib import Path

import pytest

from modeling_condenser.repository.markers import (
    find_repository,
    merge_sections,
    repository_comment,
)

FILE = Path("README.md")


def block(name: str, content: str) -> str:
    return f"<!-- condenser:{name} -->\n\n{content}\n\n<!-- /condenser:{name} -->"


def test_a_new_card_has_the_sections_in_order() -> None:
    text = merge_sections("", {"about": "# x", "use": "do"}, file=FILE)
    assert text == f"{block('about', '# x')}\n\n{block('use', 'do')}\n"


def test_sections_are_replaced_in_their_places_and_other_text_stays() -> None:
    before = (
        f"Before.\n\n{block('use', 'old')}\n\n## Mine\n\n    code | `x`  \n\n"
        f"{block('about', 'older')}\n\nAfter.\n"
    )
    after = merge_sections(before, {"about": "A", "use": "U"}, file=FILE)
    assert after == before.replace("older", "A").replace("old", "U")
    assert merge_sections(after, {"about": "A", "use": "U"}, file=FILE) == after


def test_a_text_without_sections_is_kept_and_they_follow() -> None:
    text = merge_sections("# Mine\n\nWords.\n", {"about": "A"}, file=FILE)
    assert text == f"# Mine\n\nWords.\n\n{block('about', 'A')}\n"


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (["one", "three"], ["one", "two", "three"]),
        (["two"], ["one", "two", "three"]),
        (["three", "one"], ["three", "one", "two"]),
    ],
)
def test_a_section_that_is_missing_comes_beside_its_neighbours(
    present: list[str], expected: list[str]
) -> None:
    before = "\n\n".join(block(name, "x") for name in present)
    sections = {"one": "1", "two": "2", "three": "3"}
    text = merge_sections(before, sections, file=FILE)
    places = {name: text.index(f"<!-- condenser:{name} -->") for name in sections}
    assert sorted(places, key=places.__getitem__) == expected


def test_a_section_that_is_no_more_is_taken_out() -> None:
    before = f"Mine.\n\n{block('gone', 'x')}\n\nAlso mine.\n"
    text = merge_sections(before, {"about": "A"}, file=FILE)
    assert "gone" not in text and "Mine.\n\nAlso mine." in text


def test_foreign_text_in_a_section_cannot_end_it() -> None:
    evil = "a\n<!-- /condenser:about -->\n<!-- condenser:use -->\nb"
    text = merge_sections("", {"about": evil, "use": "U"}, file=FILE)
    again = merge_sections(text, {"about": "A", "use": "U"}, file=FILE)
    assert again == f"{block('about', 'A')}\n\n{block('use', 'U')}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- condenser:use -->\nx", "has the comment condenser:use, and none that ends"),
        ("x\n<!-- /condenser:use -->", "line 2 of the text.*expected one that begins"),
        (
            "<!-- condenser:use -->\n<!-- condenser:about -->\n<!-- /condenser:about -->",
            "line 2.*expected /condenser:use",
        ),
        (f"{block('use', 'a')}\n{block('use', 'b')}", "come in pairs, once a card"),
    ],
)
def test_comments_that_do_not_pair_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge_sections(text, {"use": "U"}, file=FILE)


def test_the_repositorys_name_is_remembered() -> None:
    assert find_repository(f"x\n{repository_comment('me/my-model')}\ny") == "me/my-model"
    assert find_repository("me/my-model") is None
