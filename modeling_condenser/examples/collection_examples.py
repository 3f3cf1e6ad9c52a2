"""Turn a collection's judgements, mined negatives or triples of ids into training examples.

The examples name passages by row. A passage's text is looked up when a batch needs it, so that a
passage which is a negative of a thousand queries is stored once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.text_files import plain_name, read_fields, read_id, read_objects
from modeling_condenser.repository.contract import EncodingContract

from .data_files import Record
from .stored_examples import LEFT_OUT, NO_NEGATIVE, Example

# Reasons why a row is left out.
USELESS_NEGATIVE = "triples whose negative is relevant or has the text of the positive"
NOT_IN_SPLIT = "lines of queries that are not in the split"
WITHOUT_LINE = "queries of the split without a line of negatives"

_BATCH_ROWS = 100_000
_BATCH_TRIPLES = 50_000  # whose passages are looked up together
_BATCH_LINES = 500  # the same, for lines of mined negatives


class PassageRows:
    """Finds the rows of passages by their ids, and tells which passages have the same text.

    Ids and texts are represented by 64-bit hashes, so a passage takes 24 bytes of memory. Two of 10
    million passages have the same hash with a probability of 3e-6.

    Args:
        passages: columns `_id` (unique), `title`, `text`; N rows.

    Attributes:
        content: hashes of title and text, (N,) int64.
    """

    def __init__(self, passages: Dataset):
        hashes = np.empty(len(passages), dtype=np.int64)
        self.content = np.empty(len(passages), dtype=np.int64)
        table = passages.select_columns(["_id", "title", "text"]).with_format("arrow")
        with tqdm(total=len(passages), desc="indexing passages", delay=2) as bar:
            for batch in table.iter(batch_size=_BATCH_ROWS):
                ids, titles, texts = (batch[name].to_pylist() for name in batch.column_names)
                rows = slice(bar.n, bar.n + len(ids))
                hashes[rows] = [hash(passage_id) for passage_id in ids]
                self.content[rows] = [hash(pair) for pair in zip(titles, texts, strict=True)]
                bar.update(len(ids))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """The rows of ids, (n,) int64; -1 for an id that no passage has."""
        wanted = np.fromiter(map(hash, ids), np.int64, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        return np.where(self._hashes[places] == wanted, self._order[places], -1)


class PassageTexts:
    """Returns the texts of passages by row, as they are encoded.

    Args:
        passages: columns `title` and `text`.
        contract: gives the prompt and the title separator.
    """

    def __init__(self, passages: Dataset, contract: EncodingContract):
        self.passages = passages.select_columns(["title", "text"])
        self.contract = contract

    def __call__(self, rows: Sequence[int]) -> list[str]:
        """The texts in the order of the rows."""
        unique, inverse = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        found = self.passages[unique]
        pairs = zip(found["title"], found["text"], strict=True)
        texts = [self.contract.passage(title, text) for title, text in pairs]
        return [texts[i] for i in inverse]


def relevant_ids(collection: Collection, query_id: str) -> list[str]:
    """The passages that are judged relevant for a query."""
    grades = collection.qrels.get(query_id, {})
    return [passage_id for passage_id, grade in grades.items() if grade > 0]


def judged_examples(collection: Collection, contract: EncodingContract) -> Iterator[Example]:
    """One example for each query and passage judged relevant for it."""
    rows = PassageRows(collection.passages)
    for query_id in collection.queries:
        query = contract.query(collection.queries[query_id])
        for row in rows.find(relevant_ids(collection, query_id)).tolist():
            yield {"query": query, "positive": row}


def triple_examples(
    collection: Collection,
    records: Iterable[Record],
    columns: Mapping[str, str],
    contract: EncodingContract,
) -> Iterator[Example]:
    """Triples of ids, such as MS MARCO's qidpidtriples.train.full.2.tsv, as examples.

    Args:
        collection: the collection whose queries and passages they name.
        records: rows with `query_id`, `positive_id` and `negative_id`.
        columns: our names -> the data's names, where they differ.
        contract: gives the query's prompt.

    Raises:
        ValueError: the collection does not have a query or passage.
    """
    rows = PassageRows(collection.passages)
    keys = [columns.get(name, name) for name in ("query_id", "positive_id", "negative_id")]
    iterator = iter(records)
    while batch := list(islice(iterator, _BATCH_TRIPLES)):
        ids = [[read_id(fields, key, place=place) for key in keys] for place, fields in batch]
        found = _find_all(rows, [i for triple in ids for i in triple[1:]], collection, batch[0][0])
        for (place, _), (query_id, _, negative_id), (positive, negative) in zip(
            batch, ids, found.reshape(-1, 2).tolist(), strict=True
        ):
            if query_id not in collection.queries:
                raise ValueError(
                    f"{place}: query {query_id!r} is not in the split of {collection.name}: use "
                    "the split that the triples were made from."
                )
            if (
                rows.content[positive] == rows.content[negative]
                or collection.qrels.get(query_id, {}).get(negative_id, 0) > 0
            ):
                yield {LEFT_OUT: USELESS_NEGATIVE}
                continue
            query = contract.query(collection.queries[query_id])
            yield {"query": query, "positive": positive, "negatives": [negative]}


@dataclass(frozen=True)
class MinedLine:
    """One query's line in a file of hard negatives.

    Attributes:
        place: file and line.
        query_id: the query.
        negative_ids: its negatives, best first.
        positive_ids: passages that the miner used as positives; empty if the file names none.
        positive_scores: a cross-encoder's scores of the positives; empty without one.
        negative_scores: the same of the negatives.
    """

    place: str
    query_id: str
    negative_ids: list[str]
    positive_ids: list[str]
    positive_scores: list[float]
    negative_scores: list[float]


def read_mined(file: Path) -> Iterator[MinedLine]:
    """Read a file of hard negatives.

    Args:
        file: JSON lines as `condenser mine` writes them; or, with the ending .tsv or .txt, lines of
            query id, tab and passage ids separated by commas, as in train.negatives.tsv of
            RocketQA's MS MARCO. Either may end in .gz.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is malformed.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no file of negatives {file}: correct the path, or create it with "
            "`condenser mine`."
        )
    if plain_name(file).endswith((".tsv", ".txt")):
        what = "a query id, and passage ids separated by commas"
        for number, fields in read_fields(file, n=2, what=what):
            negatives = [passage_id for passage_id in fields[1].split(",") if passage_id]
            yield MinedLine(f"{file}:{number}", fields[0], negatives, [], [], [])
        return
    for number, record in read_objects(file):
        place = f"{file}:{number}"
        line = MinedLine(
            place,
            read_id(record, "query_id", place=place),
            _listed(record, "negative_ids", str, place),
            _listed(record, "positive_ids", str, place),
            _listed(record, "positive_teacher_scores", float, place),
            _listed(record, "negative_teacher_scores", float, place),
        )
        for scores, ids in (
            (line.positive_scores, line.positive_ids),
            (line.negative_scores, line.negative_ids),
        ):
            if scores and len(scores) != len(ids):
                raise ValueError(
                    f"{place}: {len(scores)} cross-encoder scores for {len(ids)} passages, "
                    "expected one each."
                )
        yield line


