"""A cross-encoder as the teacher of an adaptation."""

from dataclasses import replace
from itertools import islice

from datasets import Dataset

from modeling_condenser.files.progress import bar
from modeling_condenser.mining.miner import RelevanceScorer

from .vector_map import TrainingQueries

_QUERIES_AT_ONCE = 16  # whose pairs are batched by length


def rescore(
    training: TrainingQueries, passages: Dataset, scorer: RelevanceScorer
) -> TrainingQueries:
    """The queries with a cross-encoder's scores of their own passage and of the hard ones.

    Queries with scores of a file keep those.
    """
    queries = list(training.queries)
    new = [row for row, query in enumerate(queries) if not query.scores]
    for first in bar(range(0, len(new), _QUERIES_AT_ONCE), "cross-encoder", unit="batch"):
        some, pairs = new[first : first + _QUERIES_AT_ONCE], []
        for row in some:
            query, hard = queries[row], training.hard[row].tolist()
            others = tuple({*hard, *query.negatives} - {query.passage})
            queries[row] = query._replace(negatives=others)
            scored = passages.select([query.passage, *others])
            both = zip(scored["title"], scored["text"], strict=True)
            pairs += [(query.text, f"{title} {text}".strip()) for title, text in both]
        scores = iter(scorer.score(pairs))
        for row in some:
            own = tuple(islice(scores, 1 + len(queries[row].negatives)))
            queries[row] = queries[row]._replace(scores=own)
    return replace(training, queries=queries)
