"""The built-in collection: docstrings of the Python packages on this machine.

In: the source files of the standard library and of the packages that the project installs, parsed,
never imported. Out: a BEIR folder of real technical English, on every machine, without a download.
The first paragraph of a docstring is the query, the rest is the passage.

- Passages have no title. The natural one, the object's name, mostly repeats the query's words
  (`Interpreter.call_function`: "Execute a ``call_function`` node ..."), so that matching names
  would answer the queries. The name is the passage's id, which no model reads.
- A passage must hold some prose: one paragraph that is not a section (Parameters, Args, ...), a
  list, a directive or an example. That drops boilerplate, most of transformers' above all.
- A query or passage that occurred before (up to case and white space) is dropped.
- The split of a pair depends on the hash of the object's name alone, so that it survives other
  versions of other packages.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import multiprocessing
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

STANDARD_LIBRARY = "python"
PACKAGES = (
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "pandas",
    "sklearn",
    "datasets",
    "sentence_transformers",
    "huggingface_hub",
    "tokenizers",
    "accelerate",
    "evaluate",
    "matplotlib",
    "networkx",
    "sympy",
    "mpmath",
    "joblib",
    "fsspec",
    "pyarrow",
    "faiss",
    "bm25s",
    "PIL",
    "jinja2",
    "requests",
)
"""Import names, besides the standard library; those that are not installed are skipped."""

SOURCES_FILE = "sources.json"
SPLITS = ("train", "dev", "test")
Split = Literal["train", "dev", "test"]

_TEST_FOLDERS = ("test", "tests", "testing", "_testing")
_FOREIGN_FOLDERS = ("site-packages", "dist-packages", "_vendor", "vendored", "extern", "externals")
_SKIPPED_FOLDERS = frozenset(
    {*_TEST_FOLDERS, *_FOREIGN_FOLDERS, "lib2to3", "idlelib", "turtledemo"}
)
_QUERY_WORDS = range(3, 65)
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


class Pair(NamedTuple):
    """A docstring, cut in two."""

    package: str
    name: str
    """Qualified name of the documented object; the passage's id."""
    query: str
    passage: str


class SourceFile(NamedTuple):
    """A file to read docstrings from."""

    package: str
    module: str
    path: Path


