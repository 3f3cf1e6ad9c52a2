"""Packages of npm, from a registry on 127.0.0.1."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from modeling_condenser.space.npm_files import NpmPackage, fetch_npm_files

from .conftest import serve

FILES = {"package/dist/a.js": b"a()", "package/LICENSE": b"free", "package/dist/b.js": b"b()"}


@pytest.fixture
def archive(monkeypatch, tmp_path):
    """The archive of a package in a registry; the cache is empty."""
    file = tmp_path / "registry" / "@owner" / "lib" / "-" / "lib-1.2.3.tgz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, mode="w:gz") as tar:
        for path, content in FILES.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serve(tmp_path / "registry") as url:
        monkeypatch.setenv("npm_config_registry", url)
        yield file


def package(archive: Path) -> NpmPackage:
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return NpmPackage("@owner/lib", "1.2.3", f"sha512-{digest}", ("dist/a.js", "LICENSE"))


def test_the_wanted_files_are_downloaded_once(archive):
    wanted = package(archive)
    for _ in range(2):
        found = fetch_npm_files([wanted])
        assert {file.name: file.read_bytes() for file in found} == {
            "a.js": b"a()",
            "LICENSE": b"free",
        }
        archive.unlink(missing_ok=True)
    assert not (found[0].parent / "b.js").exists()


def test_another_content_is_refused_and_not_kept(archive, tmp_path):
    wanted = package(archive)
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(OSError, match=r"is not @owner/lib 1.2.3: it has sha512-.*, expected"):
        fetch_npm_files([wanted])
    assert not list(tmp_path.rglob("*.js"))


def test_a_registry_that_cannot_be_reached_is_named(archive, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    with pytest.raises(OSError, match=r"Cannot download @owner/lib 1.2.3 from http://127.0.0.1:9/"):
        fetch_npm_files([package(archive)])
