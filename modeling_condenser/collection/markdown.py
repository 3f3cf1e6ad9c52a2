"""Turns HTML into Markdown, and cuts Markdown at its headings into sections of plain text."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import yaml
from bs4 import BeautifulSoup
from lxml.html import defs
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdownify import MarkdownConverter

Section = tuple[tuple[str, ...], str]
"""The headings above a text, outermost first, and the text up to the next heading."""

HeadingPath = list[tuple[int, str]]
"""Levels and headings, outermost first."""

_SKIPPED = "title script style template noscript svg nav footer".split()
_BLOCKS = (  # which markdownify does not know, or marks
    "address aside dd details dialog dt fieldset figcaption figure form header hgroup legend main "
    "menu option search summary"
).split()
_XML = re.compile(r"\A\s*<\?xml[^>]*>")
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
# A script or a comment that does not end, or prose that begins with such a tag.
_NO_HTML = re.compile(
    r"""\s*<(?:
        (script|style|pre|textarea|title|template|noscript|svg|nav|footer)\b (?!.*</\1>)
      | (?:script|style)>[ \t]*(?![^\n]*</)[^\s<]
      | !--(?!.*-->) | \?(?!.*\?>) | !\[CDATA\[(?!.*\]\]>)
    )""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_TAG = re.compile(r"</?([a-z][\w-]*)", re.IGNORECASE)
_TAGS = (defs.tags | {"picture"}) - {"script", "style", "textarea", "title"}
_PROPERTY = re.compile(r"[\w-]+:(?: |$)|[ \t-]|$")  # a line of what should be YAML
_ANCHOR = re.compile(r"^[\s¶#§\u200b\uf0c1🔗]+$")  # the text of a link beside a heading
_LONGEST_LINKS = 300  # characters of a block of links to the next and the previous page
_TABLE_RULE = re.compile(  # between head and rows, or an empty head
    r"^(?:\|[ |:-]+\||(?=[^\n]*\|)(?=[ |:]*-)[ |:-]+)$\n?", re.MULTILINE
)


class _Converter(MarkdownConverter):  # type: ignore[misc]
    def convert_pre(self, el: Any, text: str, parent_tags: set[str]) -> str:
        """Set code between fences that are longer than any in the code."""
        code = text.strip("\n")
        fence = "`" * (1 + max(map(len, re.findall("`{3,}", code)), default=2))
        return f"\n\n{fence}\n{code}\n{fence}\n\n" if code else ""

    def convert_b(self, el: Any, text: str, parent_tags: set[str]) -> str:
        """Set no marks, which would stay where CommonMark does not read them: <b>Note:</b>text.

        A number becomes character references, or <b>3</b>. would begin a list.
        """
        is_number = re.fullmatch(r"\s*[0-9]{1,9}\s*", text) and "_noformat" not in parent_tags
        return re.sub("[0-9]", lambda digit: f"&#{ord(digit[0])};", text) if is_number else text

    convert_strong = convert_em = convert_i = convert_del = convert_s = convert_b


def html_to_markdown(page: str) -> tuple[str, str]:
    """Return the title of a page, and its text as Markdown without scripts, navigation and footers.

    Of a page with one <main>, only that is read if it has more than a quarter of the text.
    """
    soup = BeautifulSoup(_XML.sub("", page), "lxml")
    # Pictures (SVG) may have titles, too.
    stated = soup.select_one("h1.title") or soup.select_one("head > title")
    title = " ".join(stated.get_text().split()) if stated else ""
    for tag in (*soup(_SKIPPED), *soup("a", string=_ANCHOR)):
        tag.decompose()
    _remove_links_to_neighbours(soup)
    _open_layout_tables(soup)
    mains = soup.select("main, [role=main]")
    is_main = len(mains) == 1 and len(mains[0].get_text()) > len(soup.get_text()) / 4
    content = mains[0] if is_main else soup
    for tag in soup(_BLOCKS):
        tag.name = "div"
    for tag in soup("ol"):
        tag.name = "ul"  # numbers of items are not kept, and markdownify counts them slowly
    try:
        # Links become their texts; pictures are left out.
        converter = _Converter(heading_style="atx", escape_misc=True, strip=["a", "img"])
        return title, converter.convert_soup(content)
    except RecursionError:  # of elements that are nested hundreds deep
        return title, content.get_text("\n")


def _remove_links_to_neighbours(soup: BeautifulSoup) -> None:
    """Remove the short blocks that link to the next page, as DocBook and Texinfo write them."""
    for link in soup.select("a[rel~=next], a[rel~=prev], a[accesskey=n], a[accesskey=p]"):
        block = link.find_parent(["table", "p", "ul", "div"])
        is_page = block and block.find(["h1", "h2"])
        if block and not is_page and len(block.get_text()) <= _LONGEST_LINKS:
            block.decompose()


