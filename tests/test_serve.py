"""examples/serve.py: asked by eight threads."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modeling_condenser import Index

SERVE = Path(__file__).parents[1] / "examples" / "serve.py"
TEXTS = {f"p{i}": f"Passage {i} is about topic{i % 20}, in {i} words." for i in range(60)}


def test_eight_threads_get_the_answers_of_the_index():
    pytest.importorskip("uvicorn")
    testclient = pytest.importorskip("fastapi.testclient")
    index = Index.build(TEXTS)
    client = testclient.TestClient(runpy.run_path(str(SERVE))["make_app"](index))
    queries = [f"what is topic{i}?" for i in range(20)]

    def ask(query, k=3):
        return client.get("/search", params={"query": query, "k": k})

    with ThreadPoolExecutor(8) as threads:
        answers = [answer.json() for answer in threads.map(ask, queries)]
    for query, answer in zip(queries, answers, strict=True):
        [expected] = index.search([query], k=3)
        assert len(answer) == 3 and query[8:-1] in answer[0]["words"]
        assert answer == [{**passage._asdict(), "words": [*passage.words]} for passage in expected]
    assert ask("topic1", k=0).status_code == 422
