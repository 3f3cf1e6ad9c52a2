"""Packages of npm, from a registry on 127.0.0.1."""

import base64
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from modeling_condenser.space.npm_files import NpmPackage, fetch_npm_files

FILES = {"package/dist/a.js": b"a()", "package/LICENSE": b"free", "package/dist/b.js": b"b()"}


def pack() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, content in FILES.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A registry that serves one archive; its `asked` are the paths."""
    archive = pack()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.archive)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.archive = [], archive
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_address[1]}/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def package(archive: bytes) -> NpmPackage:
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    return NpmPackage("@owner/lib", "1.2.3", f"sha512-{digest}", ("dist/a.js", "LICENSE"))


def test_the_wanted_files_are_downloaded_once(registry):
    for _ in range(2):
        found = fetch_npm_files([package(registry.archive)])
        assert {file.name: file.read_bytes() for file in found} == {
            "a.js": b"a()",
            "LICENSE": b"free",
        }
    assert registry.asked == ["/@owner/lib/-/lib-1.2.3.tgz"]
    assert not (found[0].parent / "b.js").exists()


def test_another_content_is_refused_and_not_kept(registry, tmp_path):
    wanted = package(registry.archive)
    registry.archive += b"\0"
    with pytest.raises(OSError, match=r"is not @owner/lib 1.2.3: it has sha512-.*, expected"):
        fetch_npm_files([wanted])
    assert not list(tmp_path.rglob("*.js"))


def test_a_registry_that_cannot_be_reached_is_named(registry, monkeypatch):
    wanted = package(registry.archive)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    with pytest.raises(OSError, match=r"Cannot download @owner/lib 1.2.3 from http://127.0.0.1:9/"):
        fetch_npm_files([wanted])
