"""Evaluate systems on tasks of MTEB (`mteb`, version 2), by its protocols.

<output_dir>/mteb/results/       the results in MTEB's format
<output_dir>/mteb/embeddings/    vectors and indices, for each task and system

An encoder is an `EncoderProtocol`, which all of MTEB's tasks can use. Every system is a
`SearchProtocol`, which retrieval tasks use: it searches as in `condenser evaluate`.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, Features, Value

from modeling_condenser.collection.passages import COLUMNS
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import EvaluationResult, add_result, hub_name
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import (
    System,
    SystemLike,
    as_folder,
    list_systems,
    open_searcher,
    parse_system,
    parse_systems,
)
from modeling_condenser.runs.progress import show_bars
from modeling_condenser.runs.recipe import fill

logger = logging.getLogger(__name__)

_MEASURES = {"nDCG@10": "ndcg_at_10", "MRR@10": "mrr_at_10", "R@100": "recall_at_100"}
_PASSAGES = Features(dict.fromkeys(COLUMNS, Value("string")))


@dataclass(frozen=True)
class MtebRecipe:
    """The fields of an evaluation on MTEB.

    Attributes:
        systems: encoders, bm25, or hybrid:ENCODER, with settings as for collections.
        mteb: tasks such as SciFact, or benchmarks such as "MTEB(eng, v2)".
        output_dir: folder for results and embeddings.
        card: also put the retrieval results on the model cards of the local exports.
    """

    systems: list[str]
    mteb: list[Any] = field(metadata={"words": "many"})
    output_dir: str = "runs/evaluation"
    card: bool = False


def evaluate_mteb(
    systems: SystemLike | Sequence[SystemLike],
    tasks: Any,
    *,
    progress: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate systems on tasks of MTEB; a task that a system has finished is not repeated.

    Args:
        systems: see `MtebRecipe`.
        tasks: names of tasks or benchmarks, or tasks (`mteb.AbsTask`) of your own.
        progress: show bars.
        **settings: output_dir, card, and fields of `SearchSettings`.

    Returns:
        Name of a system -> its `mteb.results.ModelResult`.

    Raises:
        ValueError: mteb is not installed, a task is unknown, or a system cannot do it. Nothing was
            encoded.
    """
    try:
        import mteb
    except ModuleNotFoundError as error:
        hint = 'pip install -c constraints.txt -e ".[mteb]"'
        raise ValueError(f"mteb is not installed: {hint}") from error
    named = tasks if isinstance(tasks, str) else list(tasks)
    settings |= {"systems": list_systems(systems), "mteb": named}
    recipe, search = fill(settings, MtebRecipe, SearchSettings)
    parsed = parse_systems(recipe.systems, search)
    found = [task for name in recipe.mteb for task in _find_tasks(name)]
    searchers = [s.name for s in parsed if s.kind != "encoder" or s.is_quantised]
    for task in (task.metadata for task in found):
        wrong = searchers if task.type != "Retrieval" else []
        if wrong or task.modalities != ["text"]:
            raise ValueError(
                f"{(wrong or recipe.systems)[0]} cannot do the task {task.name} ({task.type} of"
                f" {', '.join(task.modalities)}): encoders do tasks of text; bm25, hybrid systems"
                " and quantised vectors only those of the type Retrieval."
            )
    cache = mteb.ResultCache(Path(recipe.output_dir) / "mteb")
    results = {}
    for system in parsed:
        model = mteb_model(system, output_dir=recipe.output_dir, search=search)
        how: Any = {"cache": cache, "co2_tracker": False, "show_progress_bar": progress}
        with show_bars(progress):
            results[system.name] = mteb.evaluate(model, found, **how)
        if recipe.card and system.is_export and search.is_exact:
            _report_on_card(model, results[system.name], found)
    return results


def format_results(results: Mapping[str, Any]) -> str:
    """A table of the main scores: a row for each task, a column for each system."""
    scores = {
        system: {task.task_name: task.get_score() for task in result.task_results}
        for system, result in results.items()
    }
    return pd.DataFrame(scores).to_string(float_format="{:.4f}".format)


