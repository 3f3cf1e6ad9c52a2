"""What the files of documents and tables become, in many formats and encodings."""

import base64
import bz2
import csv
import json
import lzma
import sys
import zipfile
import zlib
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modeling_condenser.collection import rows as rows_module
from modeling_condenser.collection.conversion import (
    Document,
    DocumentReader,
    find_files,
    read_any_rows,
)
from modeling_condenser.collection.markdown import html_to_markdown, split_markdown
from modeling_condenser.collection.rows import read_rows

DOCX = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Terms</w:t></w:r></w:p>'
    "<w:p><w:r><w:t>Pay within a week.</w:t></w:r></w:p><w:tbl><w:tr><w:tc><w:p><w:r><w:t>fee"
    "</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>none</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    "</w:body></w:document>"
)
PACKAGE = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
    'full-path="book.opf"/></rootfiles></container>'
)
BOOK = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
    '<dc:title>Water</dc:title></metadata><manifest><item id="a" '
    'href="a.xhtml" media-type="application/xhtml+xml"/></manifest><spine><itemref idref="a"/>'
    "</spine></package>"
)


# PDF, by pypdf with AES of 256 bits and an empty password
AES_PDF = (
    "c-oCrJC7Vi5DpN@1P~!I(-K<bgqwa<Kcv-R-`$?DjCH45&Ivk+e$<@T?9H5Jdo3RkIfVQHB1CA3oRo|J0zw2o0OV"
    "gl&F*=<(h@Kask*xQ`>LzI>e1=Z@rPnhSEE1w`sLS3FwVO8v>K1A`n2!zGGWigK4zU8XMN<-$|h<nG{@``HxR7F#"
    "I-fnI+wCl7^QNGn?_|LKms_vU+wQ#*yaIQZZUj%bB(M%4VSp6>cei?7AC6t;VduMXG~Mz8N1k8s&<whh7#u8Wwpj"
    "&1NPb00{x#{Rs9I_EF5&tiG|av`1-#Xl4uLIWx-$tRiELaTlR^t2aIEyT^sB*<lwC8=`xnpaB$Kl4#EOg;q}Kje}"
    "-k2!jRbdqcnPA*~u5S^8Ezc%kqR7J<KmkkKwBN`iH;ILwj)N>Fk5M---9XdGnule!Tg9@AvaGd-3^CKfmi=eDw07"
    "m^a?KHyXM3US5|6U#0oOyZ89sw{QRP#cz7xxrMrAG+T_18PJBA*>FoB`;=+vwKrCJNgJQd3n`+WmeA(V=c+zoW8r"
    "lS9#aBGN{PzAN()>i2RuT^&XGC*$?{PsZK8KBDoB`wZoB{iDtmxNVE|zTk1>-wG>r<<xJU&%XJc!nX=KB7$buxMJ"
    "a0_YXoL;cC5bAys1uLQHWD>J^g4h{I^}?h(g5p$Mm7aXL>u04WegV?9fb=VSPs|cIxYFuy1y(>CeMbWs*k#Ka*gc"
    "}^oZ5>C)3AjQz#{09qhDR9kVsSFz8<oP9{_+r-XChQ05F8;$T|WIPQg286<a&_goqfMoR@EB03k6P}V7HIUfo^Fe"
    "$}^7!1$QWRrwVDx=cMCktLgk$F@}K#o=lC7rc_ikmEVGGeCk4FbgeiZtypD(Y)Wr3sl6h2-E&L`NlajgZ@o`@F}d"
    ";>=cj^DqOTfHiF66C~l)OuO+3p>};%?)an>J3i&@jt|6ET<ODXj{Qo%)7h6u>D6alSD0G&?}N7Kn7Fl%sNcs_ckT"
    "mel1Dw<S~?r8qSKMyWQ^VaKOuBeOxo1nTo-0u_3)yEzO0HQxG~jeG&wo0{smVNaE1"
)
STYLES = (
    '<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:style '
    'w:type="paragraph" w:styleId="Titel"><w:name w:val="Title"/></w:style></w:styles>'
)
BOX = (
    "<mc:AlternateContent><mc:Choice><w:drawing><wp:anchor><wps:txbx><w:txbxContent><w:p><w:r><w:t>"
    "in a box</w:t></w:r></w:p></w:txbxContent></wps:txbx></wp:anchor></w:drawing></mc:Choice>"
    "<mc:Fallback/></mc:AlternateContent>"
)
PICTURE = (
    "<mc:Fallback><w:pict><v:textbox><w:txbxContent><w:p><w:r><w:t>in a box</w:t></w:r></w:p>"
    "</w:txbxContent></v:textbox></w:pict></mc:Fallback>"
)
SPECIAL = f"""<w:document
xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"
xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"
xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"
xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"
xmlns:v="urn:schemas-microsoft-com:vml"
xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><w:body>
<w:p><w:pPr><w:pStyle w:val="Titel"/></w:pPr><w:r><w:t>Guide</w:t></w:r></w:p>
<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>One</w:t></w:r></w:p>
<w:p><w:r><w:t>end</w:t><w:br w:type="page"/><w:t>next</w:t><w:br w:type="column"/><w:t>last</w:t>
<w:cr/><w:t>line</w:t></w:r></w:p>
<w:p><w:r><w:t>Figure </w:t></w:r><w:fldSimple><w:r><w:t>7</w:t></w:r></w:fldSimple></w:p>
<w:p><m:oMath><m:r><m:t>x+1</m:t></m:r></m:oMath></w:p>
<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Two</w:t></w:r></w:p>
<w:p><w:r>{BOX}</w:r></w:p><w:p><w:r>{BOX.replace("<mc:Fallback/>", PICTURE)}</w:r></w:p>
</w:body></w:document>"""
CORE = (
    '<p:coreProperties xmlns:p="http://schemas.openxmlformats.org/package/2006/metadata/core-prop'
    'erties" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Stated</dc:title>'
    "</p:coreProperties>"
)


