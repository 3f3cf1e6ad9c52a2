"""Turns labels (questions with the passages that answer them) into queries and judgements."""

import hashlib
import json
import logging
import re
import unicodedata
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import product
from pathlib import Path

import regex

from .collection import plain_text
from .conversion import TABLE_ENDINGS, cell_text, read_any_rows
from .load import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE
from .rows import plain_ending, read_json

logger = logging.getLogger(__name__)

_COLUMNS = ("question", "passage", "file", "id")
_SPLITS = ("train", "dev", "test")
_EXAMPLES = 5  # of labels that are left out, for each reason
_FEW_DOCUMENTS = 20  # fewer leave a split empty too often
_MARKS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")

Label = Mapping[str, str]
"""The cells of a row, by our names of the columns."""

Names = Mapping[str, set[frozenset[str]]]
"""Name -> the passages of each document that has the name."""

WrittenDocument = tuple[str, Sequence[str]]
"""The name of a document, and the ids of its passages."""


def read_labels(file: str, columns: Mapping[str, str], encoding: str | None = None) -> list[Label]:
    """Read a table of labels; `columns` are our names -> the file's names.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing.
    """
    if not Path(file).is_file():
        raise FileNotFoundError(f"There is no file {file}.")
    rows = list(read_any_rows(Path(file), encoding, is_padded=True))  # Excel leaves out empty ends
    if not rows:
        raise ValueError(f"{file} has no rows.")
    in_file = set[str]().union(*rows)
    names = {name: columns.get(name, name) for name in _COLUMNS}
    known = {name for name, column in names.items() if column in in_file}
    if "question" not in known or len(known) == 1 or not columns.keys() <= known:
        unknown = sorted(set(columns.values()) - in_file)
        absent = f", and there is no {unknown[0]!r}" if unknown else ""
        raise ValueError(
            f"{file} has the columns {', '.join(sorted(in_file)) or '(none)'}: expected question, "
            'and passage, file or id. Name yours with --label_columns "{question: ..., '
            f'passage: ...}}"{absent}.'
        )
    return [{name: cell_text(row.get(column)) for name, column in names.items()} for row in rows]


def write_labels(
    folder: Path,
    labels: Iterable[Label],
    documents: Sequence[WrittenDocument],
    left_out: Counter[str],
    sources: Sequence[str] = (),
) -> dict[str, int]:
    """Write the queries and judgements of labels into the folder of a collection.

    Args:
        folder: has the corpus.
        labels: see `read_labels`.
        documents: all that have passages.
        left_out: why a label is left out -> how many; is added to.
        sources: folders and files of the documents, as labels may name them.

    Returns:
        Split -> number of queries; empty if no label has a passage, and then nothing is written.
    """
    of_documents = [frozenset(passages) for _, passages in documents]
    finder = _QuoteFinder(folder / CORPUS_FILE, documents, of_documents)
    names = _index_names(documents, of_documents, sources)
    judged: dict[str, tuple[str, set[str]]] = {}  # `plain_text` of a question -> it, its passages
    for label in labels:
        question, groups = label["question"], _find_groups(label, finder, names)
        if not question:
            left_out["no question"] += 1
        elif len(groups) != 1:
            reason, value = _why_not_one(label, groups, names)
            left_out[reason] += 1
            if left_out[reason] <= _EXAMPLES:
                logger.warning("A label is left out, %s%s: %r", reason, value, question)
        else:
            judged.setdefault(plain_text(question), (question, set()))[1].update(*groups)
    if not judged:
        return {}
    n_documents = len({_owner(finder, passages) for _, passages in judged.values()})
    if n_documents < _FEW_DOCUMENTS:
        logger.info(
            "The labels are of fewer than %d documents, so questions are divided one by one; with "
            "more documents, those about one document are in one split.",
            _FEW_DOCUMENTS,
        )
    queries, counts = list[str](), dict.fromkeys(_SPLITS, 0)
    qrels: dict[str, list[str]] = defaultdict(lambda: ["\t".join(QRELS_HEADER)])
    for question, passages in judged.values():
        # The id follows from the question: run files stay valid when other questions come or go.
        query_id = f"q{hashlib.sha256(plain_text(question).encode()).hexdigest()[:12]}"
        is_few = n_documents < _FEW_DOCUMENTS
        split = _split_of(query_id if is_few else _owner(finder, passages))
        counts[split] += 1
        queries.append(json.dumps({"_id": query_id, "text": question}, ensure_ascii=False))
        qrels[split] += [f"{query_id}\t{passage}\t1" for passage in sorted(passages)]
    (folder / QRELS_FOLDER).mkdir()
    _write_lines(folder / QUERIES_FILE, queries)
    for split, lines in qrels.items():
        _write_lines(folder / QRELS_FOLDER / f"{split}.tsv", lines)
    return counts


def _owner(finder: "_QuoteFinder", passages: Set[str]) -> str:
    """The document of passages: that of most, as some are copies of another's."""
    owners = Counter(finder.owners[passage] for passage in passages)
    return max(owners, key=lambda name: (owners[name], name))


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _find_groups(label: Label, finder: "_QuoteFinder", names: Names) -> set[frozenset[str]]:
    """Return the passages that a label may be about, of each document apart."""
    file, row, quote = _key(label["file"]), _key(label["id"]), _letters(label["passage"])
    if row not in names:
        row = row.removesuffix(".0")  # as pandas writes ids where some are missing
    of_file = names.get(file, set())
    groups = names.get(row, set()) if row else of_file
    if file and row:
        groups = names.get(f"{file}#{row}") or finder.within(groups, of_file)
        if not groups and plain_ending(Path(file)) not in TABLE_ENDINGS:
            groups = of_file  # which has no ids, so this is the label's own
    if not quote:
        return groups
    # The id may be the label's own, such as a number that a row of some table has, too.
    for place, find in product((groups, of_file), (finder.find_whole, finder.find_part)):
        if place and (quoted := finder.within(find(quote), place)):
            return quoted
    return set() if file else finder.find_whole(quote) or finder.find_part(quote)


