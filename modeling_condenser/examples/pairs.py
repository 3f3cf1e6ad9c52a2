"""A collection's judgements, or triples of its ids, as training examples: a query and passage rows.

The examples name passages by row, and their texts are looked up when a batch needs them, so that a
passage which is a negative of a thousand queries is stored once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.lookup import find_rows
from modeling_condenser.collection.records import read_id
from modeling_condenser.repository.contract import EncodingContract

from .data_files import Record
from .formats import IDENTICAL
from .passage_rows import PassageRows
from .stored_examples import ROW_NUMBER, Example

ROWS_SCHEMA = pa.schema(
    [
        ("query", pa.string()),
        ("positive_row", pa.int64()),
        ("negative_rows", pa.list_(pa.int64())),
        (ROW_NUMBER, pa.int64()),
    ]
)
RELEVANT = "negatives that are relevant"
_BATCH = 50_000  # triples whose passages are looked up together


def judged_pairs(collection: Collection, contract: EncodingContract) -> Dataset:
    """Make one training example of each judged query and relevant passage.

    Args:
        collection: the training split.
        contract: how a query is encoded.

    Returns:
        Columns `query`, `positive_row` (of the collection's passages) and `ROW_NUMBER`.

    Raises:
        ValueError: no passage is judged relevant.
    """
    pairs = _relevant_pairs(collection)
    rows = find_rows(collection.passages, (passage_id for _, passage_id in pairs))
    return Dataset.from_dict(
        {
            "query": [contract.query(collection.queries[query_id]) for query_id, _ in pairs],
            "positive_row": [rows[passage_id] for _, passage_id in pairs],
            ROW_NUMBER: list(range(len(pairs))),
        }
    )


def _relevant_pairs(collection: Collection) -> list[tuple[str, str]]:
    """The ids of each judged query and relevant passage."""
    pairs = [
        (query_id, passage_id)
        for query_id, grades in collection.qrels.items()
        for passage_id, grade in grades.items()
        if grade > 0
    ]
    if not pairs:
        by_answers = (
            ", which is judged by answers: train on data of format dpr"
            if collection.answers
            else ""
        )
        raise ValueError(
            f"The split of {collection.name} judges no passage relevant, expected at least one "
            f"pair of query and passage to train on{by_answers}."
        )
    return pairs


def triple_examples(
    collection: Collection,
    records: Iterable[Record],
    columns: Mapping[str, str],
    contract: EncodingContract,
    left_out: Counter[str],
) -> Iterator[Example]:
    """Triples of ids, such as MS MARCO's qidpidtriples.train.full.2.tsv, as examples.

    Args:
        collection: whose queries and passages they name; judgements leave out negatives that are
            relevant.
        records: rows with `query_id`, `positive_id` and `negative_id`.
        columns: our names -> the data's, where they differ.
        contract: how a query is encoded.
        left_out: counts what is left out.

    Yields:
        Examples of `ROWS_SCHEMA`.

    Raises:
        ValueError: an id that the collection lacks.
    """
    rows = PassageRows(collection.passages)
    keys = [columns.get(name, name) for name in ("query_id", "positive_id", "negative_id")]
    iterator = iter(records)
    while batch := list(islice(iterator, _BATCH)):
        ids = [[read_id(record, key, place=place) for key in keys] for place, record in batch]
        found = rows.find([i for triple in ids for i in triple[1:]]).reshape(-1, 2)
        for (place, _), (query_id, *pair), (positive, negative) in zip(
            batch, ids, found.tolist(), strict=True
        ):
            if query_id not in collection.queries:
                raise ValueError(
                    f"{place}: query {query_id!r} is none of the judged queries of the split of "
                    f"{collection.name}: choose the split that the triples were made from"
                )
            for passage_id, row in zip(pair, (positive, negative), strict=True):
                if row < 0:
                    raise ValueError(
                        f"{place}: passage {passage_id!r} is not in {collection.name}: take "
                        "triples and collection from the same release"
                    )
            if collection.qrels.get(query_id, {}).get(pair[1], 0) > 0:
                left_out[RELEVANT] += 1
            elif rows.content[positive] == rows.content[negative]:
                left_out[IDENTICAL] += 1
            else:
                yield {
                    "query": contract.query(collection.queries[query_id]),
                    "positive_row": positive,
                    "negative_rows": [negative],
                }
