"""Similarity tasks of an evaluation: encoders and a file of pairs or triplets in, results out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.measures.pair_files import (
    GradedPair,
    Triplet,
    read_graded_pairs,
    read_triplets,
)
from modeling_condenser.measures.pairs import (
    compare_spearman,
    evaluate_graded_pairs,
    evaluate_triplets,
    pair_similarities,
)
from modeling_condenser.retrieval.systems import System

from .findings import ReportedSimilarity, SimilarityResults

Task = Literal["graded_pairs", "triplets"]


def evaluate_similarity(
    systems: Sequence[System],
    file: Path,
    *,
    task: Task,
    baseline: str,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SimilarityResults:
    """Measure encoders on graded pairs (Spearman, Pearson) or triplets (accuracy).

    Texts are encoded as passages without a title, cut at the contract's longest passage, and
    compared by the contract's similarity.

    Args:
        systems: encoders; bm25 and run files have no vectors to compare.
        file: of graded pairs or triplets.
        task: which of the two.
        baseline: name of the system that the others are compared with.
        columns: our column -> the file's.
        seed: of tests.
        progress: whether to show progress bars.

    Raises:
        ValueError: a system without vectors, or a file that does not fit.
    """
    for system in systems:
        if not system.is_dense:
            raise ValueError(
                f"{system.model} has no vectors, with which {task} are compared: name an encoder."
            )
    if task == "graded_pairs":
        return _on_graded_pairs(
            systems,
            read_graded_pairs(file, columns=columns),
            name=file.stem,
            baseline=baseline,
            seed=seed,
            progress=progress,
        )
    return _on_triplets(
        systems,
        read_triplets(file, columns=columns),
        name=file.stem,
        baseline=baseline,
        progress=progress,
    )


def _on_graded_pairs(
    systems: Sequence[System],
    pairs: Sequence[GradedPair],
    *,
    name: str,
    baseline: str,
    seed: int,
    progress: bool,
) -> SimilarityResults:
    scores = np.array([pair.score for pair in pairs])  # (N,)
    similarities: dict[str, np.ndarray] = {}
    for system in systems:
        retriever = system.open()
        first, second = _encode(retriever, list(zip(*pairs, strict=True))[:2], progress)
        similarities[system.name] = pair_similarities(
            first, second, similarity=retriever.contract.similarity
        )
    reported = []
    for system in systems:
        own = similarities[system.name]
        found = evaluate_graded_pairs(own, scores)
        comparison = (
            {}
            if system.name == baseline
            else {"Spearman": compare_spearman(own, similarities[baseline], scores, seed=seed)}
        )
        reported.append(
            ReportedSimilarity(
                system.name,
                {"Spearman": found.spearman, "Pearson": found.pearson},
                comparisons=comparison,
                settings=dict(system.settings),
            )
        )
    return SimilarityResults(name, "graded pairs", len(pairs), reported, baseline)


def _on_triplets(
    systems: Sequence[System],
    triplets: Sequence[Triplet],
    *,
    name: str,
    baseline: str,
    progress: bool,
) -> SimilarityResults:
    reported = []
    for system in systems:
        retriever = system.open()
        anchors, positives, negatives = _encode(
            retriever, list(zip(*triplets, strict=True)), progress
        )
        found = evaluate_triplets(
            anchors, positives, negatives, similarity=retriever.contract.similarity
        )
        reported.append(
            ReportedSimilarity(
                system.name,
                {"triplet accuracy": found.accuracy},
                per_item={"triplet accuracy": found.per_triplet},
                settings=dict(system.settings),
            )
        )
    return SimilarityResults(name, "triplets", len(triplets), reported, baseline)


def _encode(
    retriever: Retriever, sides: Sequence[Sequence[str]], progress: bool
) -> list[np.ndarray]:
    """Each side's vectors, (N, D) float32."""
    length = retriever.contract.passage_max_length
    return [
        retriever.encode_texts(
            [retriever.contract.passage("", text) for text in side], length, progress=progress
        )
        for side in sides
    ]