def _why_not_one(label: Label, groups: Set[frozenset[str]], names: Names) -> tuple[str, str]:
    """Why a label does not name the passages of one document, and the value that it has there."""
    if groups:
        return "names several documents", ""
    if not (label["file"] or label["id"] or label["passage"]):
        return "without passage, file and id", ""
    if label["file"] and _key(label["file"]) not in names:
        return "no passages of its file", f" {label['file']!r}"
    if label["passage"]:
        return "passage not found", f" {label['passage']!r:.60}"
    return "unknown id", f" {label['id']!r}"


def _letters(text: str) -> str:
    """Return the letters and digits of a text, because documents are read without their marks.

    In Unicode's form NFKC: files of macOS have letters and accents apart, and PDF has ligatures.
    """
    return _MARKS.sub("", unicodedata.normalize("NFKC", text)).casefold()


class _QuoteFinder:
    """Finds the passages that have a quoted text, or a part of it.

    Attributes:
        owners: id of a passage -> the first document that has it.
    """

    def __init__(
        self,
        corpus: Path,
        documents: Sequence[WrittenDocument],
        groups: Sequence[frozenset[str]],
    ) -> None:
        self._groups: dict[str, tuple[frozenset[str], ...]] = defaultdict(tuple)
        for group in groups:
            for passage in group:
                self._groups[passage] += (group,)
        self.owners = dict[str, str]()
        for name, passages in reversed(documents):
            self.owners |= dict.fromkeys(passages, name)
        self._ids = list[str]()
        self._ends = list[int]()  # of passages, in `_text`
        self._by_text: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        parts, end, owner_before = list[str](), 0, None
        for row in read_json(corpus):
            passage, text = row["_id"], _letters(row["text"])
            owner = self.owners[passage]
            parts.append(text if owner == owner_before else f"\0{text}")
            end += len(parts[-1])
            self._ends.append(end)
            self._by_text[text][owner].add(passage)
            self._ids.append(passage)
            owner_before = owner
        self._text = "".join(parts)

    def find_whole(self, quote: str) -> set[frozenset[str]]:
        """Return the passages that are the quote (see `_letters`), of each document apart."""
        return set(map(frozenset, self._by_text.get(quote, {}).values()))

    def find_part(self, quote: str) -> set[frozenset[str]]:
        """Return the passages that have the quote, of each document apart."""
        groups: dict[str, set[str]] = defaultdict(set)
        place = self._text.find(quote)
        while place >= 0:
            first = bisect_right(self._ends, place)
            last = bisect_left(self._ends, place + len(quote))
            groups[self.owners[self._ids[first]]].update(self._ids[first : last + 1])
            place = self._text.find(quote, place + 1)
        return set(map(frozenset, groups.values()))

    def within(
        self, groups: Set[frozenset[str]], others: Set[frozenset[str]]
    ) -> set[frozenset[str]]:
        """The groups that are parts of others: of documents, or passages."""
        return {
            ids
            for ids in groups
            if ids in others
            or any(ids <= group and group in others for group in self._groups[next(iter(ids))])
        }


def _key(name: str) -> str:
    """Return a name as it is compared: spaces and backslashes as in ids, accents in one form."""
    key = re.sub(r"\s", "_", unicodedata.normalize("NFC", name))
    return key.replace("\\", "/").removeprefix("./")


def _index_names(
    documents: Sequence[WrittenDocument],
    groups: Sequence[frozenset[str]],
    sources: Sequence[str],
) -> Names:
    """A file is named by its path, its path in the given folder, its own name, or a path to it.

    A row is named by its id, by that after a name of its table and #, or (with the others) by a
    name of its table.
    """
    names: dict[str, set[frozenset[str]]] = defaultdict(set)
    tops = [_key(Path(source).resolve().name) for source in sources]
    places = [
        (top, _key(place.as_posix()))
        for top, source in zip(tops, sources, strict=True)
        for place in (Path(source), Path(source).resolve())
        if tops.count(top) == 1
    ]
    for (document, _), group in zip(documents, groups, strict=True):
        path = _key(document)
        file, row_id = _split_row(path)
        paths = {file, file.partition("/")[2], file.rpartition("/")[2]} - {""}
        paths |= {place + file.removeprefix(top) for top, place in places if _is_in(file, top)}
        for name in paths:
            names[name].add(group)  # of a table, of each row
            if row_id:
                names[f"{name}#{row_id}"].add(group)
        names[row_id].add(group)
    for _, passages in documents:
        for passage in passages:
            names.setdefault(_key(passage), {frozenset([passage])})
    names.pop("", None)
    return names


def _is_in(file: str, folder: str) -> bool:
    return file == folder or file.startswith(f"{folder}/")


def _split_row(path: str) -> tuple[str, str]:
    """The path of a table and the id of its row; of another file the path, and nothing."""
    for mark in re.finditer("#", path):
        if plain_ending(Path(path[: mark.start()])) in TABLE_ENDINGS:
            return path[: mark.start()], path[mark.end() :]
    return path, ""


def _split_of(name: str) -> str:
    """Return the split of a document or question: a fifth each is in test and dev, by a hash."""
    return {0: "test", 1: "dev"}.get(zlib.crc32(name.encode()) % 5, "train")
