"""A retriever, a collection and a server that tests of this folder share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from modeling_condenser.model_files.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from tests.publishing.making import write_collection

UNSAFE = '<img src="/stolen" onerror="document.title=1"> <script>document.title=2</script>'


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine: its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="session")
def retriever(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny retriever with a prompt, which cuts queries to 12 tokens."""
    contract = EncodingContract(12, 64, similarity="cosine", query_prompt="the museum ")
    return export_encoder(bert_run, tmp_path_factory.mktemp("space") / "small", contract=contract)


@pytest.fixture(scope="session")
def shuffled(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection whose ids are not in the order of the file; two passages have the same text, one
    has HTML and a path of a machine, which a page may show."""
    own = [*texts[:80], texts[0], f"{UNSAFE} The glacier of Łódź in /home/me/maps."]
    ids = [f"{'Pp'[i % 2]}{7 * i % 97}" for i in range(len(own))]
    passages = [
        {"_id": name, "title": f"Title {i}" if i % 3 == 0 else "", "text": text}
        for i, (name, text) in enumerate(zip(ids, own, strict=True))
    ]
    queries = [{"_id": f"q{i}", "text": " ".join(own[i].split()[:5])} for i in range(20)]
    judged = [(f"q{i}", ids[i], 1) for i in range(20)]
    return write_collection(
        tmp_path_factory.mktemp("collections") / "shuffled", passages, queries, test=judged
    )
