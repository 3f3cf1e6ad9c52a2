"""The package as ARCHITECTURE.md describes it: folders and one-way imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modeling_condenser"
# Each room may import from those before it.
ROOMS = (
    "files publishing collection encoding retrieval evaluation training pretraining finetuning "
    "analysis adaptation"
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
    standard = "collections contextlib copy dataclasses difflib inspect json operator pathlib"
    allowed = {*standard.split(), "typing", "torch", "transformers"}
    travelling = {"configuration_condenser", "encoder_files", "encoder_parts", "lm_head", "losses"}
    travelling.add("modeling_condenser")
    own = {f"modeling_condenser.{name}" for name in travelling}
    own.add("modeling_condenser.warm_start")  # of `from_encoder`, which needs the package
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


def test_the_declared_dependencies_are_those_that_are_imported():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "hub_scripts").rglob("*.py")]
    imported = {module.split(".")[0] for file in files for module in imported_modules(file)}
    theirs = imported - sys.stdlib_module_names - {"modeling_condenser", "hub_scripts"}
    projects = packages_distributions()
    found = {projects.get(name, [name])[0].lower().replace("_", "-") for name in theirs}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, optional = (
        {re.split("[>=<[]", line)[0] for line in lines}
        for lines in (project["dependencies"], chain(*project["optional-dependencies"].values()))
    )
    assert needed <= found
    assert found - needed <= optional and "torch" in needed


def statements_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from statements_outside_functions(child)


def test_modules_that_windows_lacks_are_imported_only_where_they_are_used():
    for file in PACKAGE.rglob("*.py"):
        names = set()
        for node in statements_outside_functions(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        assert not names & {"fcntl", "grp", "pwd", "resource", "termios"}, file
