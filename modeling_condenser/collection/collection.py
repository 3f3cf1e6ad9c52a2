"""What a collection is: passages, and the queries and judgements of one split.

Every layout on disk or on the Hub (`beir.py` and its neighbours) is read into this one record,
whose ids are known to fit together, so that nothing later needs to check them. Passages are a
memory-mapped `datasets.Dataset` and may be millions; only the judged queries are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from datasets import Dataset

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""


@dataclass(frozen=True)
class Collection:
    """Passages, and the queries and judgements of one split.

    Attributes:
        passages: columns `_id`, `title`, `text`, all strings; ids are unique.
        queries: query id -> text, the judged queries only, in the order of their file.
        qrels: query id -> passage id -> grade, for the same queries; empty where a collection
            judges by answers only.
        answers: query id -> answer strings, for the same queries; empty where it has none.
        name: of the collection, in files and tables.
    """

    passages: Dataset
    queries: dict[str, str]
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = "collection"