def _listed(fields: Mapping[str, Any], name: str, kind: type, place: str) -> list[Any]:
    values = fields.get(name, [])
    kinds = (int, float) if kind is float else kind
    if not isinstance(values, list) or not all(isinstance(value, kinds) for value in values):
        raise ValueError(f"{place}: {name} is {values!r:.60}, expected a list of {kind.__name__}.")
    if kind is float and not all(map(math.isfinite, values)):
        raise ValueError(f"{place}: {name} is {values!r:.60}, expected finite numbers.")
    return values


def mined_examples(
    collection: Collection,
    lines: Iterable[MinedLine],
    contract: EncodingContract,
    *,
    with_scores: bool = False,
) -> Iterator[Example]:
    """One example for each query and positive, with the query's hard negatives.

    A query's positives are those of its line, or else the passages judged relevant. Negatives that
    are relevant or have the text of the positive are dropped.

    Args:
        collection: the training split.
        lines: negatives of its queries, one line each.
        contract: gives the query's prompt.
        with_scores: whether to include the cross-encoder's scores.

    Raises:
        ValueError: the collection does not have a passage, scores are missing, or two lines have
            the same query.
    """
    rows = PassageRows(collection.passages)
    seen: set[str] = set()
    iterator = iter(lines)
    while batch := list(islice(iterator, _BATCH_LINES)):
        for line in batch:
            if line.query_id in seen:
                raise ValueError(f"{line.place}: a second line of query {line.query_id!r}.")
            seen.add(line.query_id)
        known = [line for line in batch if line.query_id in collection.queries]
        yield from [{LEFT_OUT: NOT_IN_SPLIT}] * (len(batch) - len(known))
        positives = [line.positive_ids or _judged_positives(line, collection) for line in known]
        ids = [[*own, *line.negative_ids] for own, line in zip(positives, known, strict=True)]
        flat = [passage_id for passage_ids in ids for passage_id in passage_ids]
        found = iter(_find_all(rows, flat, collection, batch[0].place).tolist())
        for line, own in zip(known, positives, strict=True):
            query = contract.query(collection.queries[line.query_id])
            relevant = {*own, *relevant_ids(collection, line.query_id)}
            positive_rows = list(islice(found, len(own)))
            candidates = [
                (place, row)
                for place, row in enumerate(islice(found, len(line.negative_ids)))
                if line.negative_ids[place] not in relevant
            ]
            for positive_id, positive in zip(own, positive_rows, strict=True):
                text = rows.content[positive]
                kept = [(place, row) for place, row in candidates if rows.content[row] != text]
                if not kept:
                    yield {LEFT_OUT: NO_NEGATIVE}
                    continue
                negatives = [row for _, row in kept]
                example: Example = {"query": query, "positive": positive, "negatives": negatives}
                if with_scores:
                    example["teacher_scores"] = _scores(line, positive_id, [i for i, _ in kept])
                yield example
    yield from [{LEFT_OUT: WITHOUT_LINE}] * len(collection.queries.keys() - seen)


def _find_all(
    rows: PassageRows, ids: Sequence[str], collection: Collection, place: str
) -> np.ndarray:
    found = rows.find(ids)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        raise ValueError(
            f"{place} or a later line names passage {ids[missing[0]]!r}, which {collection.name} "
            "does not have: use ids and passages of the same release."
        )
    return found


def _judged_positives(line: MinedLine, collection: Collection) -> list[str]:
    relevant = relevant_ids(collection, line.query_id)
    if not relevant:
        raise ValueError(
            f"{line.place}: neither the line nor the judgements of {collection.name} name a "
            f"positive of query {line.query_id!r}: mine with --positives answers."
        )
    return relevant


def _scores(line: MinedLine, positive_id: str, kept: list[int]) -> list[float]:
    if not line.positive_scores or not line.negative_scores:
        raise ValueError(
            f"{line.place}: there are no cross-encoder scores to learn from: mine with a "
            "cross-encoder, or use objective contrastive."
        )
    own = line.positive_scores[line.positive_ids.index(positive_id)]
    return [own, *(line.negative_scores[i] for i in kept)]
