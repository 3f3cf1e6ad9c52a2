"""Systems as models of `mteb` (version 2), by its protocols.

An encoder is an `EncoderProtocol`, which all of MTEB's tasks can use. Every system is a
`SearchProtocol`, which retrieval tasks use: it searches as in `condenser evaluate`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from modeling_condenser.collection.passages import COLUMNS
from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import System, as_folder, open_searcher, parse_system

_PASSAGES = Features(dict.fromkeys(COLUMNS, Value("string")))


def mteb_model(
    system: str | Path | System,
    *,
    output_dir: str | Path = "runs/evaluation",
    search: SearchSettings | None = None,
    progress: bool = True,
) -> "MtebSearcher":
    """Open a system as a model of `mteb`, for `mteb.evaluate(model, tasks)`.

    Prompts, title separator, lengths, pooling and similarity are those of the encoding contract;
    MTEB's prompts are not used.

    Args:
        system: an encoder, bm25 or hybrid:ENCODER; see `parse_system`.
        output_dir: retrieval tasks store embeddings in its subfolder `mteb/embeddings`.
        search: how a dense system searches; exactly by default.
        progress: show bars.
    """
    import_mteb()
    search = search or SearchSettings()
    system = (system if isinstance(system, System) else parse_system(system)).completed(search)
    if system.kind == "run":
        raise ValueError(f"{system.model} is a run file, which cannot answer MTEB's queries.")
    kind = MtebEncoder if system.kind == "encoder" else MtebSearcher
    return kind(system, search, Path(output_dir) / "mteb" / "embeddings", progress=progress)


class MtebSearcher:
    """A system as mteb's `SearchProtocol`.

    Attributes:
        mteb_model_meta: its name, and as revision a fingerprint of all that its results depend on.
        n_queries: (task, subset, split) -> queries of the searches so far.
    """

    def __init__(
        self, system: System, search: SearchSettings, folder: Path, *, progress: bool = True
    ) -> None:
        from mteb.models.model_meta import ModelMeta

        self.system, self.settings, self.progress = system, search, progress
        self._folder, self._corpus = folder, Dataset.from_dict({"id": [], "text": []})
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
        show: Any = {"settings": self.settings, "progress": self.progress}
        searcher = open_searcher(self.system, passages, folder, **show)
        run = searcher.search(dict(zip(queries["id"], texts, strict=True)), depth=top_k)
        self.n_queries[task_metadata.name, hf_subset, hf_split] = len(texts)
        return {query: _separate_ties(run.get(query, {})) for query in queries["id"]}


class MtebEncoder(MtebSearcher):
    """An encoder as mteb's `EncoderProtocol` and `SearchProtocol`."""

    def __init__(self, system: System, search: SearchSettings, *place: Path, **how: Any) -> None:
        from mteb.models.model_meta import ScoringFunction  # without a Euclidean distance

        from modeling_condenser.encoding.encode import local_device

        super().__init__(system, search, *place, **how)
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
        """Encode N texts, in batches of mteb: (N, D) float32; texts of other tasks as passages."""
        if self.system.is_quantised:
            raise ValueError("precision is for tasks of the type Retrieval only: leave it out.")
        batches = list(inputs)
        texts = [text for batch in batches for text in batch["text"]]
        if prompt_type == "query":
            return self.retriever.encode_queries(texts, progress=self.progress)
        if prompt_type != "document":
            return self.retriever.encode_passages(texts, progress=self.progress)
        # mteb puts the title before the text; the contract says what stands between them.
        columns = {
            "title": [t for b in batches for t in b.get("title") or [""] * len(b["text"])],
            "text": [text for batch in batches for text in batch.get("body", batch["text"])],
        }
        return self.retriever.encode_passages(Dataset.from_dict(columns), progress=self.progress)

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


def import_mteb() -> Any:
    """Import mteb, or say how to install it."""
    try:
        import mteb
    except ModuleNotFoundError as error:
        hint = 'pip install -c constraints.txt -e ".[mteb]"'
        raise ValueError(f"mteb is not installed: {hint}") from error
    return mteb