def _find_tasks(name: Any) -> list[Any]:
    """The task, or the tasks of the benchmark, with this name; a task is returned as it is."""
    import mteb

    if not isinstance(name, str):
        return [name]
    try:
        return [mteb.get_task(name)]
    except KeyError as error:
        if name in {benchmark.name for benchmark in mteb.get_benchmarks()}:
            return list(mteb.get_benchmark(name).tasks)
        raise ValueError(
            f"MTEB has no task or benchmark {name!r} ({error.args[0].removeprefix('KeyError: ')})."
        ) from None


def _report_on_card(model: "MtebSearcher", result: Any, tasks: Sequence[Any]) -> None:
    """Put the retrieval results that were just computed on the model card of an export."""
    folder = Path(model.system.model)
    named = {task.metadata.name: task for task in tasks}
    computed = {task.task_name: task for task in result.task_results}
    searched = {name for name, _, _ in model.n_queries}
    retrieval = {name for name, task in named.items() if task.metadata.type == "Retrieval"}
    if unknown := sorted(retrieval - searched):
        logger.warning(
            "%s is not put on the card, because an earlier call finished it: choose another "
            "output_dir to compute it again.",
            ", ".join(unknown),
        )
    for (name, subset, split), n_queries in model.n_queries.items():
        [scores] = [own for own in computed[name].scores[split] if own["hf_subset"] == subset]
        data = named[name].metadata.dataset
        own = EvaluationResult(
            collection=name if subset == "default" else f"{name} {subset}",
            split=split,
            depth=max(named[name].k_values),
            n_queries=n_queries,
            values={measure: scores[theirs] for measure, theirs in _MEASURES.items()},
            source=hub_name(data["path"]),
            revision=data["revision"],
            benchmark="MTEB",
            command=f"condenser evaluate OWNER/NAME --mteb {name}",
            versions={"mteb": str(computed[name].mteb_version)},
        )
        add_result(folder, own)
    write_card(folder)


def mteb_model(
    system: SystemLike,
    *,
    output_dir: str | Path = "runs/evaluation",
    search: SearchSettings | None = None,
) -> "MtebSearcher":
    """Open a system as a model of `mteb`, for `mteb.evaluate(model, tasks)`.

    Prompts, title separator, lengths, pooling and similarity are those of the encoding contract;
    MTEB's prompts are not used.

    Args:
        system: an encoder, bm25 or hybrid:ENCODER; see `parse_system`.
        output_dir: retrieval tasks store embeddings in its subfolder `mteb/embeddings`.
        search: how a dense system searches; exactly by default.
    """
    search = search or SearchSettings()
    opened = parse_system(system).completed(search)
    if opened.kind == "run":
        raise ValueError(f"{opened.model} is a run file, which cannot answer MTEB's queries.")
    kind = MtebEncoder if opened.kind == "encoder" else MtebSearcher
    return kind(opened, search, Path(output_dir) / "mteb" / "embeddings")