def zip_to(file: Path, **contents: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), content)


def read(folder: Path, **settings):
    """Name of a document -> its title and sections."""
    reader = DocumentReader(**settings)
    documents = {each.name: each for each in reader.read(find_files([str(folder)]))}
    return {name: (each.title, [*each.sections]) for name, each in documents.items()}, reader


def test_pdf_word_powerpoint_and_epub_files_are_read_and_damaged_ones_named(tmp_path):
    pytest.importorskip("markitdown")
    from pptx import Presentation

    folder = tmp_path / "in"
    folder.mkdir()
    zip_to(folder / "a.docx", word__document_xml=DOCX)
    (folder / "b.pdf").write_bytes(make_pdf("Paid in Oslo."))
    with zipfile.ZipFile(folder / "c.epub", "w") as book:
        book.writestr("META-INF/container.xml", PACKAGE)
        book.writestr("book.opf", BOOK)
        book.writestr(
            "a.xhtml",
            "<html><body><h1>Wells</h1><p>They are deep.</p><h1>Ponds</h1>calm</body></html>",
        )
    slides = Presentation()
    for title, text in (("Rivers", "They flow\nThey end"), ("", "A lake"), ("Seas", "Salt")):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, text
    slides.save(folder / "d.pptx")
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.4 and no more")
    documents, reader = read(folder)
    assert documents == {
        "in/a.docx": ("Terms", [((), "Pay within a week.\n\n| fee | none |")]),
        "in/b.pdf": ("", [((), "Paid in Oslo.")]),
        "in/c.epub": (
            "Water",
            [((), "Title: Water"), (("Wells",), "They are deep."), (("Ponds",), "calm")],
        ),
        "in/d.pptx": (
            "",
            [(("Rivers",), "They flow\nThey end"), ((), "A lake"), (("Seas",), "Salt")],
        ),
    }
    assert "in/damaged.pdf cannot be converted" in reader.unread["in/damaged.pdf"]


