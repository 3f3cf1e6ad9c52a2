"""examples/serve.py: asked by eight threads, and its page."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from modeling_condenser import Index

SERVE = Path(__file__).parents[1] / "examples" / "serve.py"
TEXTS = {f"p{i}": f"Passage {i} is about topic{i % 20}, in {i} words." for i in range(60)}


def make_client(index):
    pytest.importorskip("uvicorn")
    testclient = pytest.importorskip("fastapi.testclient")
    return testclient.TestClient(runpy.run_path(str(SERVE))["make_app"](index))


def test_eight_threads_get_the_answers_of_the_index():
    index = Index.build(TEXTS)
    client = make_client(index)
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


def test_the_page_marks_the_best_sentence_and_escapes_all_text():
    text = "Sea & land. A <b>spring</b> in May. End."
    client = make_client(Index.build({"<i>p</i>": text, "other": "Nothing about it."}))
    page = client.get("/", params={"query": '"><script>spring</script>'})
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    marked = "Sea &amp; land. <mark>A &lt;b&gt;spring&lt;/b&gt; in May.</mark> End."
    assert marked in page.text and "&lt;i&gt;p&lt;/i&gt;" in page.text
    assert "<script" not in page.text and "<b>" not in page.text and "<i>" not in page.text
    assert "No passage was found." in client.get("/", params={"query": "winter"}).text
    empty = client.get("/").text
    assert "Search 2 passages" in empty and "<li>" not in empty


def test_the_page_shows_where_a_passage_is_from_and_cuts_a_long_one():
    pytest.importorskip("uvicorn")
    text = f"{'Before. ' * 99}The spring. {'After. ' * 99}"
    fields = {"id": "p", "title": "T", "text": text, "words": ("spring",)}
    passage = SimpleNamespace(**fields, sentence="The spring.", file="a.md", headings="A > B")
    describe = runpy.run_path(str(SERVE))["describe"]
    shown = describe(passage)
    assert (shown["source"], shown["whole"]) == ("a.md · A > B · p", text)
    assert shown["before"] == f"… {'Before. ' * 24}" and shown["after"] == f"{' After.' * 71} …"
    passage.text, passage.sentence = f"{'春天。' * 200}山。{'春天。' * 200}", "山。"  # no blanks
    shown = describe(passage)
    assert shown["before"].endswith("春天。") and shown["after"].startswith("春天。")