def _open_layout_tables(soup: BeautifulSoup) -> None:
    """Make divisions of tables that hold others, or the headings of a page."""
    for table in soup("table"):
        if table.find(["table", "h1", "h2"]):
            for part in table(["thead", "tbody", "tfoot", "tr", "td", "th", "caption"]):
                if part.find_parent("table") is table:
                    part.name = "div"
            table.name = "div"


def split_markdown(text: str, title: str = "") -> tuple[str, list[Section]]:
    """Cut Markdown at its headings, without marks of emphasis, links and lists.

    Returns:
        The title, which is that of the front matter, or the only heading of the first level, or the
        given one; and the sections that have text. A heading that has none is in the next text.
    """
    front_matter, text = _read_front_matter(text)
    path: HeadingPath = []
    parts: list[tuple[HeadingPath, list[str]]] = [(path, [])]
    end = "\n\n"
    tokens = _parse(text)
    for token in tokens:
        texts = parts[-1][1]
        if token.type == "heading_open":
            level, heading = int(token.tag[1]), _inline_text(next(tokens))
            path = [above for above in path if above[0] < level]
            path += [(level, heading)] if heading else []
            parts.append((path, []))
        elif token.type == "paragraph_open":
            end = "\n" if token.hidden else "\n\n"  # of an item of a list, or of a paragraph
        elif token.type == "inline":
            texts.append(_inline_text(token) + end)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            texts.append("\n")
        elif token.type in ("fence", "code_block"):
            texts.append(f"{token.content}\n")
    highest = {above[0][1] for above, _ in parts if above and above[0][0] == 1}
    if front_matter.get("title"):
        title = " ".join(str(front_matter["title"]).split())
    elif len(highest) == 1:
        title = highest.pop()
    parts_with_text = [(above, "".join(texts)) for above, texts in parts]
    return title, gather_sections(parts_with_text, title=title)


def gather_sections(parts: Sequence[tuple[HeadingPath, str]], *, title: str = "") -> list[Section]:
    """Return the parts that have text; the headings of the others, in the next text.

    Args:
        parts: what stands below each heading.
        title: of the document; a heading of the first level with which it begins is left out.
    """
    sections: list[Section] = []
    waiting: list[str] = []  # headings without text
    for (above, text), (below, _) in pairwise([*parts, ([], "")]):
        headings = [name for level, name in above if level > 1 or not _begins_with(title, name)]
        if joined := re.sub(r"\n{3,}", "\n\n", text).strip():
            sections.append((tuple(headings), "\n\n".join([*waiting, joined])))
            waiting = []
        elif headings and below[: len(above)] != above:
            waiting.append(" > ".join(headings))
    if waiting:
        sections.append(((), "\n\n".join(waiting)))
    return sections


def _begins_with(title: str, words: str) -> bool:
    return re.match(rf"{re.escape(words)}(?!\w)", title) is not None


def _parse(text: str) -> Iterator[Token]:
    """Parse Markdown, and HTML in it as Markdown.

    In CommonMark, a script or a comment without an end would take the rest of the document.
    """
    parser = MarkdownIt("commonmark", {"maxNesting": 200})  # by default, the 10th list is dropped
    for token in parser.parse(text):
        if token.type != "html_block":
            yield token
        elif _NO_HTML.match(token.content):
            yield from _parse(f"\\{token.content.lstrip()}")
        else:
            yield from _parse(html_to_markdown(token.content)[1])


def _read_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Divide a text into its front matter (YAML, or TOML between +++) and the rest.

    Between rules at the start of a text there may be anything else, which is text.
    """
    block = _FRONT_MATTER.match(text)
    if block:
        values: Any = None
        try:
            values = yaml.safe_load(block[2]) if block[1] == "---" else tomllib.loads(block[2])
        except (yaml.YAMLError, ValueError):  # also of dates
            if all(_PROPERTY.match(line) for line in block[2].splitlines()):  # title: A: B
                title = re.search(r"^title: *(.+)", block[2], re.MULTILINE)
                values = {"title": title[1].strip("\"' ") if title else ""}
        if isinstance(values, dict):
            return values, text[block.end() :]
    return {}, text


def _inline_text(token: Token) -> str:
    """Return the text of a paragraph, whose lines are joined, except the rows of a table."""
    is_table = token.content.startswith("|") or _TABLE_RULE.search(token.content)
    line_end = "\n" if is_table else " "
    texts = []
    for child in token.children or ():
        if child.type == "html_inline":
            tag = _TAG.match(child.content)
            name = tag[1].lower() if tag else ""
            is_text = tag and name not in _TAGS  # as in list<int>
            texts.append(child.content if is_text else " " * (name == "br"))
        elif child.type == "softbreak":
            texts.append(line_end)
        else:
            texts.append("\n" if child.type == "hardbreak" else child.content)
    return _TABLE_RULE.sub("", "".join(texts)).strip()