def test_word_files_keep_breaks_boxes_fields_and_equations(tmp_path):
    pytest.importorskip("markitdown")
    zip_to(tmp_path / "a.docx", word__document_xml=SPECIAL, word__styles_xml=STYLES)
    plain = DOCX.replace("Heading1", "Normal")
    zip_to(tmp_path / "b.docx", word__document_xml=plain, docProps__core_xml=CORE)
    a, b = read(tmp_path)[0].values()
    assert a == (
        "Guide",
        [
            (("One",), "end\nnext\nlast\nline\n\nFigure 7\n\n$x+1$"),
            (("Two",), "in a box\n\nin a box"),
        ],
    )
    assert b[0] == "Stated"


def make_pdf(*pages: str, more: str = "", **info: str) -> bytes:
    """A PDF file, with a line of text in Helvetica for each line of a page."""
    letters = "/Encoding <</Type /Encoding /Differences [173 /uni00AD]>>"
    font = f"/Font <</F <</Type /Font /Subtype /Type1 /BaseFont /Helvetica {letters}>>>>"
    kids = " ".join(f"{10 + 2 * i} 0 R" for i in range(len(pages)))
    stated = " ".join(f"/{name} ({text})" for name, text in info.items())
    objects = {
        1: f"<</Type /Catalog /Pages 2 0 R {more}>>",
        2: f"<</Type /Pages /Kids [{kids}] /Count {len(pages)}>>",
        3: f"<<{stated}>>",
    }
    for i, page in enumerate(pages):
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in page.split("\n") if line)
        content = f"BT /F 12 Tf 20 250 Td {lines} ET"
        objects[10 + 2 * i] = (
            f"<</Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents {11 + 2 * i} 0 R "
            f"/Resources <<{font}>>>>"
        )
        objects[11 + 2 * i] = f"<</Length {len(content)}>> stream\n{content}\nendstream"
    body = "".join(f"{number} 0 obj {content} endobj\n" for number, content in objects.items())
    ending = "trailer <</Root 1 0 R /Info 3 0 R>>\nstartxref\n0\n%%EOF\n"
    return f"%PDF-1.4\n{body}{ending}".encode("latin-1")


def test_pdf_files_have_their_title_bookmarks_and_pages_without_text(tmp_path):
    pytest.importorskip("pdfminer")
    item = "<</Title ({}) /Dest [{} 0 R /Fit] /Parent 4 0 R {}>>"
    first = item.format("Deep wells", 10, f"/Next {item.format('Rivers', 16, '')}")
    pages = [
        "WELLS 1\n1. Deep wells\nThey are hid-\nden and deep.",
        "WELLS 2\nVery deep\\255\nly.",
        "",
        "WELLS 4\nThe end of wells.\nRivers\nThey flow.",
    ]
    more = f"/Outlines <</Type /Outlines /First {first} /Last {first} /Count 2>>"
    (tmp_path / "a.pdf").write_bytes(make_pdf(*pages, more=more, Title="Water"))
    (tmp_path / "b.pdf").write_bytes(make_pdf("Text.", Title="Microsoft Word - water.doc"))
    bills = [
        f"Bill\nTotal {total}\nPage {page} of 3" for page, total in ((1, 80), (2, 60), (3, 90))
    ]
    (tmp_path / "c.pdf").write_bytes(make_pdf(*bills))
    (tmp_path / "d.pdf").write_bytes(make_pdf("Text.", Title="A Guide to Node.js"))
    documents, reader = read(tmp_path)
    [a, b, c, d] = documents.values()
    assert d[0] == "A Guide to Node.js"
    assert c[1] == [((), "Bill\nTotal 80\nPage 1 of 3\n\nTotal 60\n\nTotal 90")]
    assert a == (
        "Water",
        [
            ((), "WELLS 1"),
            (("Deep wells",), "They are hidden and deep.\n\nVery deeply.\n\nThe end of wells."),
            (("Rivers",), "They flow."),
        ],
    )
    assert b[0] == "" and reader.pages_without_text == {f"{tmp_path.name}/a.pdf": 1}


