"""A cross-encoder as the teacher of an adaptation."""

from dataclasses import replace

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from transformers import AutoConfig

from modeling_condenser.model_files.model_folder import find_model_folder
from modeling_condenser.runs.progress import bar

from .vector_map import TrainingQueries

_QUERIES_AT_ONCE = 16


def open_cross_encoder(name: str) -> CrossEncoder:
    """Open a cross-encoder of sentence-transformers; a ValueError if it gives no single score."""
    folder = find_model_folder(name)
    config = AutoConfig.from_pretrained(folder)
    kind = (config.architectures or ["no model"])[0]
    if not kind.endswith("ForSequenceClassification") or config.num_labels != 1:
        raise ValueError(
            f"The teacher {name} is {kind} with {config.num_labels} labels, expected a "
            "cross-encoder, which gives a pair one score: cross-encoder/ms-marco-MiniLM-L6-v2 is "
            "one."
        )
    return CrossEncoder(str(folder))


def rescore(
    training: TrainingQueries, passages: Dataset, cross_encoder: CrossEncoder
) -> TrainingQueries:
    """The queries with a cross-encoder's scores of their own passage and of the hard ones.

    Queries with scores of a file keep those.
    """
    queries = list(training.queries)
    new = [row for row, query in enumerate(queries) if not query.scores]
    for first in bar(range(0, len(new), _QUERIES_AT_ONCE), "cross-encoder", unit="batch"):
        pairs = []
        for row in new[first : first + _QUERIES_AT_ONCE]:
            query, hard = queries[row], training.hard[row].tolist()
            others = tuple({*hard, *query.negatives} - {query.passage})
            queries[row] = query._replace(negatives=others)
            scored = passages.select([query.passage, *others])
            both = zip(scored["title"], scored["text"], strict=True)
            pairs += [(query.text, f"{title} {text}".strip()) for title, text in both]
        scores = cross_encoder.predict(
            pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False
        ).tolist()
        for row in new[first : first + _QUERIES_AT_ONCE]:
            own = 1 + len(queries[row].negatives)
            queries[row] = queries[row]._replace(scores=tuple(scores[:own]))
            scores = scores[own:]
    return replace(training, queries=queries)
