"""Mines hard negatives: passages that a system finds for a query and that are not relevant.

    negatives.jsonl   ids, one line per query, in the order of the queries
    recipe.yaml, run.json

BM25, encoders, hybrids and run files are searched in the same way. sentence-transformers'
`mine_hard_negatives` is not used: it takes embedding models only, and holds all vectors in memory.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

import torch
from scipy.special import expit
from sentence_transformers import CrossEncoder

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.collection.collection import (
    Collection,
    PassageIndex,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.encoding.embeddings import local_device
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.files.run_folder import (
    atomic_file,
    bar,
    check_run_folder,
    checksum_file,
    hash_data,
    record_run,
    start_run,
    stored_settings,
)
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.retrieval.runs import rank_passages
from modeling_condenser.retrieval.systems import (
    Searcher,
    SearchSettings,
    open_searcher,
    parse_systems,
)

from .hard_negatives import NEGATIVES_FILE, KnownPassages, judged_positives
from .recipe import MiningRecipe

logger = logging.getLogger(__name__)

_QUERIES_AT_ONCE = 4096  # memory grows with it; exact search reads all vectors each time
_CANDIDATES_AT_ONCE = 64  # that a cross-encoder scores


def mine(**settings: Any) -> Path:
    """Mine hard negatives into a folder; a finished folder is left unchanged.

    Example:
        >>> file = mine(system="bm25", collection="my-collection", output_dir="negatives")
        >>> finetune(collection="my-collection", negatives=str(file), ...)

    Args:
        **settings: fields of `MiningRecipe` and, for encoders, of `SearchSettings`.

    Returns:
        The file of hard negatives, `negatives.jsonl` in `output_dir`.

    Raises:
        ValueError: a setting does not fit, or the folder holds the results of other settings, of
            another system or of another collection.
        FileNotFoundError: the system, the collection or the cross-encoder is missing.
    """
    started = time.perf_counter()
    recipe, search = parse_settings(settings, MiningRecipe, SearchSettings)
    folder = Path(recipe.output_dir)
    negatives = folder / NEGATIVES_FILE
    if negatives.is_file() or "system" not in stored_settings(folder):
        check_run_folder(folder, settings)  # but mining that has no result yet may begin anew
    collection = load_collection(recipe.collection, split=recipe.split)
    labelled = judged_positives(collection) or {query_id: [] for query_id in collection.answers}
    if not labelled or (recipe.answer_filter and not collection.answers):
        missing = "answers" if labelled else "relevant passages or answers"
        raise ValueError(f"{recipe.collection}, split {recipe.split}, has no {missing}.")
    [system] = parse_systems([recipe.system], search)
    scorer = None
    if recipe.cross_encoder is not None:
        scorer = open_cross_encoder(recipe.cross_encoder, device=local_device(search.device_list))
    # The fusion of a hybrid system is chosen on the dev queries.
    dev = load_dev(recipe.collection, judged=recipe.split) if system.needs_dev else None
    data = [system.fingerprint, fingerprint_passages(collection.passages)]
    data.append(fingerprint_judgements(collection))
    if dev is not None:
        data.append(fingerprint_judgements(dev))
    if recipe.cross_encoder is not None:
        place = find_model_folder(recipe.cross_encoder)
        weights = (*place.glob("*.safetensors"), *place.glob("pytorch_model*.bin"))
        data += [checksum_file(file) for file in sorted(weights)]
    if negatives.is_file():
        check_run_folder(folder, settings, hash_data(data))
        logger.info("%s is finished.", folder)
        return negatives
    start_run(folder, settings, hash_data(data))
    searcher = open_searcher(
        system, collection.passages, folder / "search", settings=search, dev=dev
    )
    miner = Miner(recipe, collection, PassageIndex(collection.passages), scorer)
    with atomic_file(negatives) as file:
        sizes = _write_negatives(miner, searcher, labelled, file)
        if not sum(sizes):
            raise ValueError(
                f"No query of {recipe.collection}, split {recipe.split}, has a negative (dropped: "
                f"{dict(miner.dropped)}): check that the system searches these queries, or set "
                "weaker filters."
            )
        facts = {
            "seed": recipe.seed,
            "queries": len(sizes),
            "queries_without_positive": len(collection.queries) - len(sizes),
            "queries_without_negatives": sizes.count(0),
            "queries_with_fewer": sum(0 < size < (recipe.n_negatives or 0) for size in sizes),
            "negatives": sum(sizes),
            "dropped": miner.dropped,
            "seconds": round(time.perf_counter() - started, 1),
        }
        record_run(folder, facts)
    return negatives


def _write_negatives(
    miner: "Miner", searcher: Searcher, labelled: Mapping[str, Sequence[str]], file: BinaryIO
) -> list[int]:
    """Write a line for each query with a positive; return the numbers of their negatives."""
    query_ids, sizes = list(labelled), []
    with bar(None, "mining", unit="query", total=len(query_ids)) as shown:
        for first in range(0, len(query_ids), _QUERIES_AT_ONCE):
            batch = query_ids[first : first + _QUERIES_AT_ONCE]
            queries = {query_id: miner.collection.queries[query_id] for query_id in batch}
            run = searcher.search(queries, depth=miner.recipe.last_rank)
            for query_id in batch:
                ranked = rank_passages(run.get(query_id, {}))
                line = miner.mine(query_id, labelled[query_id], ranked)
                if line is not None:
                    sizes.append(len(line["negative_ids"]))
                    file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
                shown.update()
    return sizes


class Candidate(NamedTuple):
    """A passage that was found for a query, with the scores of searcher and cross-encoder."""

    rank: int  # from 1
    passage_id: str
    score: float
    teacher_score: float | None = None


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection.

    Attributes:
        recipe: the filters.
        collection: whose queries are mined.
        index: finds its passages.
        scorer: a cross-encoder, or None.
        dropped: number of candidates that each filter dropped.
    """

    recipe: MiningRecipe
    collection: Collection
    index: PassageIndex
    scorer: CrossEncoder | None = None
    dropped: Counter[str] = field(default_factory=Counter)

    def mine(
        self, query_id: str, positives: Sequence[str], ranked: Sequence[tuple[str, float]]
    ) -> dict[str, Any] | None:
        """Mine the hard negatives of a query, whose passages were found in this order.

        Returns:
            `query_id`, `positive_ids`, `negative_ids` and scores; None without a positive.
        """
        if not positives:
            positives = self._with_answer(query_id, [name for name, _ in ranked])[:1]
        if not positives:
            return None
        candidates = self._filter_by_rank(query_id, positives, ranked)
        if self.recipe.sampling == "random":
            random = Random(f"{self.recipe.seed} {query_id}")
            candidates = random.sample(candidates, len(candidates))
        negatives = sorted(self._filter_by_text(query_id, candidates))
        line = {
            "query_id": query_id,
            "positive_ids": list(positives),
            "negative_ids": [candidate.passage_id for candidate in negatives],
            "negative_scores": [candidate.score for candidate in negatives],
        }
        if self.scorer is not None:
            line["positive_teacher_scores"] = self._score(query_id, positives)
            line["negative_teacher_scores"] = [each.teacher_score for each in negatives]
        return line

    def _filter_by_rank(
        self, query_id: str, positives: Sequence[str], ranked: Sequence[tuple[str, float]]
    ) -> list[Candidate]:
        """The passages at the recipe's ranks that are not known and score below the margin."""
        scores = dict(ranked)
        highest = self._highest_score(min(scores.get(name, -math.inf) for name in positives))
        known_ids, known_contents = self._known.find(query_id, positives)
        taken = ranked[self.recipe.first_rank - 1 : self.recipe.last_rank]
        contents = self.index.content[self.index.rows([name for name, _ in taken])].tolist()
        candidates = []
        for rank, (name, score) in enumerate(taken, start=self.recipe.first_rank):
            if name in known_ids:
                self.dropped["positive_or_query"] += 1
            elif contents[rank - self.recipe.first_rank] in known_contents:
                self.dropped["same_text_as_these"] += 1
            elif score > highest:
                self.dropped["margin"] += 1
            else:
                candidates.append(Candidate(rank, name, score))
        return candidates

    @cached_property
    def _known(self) -> KnownPassages:
        return KnownPassages(self.collection, self.index)

    def _highest_score(self, positive: float) -> float:
        """The highest score of a negative, by the positive's score (-inf if it was not found)."""
        absolute, relative = self.recipe.absolute_margin, self.recipe.relative_margin
        if absolute is None and relative is None:
            return math.inf
        if math.isinf(positive):
            return -math.inf
        # positive * (1 - margin) would be above a negative score.
        return min(positive - (absolute or 0), positive - abs(positive) * (relative or 0))

    def _filter_by_text(self, query_id: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The first candidates without an answer that the cross-encoder finds irrelevant."""
        negatives: list[Candidate] = []
        for first in range(0, len(candidates), _CANDIDATES_AT_ONCE):
            chunk = candidates[first : first + _CANDIDATES_AT_ONCE]
            names = [candidate.passage_id for candidate in chunk]
            answered = self._with_answer(query_id, names)
            scores = self._score(query_id, names) if self.scorer else [None] * len(names)
            for candidate, score in zip(chunk, scores, strict=True):
                below = self.recipe.negative_below
                if candidate.passage_id in answered:
                    self.dropped["answer"] += 1
                elif below is not None and expit(score) >= below:
                    self.dropped["cross_encoder"] += 1
                else:
                    negatives.append(candidate._replace(teacher_score=score))
                if len(negatives) == self.recipe.n_negatives:
                    return negatives
        return negatives

    def _with_answer(self, query_id: str, passage_ids: Sequence[str]) -> list[str]:
        """Those of the passages that contain an answer, if answers decide."""
        answers = self.collection.answers.get(query_id)
        if not answers or (self.collection.qrels and not self.recipe.answer_filter):
            return []
        matcher, texts = AnswerMatcher(answers), self.index.read(passage_ids)
        return [name for name in passage_ids if matcher.is_in(texts[name][1])]

    def _score(self, query_id: str, passage_ids: Sequence[str]) -> list[float]:
        """The cross-encoder's log-odds of relevance."""
        assert self.scorer is not None
        query, texts = self.collection.queries[query_id], self.index.read(passage_ids)
        pairs = [(query, " ".join(texts[name]).strip()) for name in passage_ids]
        return self.scorer.predict(pairs, show_progress_bar=False).tolist()


def open_cross_encoder(model: str, *, device: str | None = None) -> CrossEncoder:
    """Open a cross-encoder whose score is the log-odds of "relevant", whatever its activation."""
    options: Any = {"device": device, "activation_fn": torch.nn.Identity()}
    opened = CrossEncoder(str(find_model_folder(model)), **options)
    encoder: Any = opened[0]
    architectures = encoder.model.config.architectures or []
    # If a model has no trained head, transformers creates a random one.
    has_head = any("SequenceClassification" in name for name in architectures)
    if not has_head or opened.num_labels != 1:
        raise ValueError(
            f"{model} ({', '.join(architectures)}, {opened.num_labels} labels) is not a "
            "cross-encoder with one label, such as cross-encoder/ms-marco-MiniLM-L6-v2."
        )
    return opened