def test_a_pdf_that_is_encrypted_with_an_empty_password_is_read(tmp_path):
    pytest.importorskip("pdfminer")
    (tmp_path / "a.pdf").write_bytes(zlib.decompress(base64.b85decode(AES_PDF)))
    assert [*read(tmp_path)[0].values()] == [("", [((), "Paid in Oslo.")])]


def test_without_a_library_its_files_are_named_with_the_command_that_installs_it(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pdfminer.high_level", None)
    (tmp_path / "b.pdf").write_bytes(make_pdf("Paid in Oslo."))
    (tmp_path / "c.html").write_text("<h1>Wells</h1>deep")
    documents, reader = read(tmp_path)
    assert list(documents.values()) == [("Wells", [((), "deep")])]
    [why] = reader.unread.values()
    assert why == '.pdf files need pdfminer: pip install -c constraints.txt -e ".[documents]"'


def test_documents_are_divided_at_headings_and_say_which_are_above():
    assert split_markdown(
        '---\ntitle: "Guide"\n---\n# One\n\na *b*\n[c](https://d.e) `f`\n\n### Deep\n\nb\n\n## Up\n'
        "\n- c\n- d\n\n1. e\n\n# Two\n\n```\n# f\n```\n\n| g | h |\n|---|---|\n| i | j | k |\n"
    ) == (
        "Guide",
        [
            (("One",), "a b c f"),
            (("One", "Deep"), "b"),
            (("One", "Up"), "c\nd\n\ne"),
            (("Two",), "# f\n\n| g | h |\n| i | j | k |"),
        ],
    )
    # Front matter is YAML or TOML: what is between two rules may be text.
    assert split_markdown("---\ntitle: >\n  Sea\n  and land\n---\nsalt") == (
        "Sea and land",
        [((), "salt")],
    )
    assert split_markdown('+++\ntitle = "Sea"\n+++\nsalt') == ("Sea", [((), "salt")])
    assert split_markdown("---\ntitle: 'Sea: a guide'\nup: [[A]], [[B]]\n---\nsalt") == (
        "Sea: a guide",
        [((), "salt")],
    )
    assert split_markdown("---\n- salt\n- pepper\n\n---\nfish")[1] == [((), "salt\npepper\n\nfish")]
    assert split_markdown("---\nFirst: it is\n\nsalt.\n\n---\nfish")[1] == [
        ((), "First: it is\n\nsalt.\n\nfish")
    ]
    assert split_markdown("---\n# Sea\nsalt\n\n---\nfish\n") == ("Sea", [((), "salt\n\nfish")])
    assert split_markdown("Rivers\n===\n\nflow\n") == ("Rivers", [((), "flow")])
    # A heading with which the title begins is left out, unless only half of a word agrees.
    assert split_markdown("---\ntitle: Carpets, new\n---\n# Car\na\n# Carpets\nb")[1] == [
        (("Car",), "a"),
        ((), "b"),
    ]


def test_soft_hyphens_are_removed_from_titles_headings_and_texts(tmp_path):
    (tmp_path / "a.md").write_text("# Bo\xadden\n\n## Was\xadser\n\nEs fließt ab\xadwärts.\n")
    assert read(tmp_path)[0].popitem()[1] == ("Boden", [(("Wasser",), "Es fließt abwärts.")])


def test_the_whole_text_of_a_document_has_each_heading_once():
    sections = [((), "a"), (("A", "B"), "b"), (("A", "C"), "c"), (("C",), "d"), (("C",), "e")]
    text = Document("n", "n", "T", sections).text
    assert text.split("\n\n") == ["T", "a", "A", "B", "b", "C", "c", "C", "d", "C", "e"]


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("Put the <script> last.\n\n# B\n\nend", [((), "Put the <script> last."), ((), "end")]),
        ("Put\n<script> last.\n\nMore", [((), "Put\n\n<script> last.\n\nMore")]),
        (
            "Put\n<script> last.\n\nMore: </script>",
            [((), "Put\n\n<script> last.\n\nMore: </script>")],
        ),
        ("a\n\n<!-- open\n\nb", [((), "a\n\n<!-- open\n\nb")]),
        ("Use\n<nav> here.\n\nb", [((), "Use\n\n<nav> here.\n\nb")]),
        ("Name | Size\n--- | ---\nfoo | 1\nbar | 2", [((), "Name | Size\nfoo | 1\nbar | 2")]),
        ("list<int> of <b>x</b><br>y <!-- z -->", [((), "list<int> of x y")]),
        ("<script>\nf()\n\ng()\n</script>\n\na\n\n<!-- b\n\nc -->", [((), "a")]),
        ("<h1>T</h1>\n\n<table><tr><td>a<td>b</table>\n\nc", [((), "| a | b |\n\nc")]),
        (
            "## A\n## B\nb\n## C\n### D\n## E\n\n- e\n\n## F",
            [
                (("B",), "A\n\nb"),
                (("E",), "C > D\n\ne"),
                ((), "F"),
            ],
        ),
        (  # ten levels
            "".join(f"{'  ' * i}- {i}\n" for i in range(10)) + "\n## A\n\na",
            [((), "\n".join("0123456789")), (("A",), "a")],
        ),
    ],
)
def test_no_text_is_lost_in_markdown(text, sections):
    assert split_markdown(text)[1] == sections


