"""examples/serve.py: a real server, asked by eight threads."""

import json
import runpy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from modeling_condenser import Index

TEXTS = {f"p{i}": f"Passage {i} is about topic{i % 20}, in {i} words." for i in range(60)}


@pytest.fixture
def serve():
    """Start the service for an index; the function returns its answer to a query."""
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    names = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "serve.py"))
    servers = []

    def start(index):
        config = uvicorn.Config(names["make_app"](index), port=0, log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]

        def ask(**fields):
            with urlopen(f"http://127.0.0.1:{port}/search?{urlencode(fields)}") as answer:
                return json.load(answer)

        return ask

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join()


def test_eight_threads_get_the_answers_of_the_index(serve):
    index = Index.build(TEXTS)
    ask, queries = serve(index), [f"what is topic{i}?" for i in range(20)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda query: ask(query=query, k=3), queries))
    for query, answer in zip(queries, answers, strict=True):
        [expected] = index.search([query], k=3)
        assert len(answer) == 3 and query[8:-1] in answer[0]["words"]
        assert answer == [{**passage._asdict(), "words": [*passage.words]} for passage in expected]
    with pytest.raises(HTTPError, match="422"):
        ask(query="topic1", k=0)
