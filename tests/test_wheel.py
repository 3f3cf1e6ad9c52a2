"""What an installed wheel holds, and that it works without the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("modeling_condenser", "hub_scripts", "configuration")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def run(*words: object, cwd: Path, path: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(path)} if path else {}
    process = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_an_installed_wheel_works_and_has_no_generic_names(tmp_path):
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / "source" / name)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / "source")
    pip = ("-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index", "--quiet")
    build = ("wheel", "--no-build-isolation", "--wheel-dir", "wheels", "./source")
    run(*pip, *build, *offline, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob("condenser-*.whl")
    site = tmp_path / "site"
    run(*pip, "install", "--target", site, wheel, *offline, cwd=tmp_path)
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"bin", "modeling_condenser", "condenser_commands"}

    printed = run(site / "bin" / "condenser", "--help", cwd=tmp_path, path=site)
    assert printed.startswith("usage: condenser VERB [RECIPE.yaml] [WORD ...] [--field value ...]")
    code = (
        "import modeling_condenser\nfrom modeling_condenser.files.settings import find_recipe\n"
        "from modeling_condenser import CondenserForPreTraining\n"
        "print(modeling_condenser.__file__)\nprint(find_recipe('pretrain/own-text'))"
    )
    package, recipe = map(Path, run("-c", code, cwd=tmp_path, path=site).splitlines())
    assert package == site / "modeling_condenser" / "__init__.py"
    assert recipe.is_relative_to(site)
    shipped = (ROOT / "configuration" / "pretrain" / "own-text.yaml").read_text()
    assert recipe.read_text() == shipped
    rooms = ROOT / "modeling_condenser"
    data = (*rooms.rglob("*.jinja"), *(rooms / "publishing" / "retrieval_measures").iterdir())
    for file in (rooms / "starter" / "model.safetensors", *data):
        assert (site / file.relative_to(ROOT)).is_file()