@pytest.mark.parametrize(
    ("page", "title", "sections"),
    [
        (
            "<title>Shop</title><style>p {}</style><nav>Home</nav><h1>Refunds</h1><p>Any <b>it</b>"
            "em\ncan be sent # back.<h2>Cards</h2><div>* Paid</div><p># no heading</p><footer>2024",
            "Refunds",
            [((), "Any item can be sent # back."), (("Cards",), "* Paid\n\n# no heading")],
        ),
        (  # without end tags
            "<title>T</title><table><tr><td>a<td>b<tr><td>c<td>d | e</table><dl><dt>f<dd>g</dl>",
            "T",
            [((), "| a | b |\n| c | d | e |\n\nf\n\ng")],
        ),
        ("<p>Skip</p><main><h2>Wells</h2>deep</main><aside>More", "", [(("Wells",), "deep")]),
        ("<main>Loading</main>" + "deep " * 9, "", [((), "Loading\n\n" + " ".join(["deep"] * 9))]),
        ("<h1>Fahr&shy;plan</h1><code>&amp;lt;</code>", "Fahr\xadplan", [((), "&lt;")]),
        (  # a picture's title is none of the page, and an anchor no part of a heading
            "<svg><title>Icon</title></svg><h1>Start <a href='#start'>¶</a></h1>here",
            "Start",
            [((), "here")],
        ),
        (  # links to the next page, and a layout table
            "<div><p>Next: <a href='b' rel='next'>B</a></p></div><table><tr><td><ul><li>Menu</ul>"
            "<td><h2>Wells</h2>deep<table><tr><td>a<td>b</table></table>"
            "<table><tr><td><a accesskey='p' href='c'>Prev</a><tr><td>C</table>",
            "",
            [((), "Menu"), (("Wells",), "deep\n\n| a | b |")],
        ),
        (  # a page with two headings of the first level
            "<title>Wells - Site</title><h1>Wells</h1>deep<h1>Log</h1>new",
            "Wells - Site",
            [((), "deep"), (("Log",), "new")],
        ),
        ("<?xml version='1.0'?><h1>A</h1><pre>b\n  c</pre>", "A", [((), "b\n  c")]),
        (
            "<p><strong>1990</strong>. A year.</p><ul><li><b>2</b>. a</li></ul>",
            "",
            [((), "1990. A year.\n\n2. a")],
        ),
        ("<p><b>注意：</b>请看<b>a</b><i>b</i><del>x</del>y", "", [((), "注意：请看abxy")]),
        (  # an anchor of VitePress, and a short page with a link to the next
            "<div><h1>A<a href='#a'>\u200b</a></h1><p>b</p><a rel='next' href='c'>C</a></div>",
            "A",
            [((), "b\n\nC")],
        ),
        (  # code that has fences of Markdown, as in comments of Rust
            "<h1>A</h1><ul><li><pre>```\n# b\n`````</pre></li></ul><p>c",
            "A",
            [((), "```\n# b\n`````\n\nc")],
        ),
    ],
)
def test_html_is_read_without_navigation_and_its_text_is_no_markdown(page, title, sections):
    page_title, markdown = html_to_markdown(page)
    assert split_markdown(markdown, page_title) == (title, sections)


