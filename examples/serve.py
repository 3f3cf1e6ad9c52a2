"""Serve an index over HTTP: a search page at /, and JSON at /search.

    pip install -c constraints.txt -e ".[serve]"
    python examples/serve.py my-index --port 8000
    curl "localhost:8000/search?query=what+is+anemia&k=3"

`Index.build("my-collection", "hybrid:my-retriever", folder="my-index")` makes the index. The
service has no authentication: put it behind a server that has one.
"""

import argparse
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from modeling_condenser import Index, Passage

TEMPLATE = Path(__file__).with_name("serve.html.jinja")
N_RESULTS = 10  # on the page
BEFORE, AFTER = 200, 500  # characters shown around the best sentence
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def make_app(index: Index) -> FastAPI:
    app = FastAPI(title=f"{len(index):,} passages")
    page = Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))

    @app.get("/search")  # FastAPI calls it in one of many threads
    def search(query: str, k: Annotated[int, Query(ge=1, le=100)] = 10) -> list[dict[str, Any]]:
        [passages] = index.search([query], k)
        return [passage._asdict() for passage in passages]

    @app.get("/", response_class=HTMLResponse)
    def show(query: Annotated[str, Query(max_length=1000)] = "") -> HTMLResponse:
        [passages] = index.search([query], N_RESULTS) if query.strip() else [[]]
        results = [describe(passage) for passage in passages]
        html = page.render(query=query, results=results, size=f"{len(index):,}")
        return HTMLResponse(html, headers=HEADERS)

    return app


def describe(passage: Passage) -> dict[str, str]:
    """What the page shows of a passage; marked is its best sentence, if it has a query's word."""
    sentence = passage.sentence if passage.words else ""
    place = passage.text.find(sentence)
    before, after = passage.text[:place], passage.text[place + len(sentence) :]
    if len(before) > BEFORE:
        near = before[-BEFORE:]
        before = f"… {near.partition(' ')[2] or near}"
    if len(after) > AFTER:  # some scripts have no blanks
        near = after[:AFTER]
        after = f"{near.rpartition(' ')[0] or near} …"
    source = [passage.file, passage.headings, passage.id]
    return {
        "title": passage.title or passage.id,
        "source": " · ".join(part for part in source if part),
        "before": before,
        "sentence": sentence,
        "after": after,
        "whole": passage.text if before + sentence + after != passage.text else "",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("index", help="the folder of an index")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(make_app(Index.open(options.index)), host=options.host, port=options.port)
