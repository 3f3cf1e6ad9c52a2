"""Hard negatives of a collection's queries: a file of them in, training examples out."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.text_files import plain_name, read_fields, read_objects
from modeling_condenser.repository.contract import EncodingContract

from .formats import IDENTICAL, NO_NEGATIVE
from .pairs import RELEVANT, ROWS_SCHEMA
from .passage_rows import PassageRows
from .stored_examples import Example

SCORED_SCHEMA = ROWS_SCHEMA.append(pa.field("teacher_scores", pa.list_(pa.float32())))
NOT_IN_SPLIT = "lines of queries that the split has not"
WITHOUT_LINE = "queries of the split without a line of negatives"
_BATCH = 500  # lines whose passages are looked up together


@dataclass(frozen=True)
class MinedNegatives:
    """One query's line in a file of hard negatives.

    Attributes:
        place: file and line.
        query_id: whose negatives they are.
        negative_ids: passages, best first.
        positive_ids: passages that the miner took for relevant; empty where the file names none.
        positive_scores: a cross-encoder's scores of these; empty without one.
        negative_scores: a cross-encoder's scores of the negatives; empty without one.
    """

    place: str
    query_id: str
    negative_ids: list[str]
    positive_ids: list[str] = field(default_factory=list)
    positive_scores: list[float] = field(default_factory=list)
    negative_scores: list[float] = field(default_factory=list)


def read_negatives(file: Path) -> Iterator[MinedNegatives]:
    """Read a file of hard negatives.

    Args:
        file: JSON lines as `condenser mine` writes them (`query_id`, `positive_ids`,
            `negative_ids`, perhaps `positive_teacher_scores` and `negative_teacher_scores`), or,
            with the ending .tsv or .txt, lines of query id, tab, and passage ids with commas
            between, as train.negatives.tsv of RocketQA's MS MARCO has them. Either also with `.gz`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a malformed line, or a query that stands on two lines.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no file of negatives {file}: mend the path, or make it "
            "with `condenser mine`."
        )
    is_table = plain_name(file).endswith((".tsv", ".txt"))
    seen: set[str] = set()
    for mined in _table_negatives(file) if is_table else _json_negatives(file):
        if mined.query_id in seen:
            raise ValueError(
                f"{mined.place}: query {mined.query_id!r} stands on an earlier line too, expected "
                "one line a query: put the lines together"
            )
        seen.add(mined.query_id)
        yield mined


def _table_negatives(file: Path) -> Iterator[MinedNegatives]:
    what = "a query's id, and passage ids with commas between"
    for number, (query_id, ids) in read_fields(file, n=2, what=what):
        negatives = [passage_id for passage_id in ids.split(",") if passage_id]
        yield MinedNegatives(f"{file}:{number}", query_id, negatives)


def _json_negatives(file: Path) -> Iterator[MinedNegatives]:
    for number, record in read_objects(file):
        place = f"{file}:{number}"
        query_id = record.get("query_id")
        if not isinstance(query_id, str):
            raise ValueError(
                f"{place}: 'query_id' is {query_id!r}, expected a string: mend the line"
            )
        line = MinedNegatives(
            place,
            query_id,
            _list_of(str, record, "negative_ids", place),
            _list_of(str, record, "positive_ids", place, required=False),
            _list_of(float, record, "positive_teacher_scores", place, required=False),
            _list_of(float, record, "negative_teacher_scores", place, required=False),
        )
        for scores, passages in (
            (line.negative_scores, line.negative_ids),
            (line.positive_scores, line.positive_ids),
        ):
            if scores and len(scores) != len(passages):
                raise ValueError(
                    f"{place}: {len(scores)} teacher's scores for {len(passages)} passages, "
                    "expected one each: mend the line"
                )
        yield line


def _list_of(
    kind: type, record: Mapping[str, Any], name: str, place: str, *, required: bool = True
) -> list[Any]:
    values = record.get(name, None if required else [])
    kinds = (int, float) if kind is float else kind
    fits = isinstance(values, list) and all(isinstance(value, kinds) for value in values)
    if not fits or (kind is float and not all(map(math.isfinite, values))):
        raise ValueError(
            f"{place}: {name!r} is {values!r:.60}, expected a list of "
            f"{'numbers' if kind is float else 'strings'}: mend the line"
        )
    return values


