"""The page in headless Chromium: its rankings are Python's, and it asks for nothing outside.

It needs playwright (the driver alone, from PyPI), a chromium or Chrome (on the path, or named in
CHROMIUM), and the npm registry, unless its packages are in the cache.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_passages
from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.searchers import open_searcher
from modeling_condenser.retrieval.systems import parse_system
from modeling_condenser.space.npm_files import fetch_npm_files
from modeling_condenser.space.space import write_space

from .conftest import serve

pytestmark = pytest.mark.slow
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUERIES = (
    "glacier glacier of Łódź",
    "The OLD naïveté near São-Paulo (e.g. 東京)!",
    "who describes the theorem of the poet in the library of the harbour, and why does it visit",
    "of the",  # stopwords only
    "Why?",
)
COLUMNS = ("lexical", "dense", "hybrid")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium: name one in CHROMIUM")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


def write_page(retriever: Path, collection: Path, out: Path) -> Path:
    """A page with the encoder's own weights."""
    pytest.importorskip("onnxscript")
    try:
        fetch_npm_files()
    except OSError as error:
        pytest.skip(str(error))
    return write_space(str(retriever), str(collection), out, weights="float32").folder


@pytest.fixture(scope="module")
def served(retriever, shuffled, tmp_path_factory):
    """The address of a page."""
    folder = write_page(retriever, shuffled, tmp_path_factory.mktemp("page") / "page")
    with serve(folder) as url:
        yield url


@pytest.fixture
def visit(browser):
    """Opens an address in a new window; all that it asks for must come from there."""
    contexts = []

    def open_page(url, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.asked, page.errors = [], []
        page.on("response", lambda answer: page.asked.append((answer.status, answer.url)))
        page.on("requestfailed", lambda request: page.errors.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(url)
        wait_for(page, "Ready|only lexical")
        return page

    yield open_page
    for context in contexts:
        context.close()


def wait_for(page, status: str) -> None:
    page.locator("#status").filter(has_text=re.compile(status)).wait_for(timeout=60_000)


def search(page, query: str) -> dict[str, list[str]]:
    """Type a query; the ids of the results of each column."""
    page.get_by_label("Query", exact=True).fill(query)
    page.keyboard.press("Enter")
    wait_for(page, f"Results for “{re.escape(query)}”")
    return {name: page.locator(f"#{name} li").evaluate_all(IDS) for name in COLUMNS}


IDS = "items => items.map(item => item.dataset.id)"


def python_search(retriever: Path, collection: Path, folder: Path, query: str):
    """The ten best passages of each kind of search, in Python."""
    passages, found = load_passages(collection), {}
    for name, system in zip(COLUMNS, ("bm25", "{}", "hybrid:{},fusion=rrf"), strict=True):
        precision = ",precision=int8" if name != "lexical" else ""
        parsed = parse_system(system.format(retriever) + precision)
        searcher = open_searcher(parsed, passages, folder)
        found[name] = list(searcher.search({"q": query}, depth=10)["q"])
    return found


def test_typed_queries_have_the_rankings_of_python(served, visit, retriever, shuffled, tmp_path):
    page = visit(served)
    for query in QUERIES:
        found = search(page, query)
        assert found == python_search(retriever, shuffled, tmp_path / "ours", query), query
    assert search(page, QUERIES[0])["lexical"][0] == "p82"  # the only one with Łódź and glacier
    assert page.errors == []
    assert {status for status, _ in page.asked} == {200}
    assert all(url.startswith(served) for _, url in page.asked)
    assert {url.rpartition("/")[2] for _, url in page.asked} >= {"model.onnx", "search.js"}


def test_another_tokenizer_and_pooling_give_the_rankings_of_python(
    roberta_run, shuffled, visit, tmp_path
):
    contract = EncodingContract(20, 64, pooling="mean", similarity="dot")
    retriever = export_encoder(roberta_run, tmp_path / "roberta", contract=contract)
    with serve(write_page(retriever, shuffled, tmp_path / "page")) as url:
        page = visit(url)
        for query in QUERIES:
            found = search(page, query)
            assert found == python_search(retriever, shuffled, tmp_path / "ours", query), query


def test_words_are_marked_and_texts_are_no_html(served, visit):
    page = visit(served)
    search(page, "the GLACIER of łódź")
    first = page.locator("#lexical li").first
    assert first.locator("mark").all_text_contents() == ["glacier", "Łódź"]
    assert '<img src="/stolen" onerror="document.title=1"> <script>' in first.inner_text()
    assert page.locator("ol img, ol script").count() == 0
    assert page.title() == "Search in shuffled"


def test_an_example_is_one_click_away_and_its_judged_passage_is_named(served, visit):
    page = visit(served)
    example = page.get_by_role("group", name="Example queries").get_by_role("button").first
    query = example.inner_text()
    example.click()
    wait_for(page, f"Results for “{re.escape(query)}”")
    judged = page.locator("#lexical li", has_text="judged relevant")
    assert judged.evaluate_all(IDS) == ["P0"]  # of the first query; P75 has the same text


def test_a_phone_shows_one_column_without_overflow(served, visit):
    page = visit(served, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    search(page, QUERIES[1])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for chosen in ("Dense", "Lexical"):
        page.get_by_role("radio", name=chosen).check()
        is_shown = [page.locator(f"#{name}").is_visible() for name in COLUMNS]
        assert is_shown == [name == chosen.lower() for name in COLUMNS]


def test_without_webassembly_lexical_search_works_and_the_page_says_so(served, visit):
    for name in ("wasm", "onnx"):
        served_page = visit(served)
        served_page.context.route(f"**/*.{name}", lambda route: route.abort())
        served_page.reload()
        wait_for(served_page, "only lexical search works")
        served_page.get_by_label("Query", exact=True).fill("glacier")
        served_page.get_by_role("button", name="Search", exact=True).click()
        served_page.locator("#lexical li").first.wait_for()
        wait_for(served_page, "only lexical search works")
        assert served_page.locator("#dense li, #hybrid li").count() == 0