class MtebSearcher:
    """A system as mteb's `SearchProtocol`.

    Attributes:
        mteb_model_meta: its name, and as revision a fingerprint of everything that its results
            depend on.
        n_queries: (task, subset, split) -> number of queries of the searches so far.
    """

    def __init__(self, system: System, search: SearchSettings, folder: Path) -> None:
        from mteb.models.model_meta import ModelMeta

        self.system, self.settings, self._folder = system, search, folder
        self._corpus = Dataset.from_dict({"id": [], "text": []})
        self.n_queries: dict[tuple[str, str, str], int] = {}
        settings = {**asdict(search), "devices": None, "shard_size": None}
        identity = json.dumps([system.fingerprint, settings], sort_keys=True)
        revision = hashlib.sha256(identity.encode()).hexdigest()[:40]
        on_hub = None if Path(system.model).exists() else hub_name(system.model)
        name = on_hub if on_hub and not system.settings else f"condenser/{system.name}"
        known = {"name": name, "revision": revision, "modalities": ["text"]}
        self.mteb_model_meta = ModelMeta.create_empty(known)

    def index(self, corpus: Dataset, **_: Any) -> None:
        """Keep the corpus, columns `id`, `text` and perhaps `title`; `search` indexes it."""
        self._corpus = corpus

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Search for queries, columns `id`, `text` and perhaps `instruction`: a run."""
        from mteb._create_dataloaders import create_dataloader  # which mteb's models use
        from mteb.types import PromptType

        if top_ranked is not None:
            raise ValueError(f"{task_metadata.name} is a reranking task: name an encoder.")
        how: Any = {"task_metadata": task_metadata, "prompt_type": PromptType.query}
        texts = [text for batch in create_dataloader(queries, **how) for text in batch["text"]]
        place = "-".join([self.system.encoder.stored.name, task_metadata.name, hf_subset, hf_split])
        folder, columns = self._folder / as_folder(place), self._corpus.column_names
        passages = self._corpus.map(_read_passage, features=_PASSAGES, remove_columns=columns)
        searcher = open_searcher(self.system, passages, folder, settings=self.settings)
        run = searcher.search(dict(zip(queries["id"], texts, strict=True)), depth=top_k)
        self.n_queries[task_metadata.name, hf_subset, hf_split] = len(texts)
        return {query: _separate_ties(run.get(query, {})) for query in queries["id"]}


class MtebEncoder(MtebSearcher):
    """An encoder as mteb's `EncoderProtocol` and `SearchProtocol`."""

    def __init__(self, system: System, search: SearchSettings, folder: Path) -> None:
        from mteb.models.model_meta import ScoringFunction  # without a Euclidean distance

        from modeling_condenser.encoding.encode import local_device

        super().__init__(system, search, folder)
        device = local_device(search.device_list)
        self.retriever = system.without("precision").open(device=device)
        model, contract = self.retriever.model, self.retriever.contract
        model.similarity_fn_name = contract.similarity
        self.similarity, self.similarity_pairwise = model.similarity, model.similarity_pairwise
        names = {"dot": ScoringFunction.DOT_PRODUCT, "cosine": ScoringFunction.COSINE}
        known = {
            "similarity_fn_name": names.get(contract.similarity),
            "embed_dim": self.retriever.dimension,
            "max_tokens": contract.passage_max_length,
        }
        self.mteb_model_meta = self.mteb_model_meta.model_copy(update=known)

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Encode N texts, in batches of mteb: (N, D) float32.

        Texts that are neither queries nor documents are encoded as passages.
        """
        if self.system.is_quantised:
            raise ValueError("precision is for tasks of the type Retrieval only: leave it out.")
        batches = list(inputs)
        texts = [text for batch in batches for text in batch["text"]]
        if prompt_type == "query":
            return self.retriever.encode_queries(texts)
        if prompt_type != "document":
            return self.retriever.encode_passages(texts)
        # mteb puts the title before the text; the contract says what stands between them.
        columns = {
            "title": [t for b in batches for t in b.get("title") or [""] * len(b["text"])],
            "text": [text for batch in batches for text in batch.get("body", batch["text"])],
        }
        return self.retriever.encode_passages(Dataset.from_dict(columns))

    def search(
        self, queries: Dataset, *, top_ranked: Mapping[str, list[str]] | None = None, **options: Any
    ) -> dict[str, dict[str, float]]:
        """Search, or rank the passages of `top_ranked` (query id -> passage ids) by mteb."""
        if top_ranked is None:
            return super().search(queries, **options)
        from mteb.models import SearchEncoderWrapper

        wrapper = SearchEncoderWrapper(self)
        wrapper.index(self._corpus, **options)
        return wrapper.search(queries, top_ranked=top_ranked, **options)


def _read_passage(row: Mapping[str, Any]) -> dict[str, str]:
    return {"_id": row["id"], "title": row.get("title") or "", "text": row["text"]}


def _separate_ties(scores: Mapping[str, float]) -> dict[str, float]:
    """Lower equal scores a little, so that mteb keeps the order of a run, best first.

    Its measures read scores as float32 and order ties by descending id.
    """
    separated, last = {}, np.float32(np.inf)
    for passage, score in scores.items():
        last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
        separated[passage] = float(last)
    return separated