def build_builtin_collection(
    out: str | Path,
    *,
    max_queries_per_eval_split: int = 1000,
    roots: Mapping[str, Path] | None = None,
    n_workers: int = 2,
) -> Path:
    """Write the built-in collection as a BEIR folder, atomically.

    `sources.json` records the versions of all packages, since the collection changes with them, and
    a fingerprint of the content. Passages of eval queries beyond the maximum stay in the corpus.

    Args:
        out: the folder to make. If it holds a finished collection, that one is left alone.
        max_queries_per_eval_split: at most so many dev and so many test queries, those of the
            lowest hashes. There is no limit for train.
        roots: package -> folder of its source; by default `find_package_roots()`.
        n_workers: processes that parse.

    Returns:
        The folder.

    Raises:
        FileExistsError: `out` holds something else.
        ValueError: the packages hold no usable docstring.
    """
    out = Path(out)
    if (out / SOURCES_FILE).is_file():
        return out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"{out} exists and has no {SOURCES_FILE}, expected a new or empty folder: name another"
        )
    roots = find_package_roots() if roots is None else roots
    pairs = drop_duplicates(_parse_files(list_source_files(roots), n_workers=n_workers))
    if not pairs:
        raise ValueError(
            f"no usable docstring in {', '.join(map(str, roots.values()))}: expected Python source"
            " with docstrings of two paragraphs or more; install packages with their source"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write_collection(partial, pairs, roots=roots, max_queries=max_queries_per_eval_split)
        partial.chmod(0o755)  # mkdtemp makes it private
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def find_package_roots() -> dict[str, Path]:
    """Locate the standard library and the installed ones of `PACKAGES`, without importing them."""
    roots = {STANDARD_LIBRARY: Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)  # a top-level name: finds, does not run it
        if spec is not None and spec.submodule_search_locations:
            roots[package] = Path(spec.submodule_search_locations[0])
    return roots


def list_source_files(roots: Mapping[str, Path]) -> list[SourceFile]:
    """List the `.py` files below the roots, but for tests and vendored code, in a fixed order."""
    files = []
    for package, root in roots.items():
        prefix = () if package == STANDARD_LIBRARY else (package,)
        for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
            *folders, file = path.relative_to(root).with_suffix("").parts
            if _SKIPPED_FOLDERS.isdisjoint(folders) and not file.startswith(("test_", "conftest")):
                parts = [*prefix, *folders, *([] if file == "__init__" else [file])]
                files.append(SourceFile(package, ".".join(parts), path))
    return files


def _parse_files(files: Sequence[SourceFile], *, n_workers: int) -> Iterator[Pair]:
    # A forked worker needs no imports; a spawned one would load this package, and torch, anew.
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    with ProcessPoolExecutor(n_workers, mp_context=context) as pool:
        parsed = pool.map(extract_pairs, files, chunksize=32)
        for pairs in tqdm(parsed, total=len(files), desc="docstrings", unit="file"):
            yield from pairs


def extract_pairs(file: SourceFile) -> list[Pair]:
    """Read the usable docstrings of one file: of the module, its classes and functions.

    A file that this Python can't parse gives none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(file.path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        logger.debug("skipped %s: %s", file.path, error)
        return []
    pairs = []
    for name, docstring in _find_docstrings(tree, file.module):
        halves = split_docstring(docstring)
        if halves is not None:
            pairs.append(Pair(file.package, name, *halves))
    return pairs


def _find_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Walk statements, not expressions; definitions below `if` and `try` count as well."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield name, docstring
    for block in ("body", "orelse", "handlers", "finalbody"):
        children = getattr(node, block, [])
        for child in children if isinstance(children, list) else []:
            is_named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _find_docstrings(child, f"{name}.{child.name}" if is_named else name)


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """Cut a docstring into query and passage.

    Returns:
        The first paragraph on one line (3 to 64 words), and the rest (15 words or more, some of it
        prose); None if the docstring has no such two.
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


def drop_duplicates(pairs: Iterable[Pair]) -> list[Pair]:
    """Keep the first pair of each name, query and passage, up to case and white space."""
    seen: dict[str, set[str]] = {"name": set(), "query": set(), "passage": set()}
    kept = []
    for pair in pairs:
        folded = {field: " ".join(getattr(pair, field).casefold().split()) for field in seen}
        if all(folded[field] not in seen[field] for field in seen):
            kept.append(pair)
            for field, text in folded.items():
                seen[field].add(text)
    return kept


def hash_name(name: str) -> int:
    """Hash a qualified name to 64 bits: the start of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def split_of(name: str) -> Split:
    """Assign a qualified name to train (80 %), dev (10 %) or test (10 %)."""
    match hash_name(name) % 10:
        case 0:
            return "test"
        case 1:
            return "dev"
        case _:
            return "train"


def _write_collection(
    folder: Path, pairs: Sequence[Pair], *, roots: Mapping[str, Path], max_queries: int
) -> None:
    judged: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for pair in pairs:
        judged[split_of(pair.name)].append(pair)
    for split in ("dev", "test"):
        judged[split] = sorted(judged[split], key=lambda pair: hash_name(pair.name))[:max_queries]
    queries = [pair for split in SPLITS for pair in judged[split]]
    (folder / "qrels").mkdir()
    _write_jsonl(
        folder / "corpus.jsonl",
        ({"_id": pair.name, "title": "", "text": pair.passage} for pair in pairs),
    )
    _write_jsonl(
        folder / "queries.jsonl", ({"_id": _query_id(p), "text": p.query} for p in queries)
    )
    for split, members in judged.items():
        lines = [f"{_query_id(pair)}\t{pair.name}\t1\n" for pair in members]
        text = "query-id\tcorpus-id\tscore\n" + "".join(lines)
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    sources = _describe_sources(folder, pairs, roots=roots)
    sources["queries"] = {split: len(members) for split, members in judged.items()}
    (folder / SOURCES_FILE).write_text(json.dumps(sources, indent=2) + "\n", encoding="utf-8")


def _query_id(pair: Pair) -> str:
    # BEIR's own evaluation drops hits whose passage id equals the query id, so the two must differ.
    return f"q:{pair.name}"


def _write_jsonl(path: Path, records: Iterable[Mapping[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _describe_sources(
    folder: Path, pairs: Sequence[Pair], *, roots: Mapping[str, Path]
) -> dict[str, object]:
    counts = Counter(pair.package for pair in pairs)
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    distributions = importlib.metadata.packages_distributions()
    return {
        "python": platform.python_version(),
        "fingerprint": content.hexdigest(),
        "pairs": len(pairs),
        "packages": {
            package: {"version": _version(package, distributions), "pairs": counts[package]}
            for package in roots
        },
    }


def _version(package: str, distributions: Mapping[str, Sequence[str]]) -> str | None:
    if package == STANDARD_LIBRARY:
        return platform.python_version()
    names = distributions.get(package)
    return importlib.metadata.version(names[0]) if names else None
