"""Answer queries over HTTP from an index.

    pip install -c constraints.txt -e ".[serve]"
    python examples/serve.py my-index
    curl "localhost:8000/search?query=what+is+anemia&k=3"

`Index.build("my-collection", "hybrid:my-retriever", folder="my-index")` makes the index. The
service has no authentication: put it behind a server that has one.
"""

import sys
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query

from modeling_condenser import Index


def make_app(index: Index) -> FastAPI:
    app = FastAPI(title=f"{len(index):,} passages")

    @app.get("/search")  # FastAPI calls it in one of many threads
    def search(query: str, k: Annotated[int, Query(ge=1, le=100)] = 10) -> list[dict[str, Any]]:
        [found] = index.search([query], k)
        return [passage._asdict() for passage in found]

    return app


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    uvicorn.run(make_app(Index.open(sys.argv[1])), port=8000)
