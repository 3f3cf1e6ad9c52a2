"""Turn a report into one web page, which needs no other file and requests nothing."""

import base64
from itertools import chain
from pathlib import Path

from jinja2 import Template
from markdown_it import MarkdownIt  # transformers needs typer, which needs rich, which needs this

_TEMPLATE = Path(__file__).with_name("web_page.html.jinja")


def as_web_page(title: str, text: str, folder: Path) -> str:
    """Render Markdown as HTML for small and large screens, in light and dark colours.

    Args:
        title: plain text.
        text: Markdown; HTML in it is shown as text.
        folder: of the PNG files that the text shows, which are embedded.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    for token in chain.from_iterable(block.children or () for block in tokens):
        if token.type == "image":
            content = base64.b64encode((folder / str(token.attrs["src"])).read_bytes()).decode()
            token.attrSet("src", f"data:image/png;base64,{content}")
    body = reader.renderer.render(tokens, reader.options, {})
    template = Template(_TEMPLATE.read_text(encoding="utf-8"), autoescape=True)
    return template.render(title=title, body=body)
