"""Make the collection `docstrings` of docs/results from installed Python packages.

    python -m benchmarks.make_docstrings OUT

OUT becomes a folder in BEIR's layout. The first paragraph of a docstring is the query, the rest is
the passage. The name of the object is the id and not the title, because it would repeat words of
the query. A hash of the name determines the split, so other package versions do not change it.
"""

import argparse
import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from modeling_condenser.collection.load import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE
from modeling_condenser.files.run_folder import atomic_folder, write_json

STANDARD_LIBRARY = "python"
PACKAGES = tuple(
    "numpy scipy torch transformers pandas sklearn datasets sentence_transformers huggingface_hub "
    "tokenizers accelerate evaluate matplotlib networkx sympy mpmath joblib fsspec pyarrow faiss "
    "bm25s PIL jinja2 requests".split()
)
"""Import names, besides the standard library; those that are not installed are skipped."""

_SKIPPED_FOLDERS = frozenset(
    "test tests testing _testing site-packages dist-packages _vendor vendored extern externals "
    "lib2to3 idlelib turtledemo".split()
)
_QUERY_WORDS = range(3, 65)
_MAX_QUERIES = 1000  # of dev, and of test
_MIN_PASSAGE_WORDS = 15
_BLANK_LINE = re.compile(r"\n\s*\n")
_UNDERLINE = re.compile(r"^\s*([-=~^*#+])\1{2,}\s*$", re.MULTILINE)
_NOT_PROSE = re.compile(
    r"\s"  # indented: belongs to a section above it
    r"|>>>|\.\.\s|```|[-*+]\s|\d+[.)]\s|[:@]\w+|<"  # example, directive, fence, list, field, markup
    r"|[^\n]*\n([-=~^*#+])\1{2,}\s*(\n|$)"  # underlined heading
    r"|[^\n]*\n[ \t]"  # a term and its indented description: a parameter, mostly
    r"|(args|arguments|kwargs|parameters|params|attributes|returns?|yields?|raises|inputs?|outputs?"
    r"|examples?|usage|references?|see also)\s*:",
    re.IGNORECASE,
)


Docstring = tuple[str, str, str, str]
"""Package, qualified name of the object, query, passage."""


def main() -> None:
    """Make the folder and print its name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    print(f"collection: {make_docstrings(parser.parse_args().out)}")


def make_docstrings(out: Path) -> Path:
    """Write the docstrings of packages as a BEIR folder.

    A passage needs a paragraph of prose. Repeated queries and passages are dropped. dev and test
    keep the 1,000 queries with the lowest hashes each; all passages stay in the corpus.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists: name a new folder.")
    roots = find_package_roots()
    sources = tqdm(list(_list_source_files(roots)), "docstrings", unit="file")
    rows = _drop_duplicates(chain.from_iterable(_read_docstrings(*source) for source in sources))
    kept = pd.DataFrame(rows, columns=["package", "name", "query", "passage"])
    with atomic_folder(out) as folder:
        _write_collection(folder, kept)
        pairs, installed = Counter(kept["package"]), importlib.metadata.packages_distributions()
        versions = {n: importlib.metadata.version(installed[n][0]) for n in roots if n in installed}
        versions[STANDARD_LIBRARY] = platform.python_version()
        packages = {n: {"version": versions.get(n), "pairs": pairs[n]} for n in roots}
        write_json(folder / "sources.json", {"packages": packages})
    return out


def find_package_roots() -> dict[str, Path]:
    """Find the standard library and the installed ones of `PACKAGES`, without importing them."""
    roots = {STANDARD_LIBRARY: Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)  # does not run a top-level package
        if spec is not None and spec.submodule_search_locations:
            roots[package] = Path(spec.submodule_search_locations[0])
    return roots


def _list_source_files(roots: Mapping[str, Path]) -> Iterator[tuple[str, str, Path]]:
    """List package, module name and path of source files, without tests and vendored code."""
    for package, root in roots.items():
        prefix = () if package == STANDARD_LIBRARY else (package,)
        for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
            *folders, file = path.relative_to(root).with_suffix("").parts
            if _SKIPPED_FOLDERS.isdisjoint(folders) and not file.startswith(("test_", "conftest")):
                parts = [*prefix, *folders, *([] if file == "__init__" else [file])]
                yield package, ".".join(parts), path


def _read_docstrings(package: str, module: str, path: Path) -> list[Docstring]:
    """Read the usable docstrings of a file; none if this version of Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the packages' strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []
    parts = ((name, split_docstring(text)) for name, text in _find_docstrings(tree, module))
    return [(package, name, *halves) for name, halves in parts if halves]


def _find_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Find the docstrings of modules, classes and functions, also those below `if` and `try`."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and (docstring := ast.get_docstring(node, clean=False)):
        yield name, docstring
    for block in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, block, []):
            is_named = isinstance(child, documented)
            yield from _find_docstrings(child, f"{name}.{child.name}" if is_named else name)


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """Split a docstring into query and passage.

    Returns:
        The first paragraph on one line (3 to 64 words), and the rest (15 words or more, with some
        prose); None if the docstring does not have both.
    """
    text = inspect.cleandoc(docstring).encode("utf-8", "ignore").decode()  # no lone surrogates
    first, *rest = _BLANK_LINE.split(text, maxsplit=1)
    query = " ".join(_UNDERLINE.sub("", first).split())
    passage = rest[0].rstrip() if rest else ""
    if len(query.split()) not in _QUERY_WORDS or len(passage.split()) < _MIN_PASSAGE_WORDS:
        return None
    if all(_NOT_PROSE.match(paragraph) for paragraph in _BLANK_LINE.split(passage)):
        return None
    return query, passage


def _drop_duplicates(docstrings: Iterable[Docstring]) -> list[Docstring]:
    """Keep the first docstring of each name, query and passage, ignoring case and white space."""
    seen: set[tuple[int, str]] = set()
    kept = []
    for docstring in docstrings:
        parts = enumerate(docstring[1:])
        folded = {(place, " ".join(text.casefold().split())) for place, text in parts}
        if seen.isdisjoint(folded):
            kept.append(docstring)
            seen |= folded
    return kept


def _hash_name(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)


def split_of(name: str) -> str:
    """Assign a qualified name to "train" (80 %), "dev" (10 %) or "test" (10 %)."""
    return {0: "test", 1: "dev"}.get(_hash_name(name) % 10, "train")


def _write_collection(folder: Path, docstrings: pd.DataFrame) -> None:
    docstrings = docstrings.assign(_id="q:" + docstrings["name"], title="", score=1)
    splits = dict(list(docstrings.groupby(docstrings["name"].map(split_of))))
    for split in splits.keys() - {"train"}:
        order = splits[split]["name"].map(_hash_name).sort_values().index
        splits[split] = splits[split].loc[order[:_MAX_QUERIES]]
    # BEIR's evaluation drops hits whose passage id equals the query id, so queries get a prefix.
    corpus = docstrings[["name", "title", "passage"]].set_axis(["_id", "title", "text"], axis=1)
    queries = pd.concat(splits.values())[["_id", "query"]].rename(columns={"query": "text"})
    for name, table in {CORPUS_FILE: corpus, QUERIES_FILE: queries}.items():
        table.to_json(folder / name, orient="records", lines=True, force_ascii=False)
    (folder / QRELS_FOLDER).mkdir()
    for split, judged in splits.items():
        file = folder / QRELS_FOLDER / f"{split}.tsv"
        judged[["_id", "name", "score"]].to_csv(file, sep="\t", index=False, header=QRELS_HEADER)


if __name__ == "__main__":
    main()