def mined_examples(
    collection: Collection,
    mined: Iterable[MinedNegatives],
    contract: EncodingContract,
    left_out: Counter[str],
    *,
    scored: bool = False,
) -> Iterator[Example]:
    """Put a split's queries, their positives and their hard negatives together.

    A query's positives are those of its line in the file, or else the passages judged relevant.
    Left out and counted are negatives that are relevant or have the text of the positive, lines of
    queries that the split has not, queries without a line, and pairs without a negative.

    Args:
        collection: the training split.
        mined: negatives of its queries.
        contract: how a query is encoded.
        left_out: counts what is left out.
        scored: whether to take a cross-encoder's scores along.

    Yields:
        Examples of `ROWS_SCHEMA`, or of `SCORED_SCHEMA`; one for each query and positive.

    Raises:
        ValueError: a passage that the collection lacks, or scores that are missing.
    """
    rows = PassageRows(collection.passages)
    without_line = set(collection.queries)
    lines = iter(mined)
    while batch := list(islice(lines, _BATCH)):
        known = [line for line in batch if line.query_id in collection.queries]
        left_out[NOT_IN_SPLIT] += len(batch) - len(known)
        without_line -= {line.query_id for line in known}
        for line, positives, negatives in _with_rows(known, collection, rows):
            query = contract.query(collection.queries[line.query_id])
            for positive_id, positive in positives.items():
                kept = _useful(line, positive, positives, negatives, collection, rows, left_out)
                if not kept:
                    left_out[NO_NEGATIVE] += 1
                    continue
                example: Example = {
                    "query": query,
                    "positive_row": positive,
                    "negative_rows": [int(negatives[i]) for i in kept],
                }
                if scored:
                    example["teacher_scores"] = _scores(line, positive_id, kept)
                yield example
    left_out[WITHOUT_LINE] += len(without_line)


def _with_rows(
    lines: list[MinedNegatives], collection: Collection, rows: PassageRows
) -> Iterator[tuple[MinedNegatives, dict[str, int], np.ndarray]]:
    """Each line with its query's positives and their rows, and the rows of its negatives."""
    positives = [line.positive_ids or _judged_relevant(line, collection) for line in lines]
    wanted = [[*ids, *line.negative_ids] for ids, line in zip(positives, lines, strict=True)]
    found = rows.find([passage_id for ids in wanted for passage_id in ids])
    start = 0
    for line, own, ids in zip(lines, positives, wanted, strict=True):
        here = found[start : start + len(ids)]
        start += len(ids)
        missing = np.flatnonzero(here < 0)
        if len(missing):
            raise ValueError(
                f"{line.place}: passage {ids[missing[0]]!r} is not in {collection.name}: take "
                "negatives and collection from the same release"
            )
        yield line, dict(zip(own, here[: len(own)].tolist(), strict=True)), here[len(own) :]


def _judged_relevant(line: MinedNegatives, collection: Collection) -> list[str]:
    grades = collection.qrels.get(line.query_id, {})
    relevant = [passage_id for passage_id, grade in grades.items() if grade > 0]
    if not relevant:
        raise ValueError(
            f"{line.place}: neither the line nor the judgements of {collection.name} name a "
            f"positive of query {line.query_id!r}: mine with --positives answers"
        )
    return relevant


def _useful(
    line: MinedNegatives,
    positive: int,
    positives: Mapping[str, int],
    negatives: np.ndarray,
    collection: Collection,
    rows: PassageRows,
    left_out: Counter[str],
) -> list[int]:
    """Places of the negatives that are neither relevant nor the positive's double."""
    grades = collection.qrels.get(line.query_id, {})
    relevant = np.array(
        [grades.get(i, 0) > 0 or i in positives for i in line.negative_ids], dtype=bool
    )
    identical = (rows.content[negatives] == rows.content[positive]) & ~relevant
    left_out[RELEVANT] += int(relevant.sum())
    left_out[IDENTICAL] += int(identical.sum())
    return np.flatnonzero(~relevant & ~identical).tolist()


def _scores(line: MinedNegatives, positive_id: str, kept: list[int]) -> list[float]:
    if not line.positive_scores or not line.negative_scores:
        raise ValueError(
            f"{line.place}: no cross-encoder's scores of the positives or of the negatives, which "
            "distillation learns from: mine with a cross-encoder, or choose objective contrastive"
        )
    own = line.positive_scores[line.positive_ids.index(positive_id)]
    return [own, *(line.negative_scores[i] for i in kept)]
