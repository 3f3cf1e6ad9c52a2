"""The built-in collection: the docstrings of Python packages on this machine, without a download.

The sources of the standard library and of the installed packages are parsed, never imported. The
first paragraph of a docstring is the query, the rest is the passage.

- Passages have no title. The name of the object would repeat the words of the query, so that
  matching names would answer it. The name is the passage's id, which no model reads.
- A passage must have a paragraph of prose: not a section (Parameters, Args, ...), a list, a
  directive or an example. This removes boilerplate.
- A query or passage that occurred before (up to case and white space) is dropped.
- The split of a pair depends only on a hash of the object's name, so that it stays the same with
  other versions of the packages.
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
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from tqdm.auto import tqdm

from modeling_condenser.runs.run_folder import whole_folder

logger = logging.getLogger(__name__)

STANDARD_LIBRARY = "python"
PACKAGES = tuple(
    "numpy scipy torch transformers pandas sklearn datasets sentence_transformers huggingface_hub "
    "tokenizers accelerate evaluate matplotlib networkx sympy mpmath joblib fsspec pyarrow faiss "
    "bm25s PIL jinja2 requests".split()
)
"""Import names, besides the standard library; those that are not installed are skipped."""

SOURCES_FILE = "sources.json"
Split = Literal["train", "dev", "test"]

_SKIPPED_FOLDERS = frozenset(
    "test tests testing _testing site-packages dist-packages _vendor vendored extern externals "
    "lib2to3 idlelib turtledemo".split()
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
    """A docstring split in two; `name` is the qualified name of the object."""

    package: str
    name: str
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

    `sources.json` records the versions of all packages, which the collection depends on, and a
    fingerprint of the content.

    Args:
        out: the folder to write; a finished collection there is left unchanged.
        max_queries_per_eval_split: limits the dev and the test queries, each to those of the lowest
            hashes; their passages stay in the corpus.
        roots: package -> folder of its source; by default `find_package_roots()`.
        n_workers: processes that parse.

    Returns:
        The folder.

    Raises:
        FileExistsError: `out` holds something else.
        ValueError: the packages have no usable docstring.
    """
    out = Path(out)
    if (out / SOURCES_FILE).is_file():
        return out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and has no {SOURCES_FILE}. Choose an empty folder.")
    roots = find_package_roots() if roots is None else roots
    pairs = drop_duplicates(_parse_files(list_source_files(roots), n_workers=n_workers))
    if not pairs:
        raise ValueError(
            f"no usable docstring in {', '.join(map(str, roots.values()))}: expected Python source"
            " with docstrings of two or more paragraphs."
        )
    with whole_folder(out) as folder:
        _write_collection(folder, pairs, roots=roots, max_queries=max_queries_per_eval_split)
    return out


def find_package_roots() -> dict[str, Path]:
    """Find the standard library and the installed ones of `PACKAGES`, without importing them."""
    roots = {STANDARD_LIBRARY: Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)  # does not run a top-level package
        if spec is not None and spec.submodule_search_locations:
            roots[package] = Path(spec.submodule_search_locations[0])
    return roots


def list_source_files(roots: Mapping[str, Path]) -> list[SourceFile]:
    """List the `.py` files of packages, without tests and vendored code, in a fixed order."""
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
    # A forked worker starts at once; a spawned one would import this package, and torch, again.
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    with ProcessPoolExecutor(n_workers, mp_context=context) as pool:
        parsed = pool.map(extract_pairs, files, chunksize=32)
        for pairs in tqdm(parsed, total=len(files), desc="docstrings", unit="file"):
            yield from pairs


def extract_pairs(file: SourceFile) -> list[Pair]:
    """Read the usable docstrings of a file; none if this version of Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the packages' strings
            tree = ast.parse(file.path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        logger.debug("skipped %s: %s", file.path, error)
        return []
    parts = ((name, split_docstring(text)) for name, text in _find_docstrings(tree, file.module))
    return [Pair(file.package, name, *halves) for name, halves in parts if halves]


def _find_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Visit modules, classes and functions, also those defined below `if` and `try`."""
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
    splits: dict[int, Split] = {0: "test", 1: "dev"}
    return splits.get(hash_name(name) % 10, "train")


def _write_collection(
    folder: Path, pairs: Sequence[Pair], *, roots: Mapping[str, Path], max_queries: int
) -> None:
    judged: dict[Split, list[Pair]] = {"train": [], "dev": [], "test": []}
    for pair in pairs:
        judged[split_of(pair.name)].append(pair)
    for split in ("dev", "test"):
        judged[split] = sorted(judged[split], key=lambda pair: hash_name(pair.name))[:max_queries]
    passages = [{"_id": pair.name, "title": "", "text": pair.passage} for pair in pairs]
    _write_lines(folder / "corpus.jsonl", map(_to_json, passages))
    queries = [
        {"_id": _query_id(pair), "text": pair.query} for part in judged.values() for pair in part
    ]
    _write_lines(folder / "queries.jsonl", map(_to_json, queries))
    (folder / "qrels").mkdir()
    for split, part in judged.items():
        lines = [f"{_query_id(pair)}\t{pair.name}\t1" for pair in part]
        _write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *lines])
    sources = _describe_sources(folder, pairs, roots=roots)
    sources["queries"] = {split: len(part) for split, part in judged.items()}
    _write_lines(folder / SOURCES_FILE, [json.dumps(sources, indent=2)])


def _query_id(pair: Pair) -> str:
    # BEIR's own evaluation drops hits whose passage id equals the query id, so the two must differ.
    return f"q:{pair.name}"


def _to_json(record: Mapping[str, str]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _describe_sources(
    folder: Path, pairs: Sequence[Pair], *, roots: Mapping[str, Path]
) -> dict[str, object]:
    counts = Counter(pair.package for pair in pairs)
    content = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
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
