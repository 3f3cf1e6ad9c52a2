"""The package as ARCHITECTURE.md describes it: folders, one-way imports, short files."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modeling_condenser"
# Each room may import from those before it.
ROOMS = (
    "runs hub collection pretraining encoding retrieval space mining finetuning evaluation "
    "analysis study"
).split()


def imported_modules(file: Path) -> set[str]:
    """Absolute names of all modules that a file imports, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module or "")
        elif isinstance(node, ast.ImportFrom):
            parts = file.relative_to(ROOT).with_suffix("").parts[: -node.level]
            modules.add(".".join([*parts, node.module or ""]).strip("."))
    return modules


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_before_it(room):
    later = {f"modeling_condenser.{name}" for name in ROOMS[ROOMS.index(room) + 1 :]}
    for file in (PACKAGE / room).glob("*.py"):
        imported = {".".join(module.split(".")[:2]) for module in imported_modules(file)}
        assert not {name for name in imported if name in later or "hub_scripts" in name}, file


def test_the_files_that_travel_import_only_torch_transformers_and_each_other():
    standard = (
        "collections contextlib copy dataclasses difflib importlib inspect json operator pathlib"
    )
    allowed = {*standard.split(), "tempfile", "typing", "torch", "transformers"}
    travelling = {"configuration_condenser", "encoder_parts", "losses", "modeling_condenser"}
    own = {f"modeling_condenser.{name}" for name in travelling}
    for name in travelling:
        modules = imported_modules(PACKAGE / f"{name}.py")
        assert {module.split(".")[0] for module in modules - own} <= allowed


def test_architecture_md_names_every_folder_and_every_folder_is_installed():
    document = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    assert packages == set(ROOMS)
    assert [room for room in ROOMS if f"{room}/`" not in document] == []
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    others = {"modeling_condenser", "condenser_commands", "modeling_condenser.recipes"}
    assert set(listed) == others | {f"modeling_condenser.{room}" for room in ROOMS}


def test_files_are_short():
    for folder in (PACKAGE, ROOT / "hub_scripts", ROOT / "benchmarks"):
        for file in folder.rglob("*.py"):
            assert len(file.read_text().splitlines()) <= 500, file
