"""Find the queries on which two systems differ most, with the passages that each ranks first."""

from collections.abc import Mapping
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.passages import find_rows, titles_and_texts

from .system_results import SystemResult

_MOST = 10  # queries that gained, and that lost
_EXCERPT = 120  # characters


def find_changed(
    system: SystemResult, baseline: SystemResult, measure: str, collection: Collection
) -> dict[str, list[dict[str, Any]]]:
    """The ten queries that gained most against the baseline in a measure, and that lost most.

    Returns:
        "gained" and "lost" -> `query`, `text`, the two `values`, and the passages that both rank
        `first`, or None where there are no results.
    """
    own, other = (result.evaluation.per_query[measure] for result in (system, baseline))
    changes = {query: own[query] - other[query] for query in own}
    order = sorted(changes, key=lambda query: -changes[query])
    chosen = {
        "gained": [query for query in order[:_MOST] if changes[query] > 0],
        "lost": [query for query in reversed(order[-_MOST:]) if changes[query] < 0],
    }
    shown = {q: (baseline.first.get(q), system.first.get(q)) for qs in chosen.values() for q in qs}
    excerpts = _excerpts(collection, {p for pair in shown.values() for p in pair if p is not None})

    def describe(query: str, passage: str | None) -> dict[str, Any] | None:
        if passage is None:
            return None
        is_relevant = collection.qrels.get(query, {}).get(passage, 0) > 0
        excerpt = excerpts.get(passage, passage)
        return {"passage": passage, "excerpt": excerpt, "is_relevant": is_relevant}

    return {
        direction: [
            {
                "query": query,
                "text": collection.queries[query],
                "values": (other[query], own[query]),
                "first": [describe(query, passage) for passage in shown[query]],
            }
            for query in queries
        ]
        for direction, queries in chosen.items()
    }


def _excerpts(collection: Collection, passages: set[str]) -> Mapping[str, str]:
    """Passage -> the beginning of its title and text; without those that the corpus lacks."""
    rows = find_rows(collection.passages, passages, strict=False)
    found = titles_and_texts(collection.passages, list(rows.values()))
    texts = (" ".join((f"{title}: {text}" if title else text).split()) for title, text in found)
    shortened = (t if len(t) <= _EXCERPT else f"{t[:_EXCERPT].rstrip()} …" for t in texts)
    return dict(zip(rows, shortened, strict=True))
