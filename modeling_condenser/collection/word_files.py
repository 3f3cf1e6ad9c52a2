"""Converts Word files to HTML with mammoth, after MarkItDown has written equations as LaTeX."""

import zipfile
from io import BytesIO
from typing import IO, Any

from lxml import etree

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
# Elements that mammoth leaves out -> those that it reads in the same way.
_READ_AS = {
    "fldSimple": "smartTag",
    "bdo": "smartTag",
    "dir": "smartTag",
    "cr": "br",
    "ptab": "tab",
}
_STYLES = """
p[style-name='Title'] => h1.title:fresh
br[type='page'] => br
br[type='column'] => br
"""


def word_to_html(stream: IO[bytes]) -> tuple[str, str]:
    """Return the title among the properties of a file, and its text as HTML."""
    import mammoth
    from markitdown.converter_utils.docx.pre_process import pre_process_docx

    content = BytesIO(stream.read())
    title = ""
    rewritten = BytesIO()
    with zipfile.ZipFile(content) as archive, zipfile.ZipFile(rewritten, "w") as new:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "docProps/core.xml":
                title = etree.fromstring(data).findtext(_TITLE) or ""
            elif name == "word/document.xml":
                data = etree.tostring(_prepare(etree.fromstring(data)))
            new.writestr(name, data)
    html = mammoth.convert_to_html(
        pre_process_docx(rewritten),
        style_map=_STYLES,
        convert_image=mammoth.images.img_element(lambda _: {}),  # else as text, and left out later
    ).value
    return " ".join(title.split()), html


def _prepare(document: Any) -> Any:
    """Put text boxes in the place of their drawings, and rename what mammoth does not read."""
    for drawing in list(document.iter(_ALTERNATIVES, f"{_WORD}drawing")):
        boxes: list[Any] = []
        for alternative in drawing:  # all have the same text
            boxes = boxes or list(alternative.iter(f"{_WORD}txbxContent"))
        for box in boxes:
            drawing.addprevious(box)
        if boxes:
            drawing.getparent().remove(drawing)
    for name, read_as in _READ_AS.items():
        for element in document.iter(f"{_WORD}{name}"):
            element.tag = f"{_WORD}{read_as}"
    return document