def test_documents_that_are_nested_too_deep_are_named(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    reader = DocumentReader()
    assert not list(reader.read({"deep.json": tmp_path / "deep.json"}))
    assert [*reader.unread] == ["deep.json"]


def test_a_page_of_many_or_deep_elements_is_read_quickly():
    for page in (
        "<p>word" * 3_000,
        "<ol>" + "<li>word</li>" * 3_000,
        "<table>" + "<tr><td>word" * 3_000,
        "<dl>" + "<dt>word<dd>" * 3_000,
        "<div>word " * 2_000,
    ):
        _, markdown = html_to_markdown(page)
        assert markdown.count("word") == page.count("word")


def test_rows_of_tables_are_documents_with_an_id_or_a_number(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_bytes('id;title;text\n007;Nö;"He said ""no""\n5"\n'.encode("cp1252"))
    rows = '{"text": "A line."}\n{"text": NaN, "_id": 3}\n{"content": 5, "_id": 17.0}\n'
    (folder / "b.jsonl").write_text(rows)
    pd.DataFrame({"body": ["P", None], "nr": [1.0, None]}).to_parquet(folder / "c.parquet")
    (folder / "d.csv").write_text("question,answer\na,b\n")
    (folder / "e.csv").write_text("text,text\na,b\n")
    (folder / "f.jsonl").write_text('{"text": "first"}\nbroken\n')
    (folder / "g.tsv").write_text('text\ttitle\n"3 long\tt\n')
    (folder / "h.csv").write_text("sep=;\ntext;title\nfrom Excel, once;t\n")
    documents, reader = read(folder, id_column="nr")
    assert documents == {
        "in/a.csv#007": ("Nö", [((), 'He said "no"\n5')]),
        "in/b.jsonl#1": ("", [((), "A line.")]),
        "in/b.jsonl#3": ("", []),
        "in/b.jsonl#17": ("", [((), "5")]),
        "in/c.parquet#1": ("", [((), "P")]),
        "in/c.parquet#2": ("", []),
        "in/f.jsonl#1": ("", [((), "first")]),
        "in/g.tsv#1": ("t", [((), '"3 long')]),
        "in/h.csv#1": ("t", [((), "from Excel, once")]),
    }
    assert {name: why.partition(":")[0] for name, why in reader.unread.items()} == {
        "in/d.csv": "there is no column text or content or body, only answer, question. Name one "
        'with --text_column, or in pre-training as --corpus "{path',
        "in/e.csv": "in/e.csv has several columns 'text'",
        "in/f.jsonl": "in/f.jsonl",
    }
    assert "'broken' is not JSON" in reader.unread["in/f.jsonl"]


@pytest.mark.parametrize("sep", [",", ";", "|", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_values_of_tables_stay_as_they_are_written(sep, quoting, tmp_path):
    texts = ["007", "NA", "None", "2020-01-01", 'He said "hi", once', "two\nlines", "a\u2028b", "é"]
    table = pd.DataFrame({"query": [f"q{i}" for i in range(len(texts))], "text": texts})
    table = table.assign(**{f"column{i}": texts for i in range(6)})
    table.to_csv(tmp_path / "a.csv", index=False, quoting=quoting, sep=sep)
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    for file in sorted(tmp_path.iterdir()):
        assert list(read_any_rows(file)) == table.to_dict("records")


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('"text\n(de, fr)";id\n"a, b";1\n', [{"text\n(de, fr)": "a, b", "id": "1"}]),
        ("Frage (kurz, lang);text\na;b\n", [{"Frage (kurz, lang)": "a", "text": "b"}]),
        ("text;id\ra, b, c;1\r", [{"text": "a, b, c", "id": "1"}]),
        ("sep=;\ntext;id;n\na, b;1;2\n", [{"text": "a, b", "id": "1", "n": "2"}]),
        ("text\nOne column.\n", [{"text": "One column."}]),
    ],
)
def test_the_separator_of_a_table_is_that_with_which_its_records_agree(content, rows, tmp_path):
    (tmp_path / "a.csv").write_bytes(content.encode())
    assert list(read_any_rows(tmp_path / "a.csv")) == rows


def test_missing_last_fields_do_not_hide_the_separator(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'"text\n(de, fr)";file;id\r\n"a, b";a.txt\r\nc;b.txt;\r\n')
    rows = [{"text\n(de, fr)": "a, b", "file": "a.txt", "id": ""}]
    rows.append({"text\n(de, fr)": "c", "file": "b.txt", "id": ""})
    assert list(read_any_rows(tmp_path / "a.csv", is_padded=True)) == rows


@pytest.mark.parametrize("chunk", [1, 64, 10**6])
def test_an_array_is_read_item_by_item_wherever_its_chunks_end(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(rows_module, "_JSON_CHUNK", chunk)
    values = [{"text": text, "more": {"x": ["{[", text]}} for text in ('aé"\\\n', "]}", "")]
    file = tmp_path / "array.json"
    file.write_text(json.dumps(values, indent=2, ensure_ascii=bool(chunk % 2)), "utf-8")
    assert list(read_rows(file)) == values
    file.write_text('[{"text": 1}, {"text": 2')
    with pytest.raises(ValueError, match=r"array.json:1: .*\"text\": 2.* is not JSON"):
        list(read_rows(file))


@pytest.mark.parametrize("chunk", [1, 64, 10**6])
def test_objects_of_several_lines_are_read_and_a_broken_one_is_named(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(rows_module, "_JSON_CHUNK", chunk)
    file, values = tmp_path / "a.json", [{"text": 'aé"\\\n😀', "x": [1.5, None]}, {"text": "{["}]
    file.write_text("\n\n".join(json.dumps(value, indent=2) for value in values), "utf-8")
    assert list(read_rows(file)) == values
    file.write_text(json.dumps(values[0], indent=2))
    assert list(read_rows(file)) == values[:1]
    file.write_text('{"text": 1}\n\n{"text": 2\n' + '{"text": 3}\n' * 5_000)
    rows = iter(read_rows(file))
    assert next(rows) == {"text": 1}
    with pytest.raises(ValueError, match=r"a.json:3: '{\"text\": 2' is not JSON"):
        next(rows)


@pytest.mark.parametrize("is_array", [True, False])
def test_half_a_character_is_replaced(is_array, tmp_path):
    rows = [{"text": "a 😀"}, {"text": "\ud83d", "more": ["b\ude00 c"]}, {"text": "\\ud83d"}]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(rows) if is_array else "\n".join(map(json.dumps, rows)))
    assert list(read_rows(file)) == [rows[0], {"text": "\ufffd", "more": ["b\ufffd c"]}, rows[2]]


def test_compressed_files_are_read_and_broken_ones_named(tmp_path):
    content = b'{"text": "caf\xc3\xa9"}\n'
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(content))
    (tmp_path / "a.jsonl.zst").write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    for file in tmp_path.iterdir():
        assert list(read_rows(file)) == [{"text": "café"}]
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(ValueError, match=r"cannot be read .* complete compressed file"):
            list(read_rows(file))
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet has several columns 'a'"):
        list(read_rows(tmp_path / "a.parquet"))
