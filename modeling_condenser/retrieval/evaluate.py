"""The evaluation stage: a system and a collection in, a folder with run, index and measures out."""

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from modeling_condenser.collection.beir import (
    CORPUS_FILE,
    QRELS_FOLDER,
    QUERIES_FILE,
    Collection,
    load_collection,
)
from modeling_condenser.pretraining.checkpoints import write_json
from modeling_condenser.publishing.card import ReportedResult, write_card

from .bm25 import Bm25
from .fingerprints import fingerprint_files, retriever_files
from .index import INDEX_FILE, ExactIndex
from .measures import DEFAULT_MEASURES, Evaluation, evaluate_run
from .runs import Run, write_run
from .significance import Comparison, compare

if TYPE_CHECKING:
    from .encoding import Retriever

logger = logging.getLogger(__name__)

BM25 = "bm25"
METRICS_FILE, RUN_FILE, INDEX_FOLDER = "metrics.json", "run.trec", "index"
_IDENTITY_FILE = "identity.json"


@dataclass(frozen=True)
class SystemResult:
    """How one system did on one split of one collection.

    Attributes:
        system: its name.
        collection: name of the collection.
        split: whose queries were judged.
        evaluation: measures, in the mean and per query.
    """

    system: str
    collection: str
    split: str
    evaluation: Evaluation

    def compare_with(self, baseline: "SystemResult", *, seed: int = 0) -> dict[str, Comparison]:
        """Compare with another system on the same queries: measure -> comparison."""
        return {
            measure: compare(values, baseline.evaluation.per_query[measure], seed=seed)
            for measure, values in self.evaluation.per_query.items()
        }


def evaluate_system(
    system: str | Path,
    collection: str | Path,
    out: str | Path,
    *,
    split: str = "test",
    depth: int = 100,
    name: str | None = None,
    progress: bool = True,
) -> SystemResult:
    """Search a collection with a system, and measure its ranking.

    Args:
        system: "bm25", or the folder of a retriever with its encoding contract.
        collection: BEIR folder.
        out: folder for the TREC run, the measures and a retriever's index.
        split: whose queries to search and judge.
        depth: passages to retrieve for a query.
        name: of the system in files and tables; by default made from the folder's.
        progress: whether to show progress bars.

    Returns:
        The measures. If `out` holds them already, of the same files and split, they are read.

    Raises:
        ValueError: `out` holds the evaluation of something else.
        FileNotFoundError: the collection, or the retriever's contract, is missing.
    """
    out, collection = Path(out), Path(collection)
    name = name or system_name(system)
    identity = {"system": name, "collection": collection.name, "split": split, "depth": depth}
    if (out / METRICS_FILE).is_file():
        identity["sha256"] = _fingerprint(system, collection, split)
        return _read_result(out, identity)
    loaded = load_collection(collection, split=split)
    identity["sha256"] = _fingerprint(system, collection, split)
    run = _search(
        system, loaded, out, corpus=collection / CORPUS_FILE, depth=depth, progress=progress
    )
    evaluation = evaluate_run(loaded.qrels, run)
    out.mkdir(parents=True, exist_ok=True)
    write_run(run, out / RUN_FILE, tag="_".join(name.split()))
    write_json(out / METRICS_FILE, {**identity, "evaluation": asdict(evaluation)})
    return SystemResult(name, collection.name, split, evaluation)


def _fingerprint(system: str | Path, collection: Path, split: str) -> str:
    """Identifies what an evaluation's figures depend on."""
    own = [] if str(system) == BM25 else retriever_files(Path(system))
    qrels = Path(QRELS_FOLDER, f"{split}.tsv")
    judged = [collection / name for name in (CORPUS_FILE, QUERIES_FILE, qrels)]
    return fingerprint_files([*own, *judged])


def _search(
    system: str | Path,
    collection: Collection,
    out: Path,
    *,
    corpus: Path,
    depth: int,
    progress: bool,
) -> Run:
    if str(system) == BM25:
        searcher = Bm25(collection.passages, show_progress=progress)
        return searcher.search(collection.queries, depth=depth)
    from .encoding import Retriever

    retriever = Retriever(system)
    index = build_index(
        retriever, collection.passages, out / INDEX_FOLDER, corpus=corpus, progress=progress
    )
    queries = retriever.encode_queries(list(collection.queries.values()), progress=progress)
    return index.search(queries, list(collection.queries), depth=depth)


def build_index(
    retriever: "Retriever",
    passages: Dataset,
    folder: Path,
    *,
    corpus: Path,
    progress: bool = True,
) -> ExactIndex:
    """The exact index of passages, from its folder if it is there, otherwise made and saved.

    Args:
        retriever: encodes the passages.
        passages: columns `_id`, `title`, `text`.
        folder: of the index; made anew if retriever or corpus have changed since.
        corpus: file that the passages were read from.
        progress: whether to show a progress bar.
    """
    identity = {"sha256": fingerprint_files([*retriever_files(retriever.folder), corpus])}
    stored = folder / _IDENTITY_FILE
    if stored.is_file() and json.loads(stored.read_text()) == identity:
        return ExactIndex.load(folder)
    if (folder / INDEX_FILE).is_file():
        logger.info("%s is of another model or corpus: encoding again.", folder)
        shutil.rmtree(folder)
    vectors = retriever.encode_passages(passages, progress=progress)
    index = ExactIndex.from_embeddings(vectors, list(passages["_id"]))
    index.save(folder)
    write_json(stored, identity)
    return index


def system_name(system: str | Path) -> str:
    """The name of a system: a run folder's, for its `model`."""
    folder = Path(system).resolve()
    return folder.parent.name if folder.name == "model" else folder.name


def _read_result(out: Path, identity: dict[str, Any]) -> SystemResult:
    content = json.loads((out / METRICS_FILE).read_text())
    evaluation = content.pop("evaluation")
    if content != identity:
        raise ValueError(
            f"{out} holds an evaluation of {content}, not of {identity}: choose another folder."
        )
    evaluation["unanswerable"] = tuple(evaluation["unanswerable"])
    for part in ("means", "per_query"):  # in the order of the tables, which the file has not
        evaluation[part] = {measure: evaluation[part][measure] for measure in DEFAULT_MEASURES}
    return SystemResult(
        identity["system"], identity["collection"], identity["split"], Evaluation(**evaluation)
    )


def report_on_card(
    model: str | Path,
    result: SystemResult,
    baselines: list[SystemResult],
    *,
    commands: list[str],
) -> None:
    """Put a retriever's results, beside each baseline's, on its model card.

    Args:
        model: the retriever's folder.
        result: its measures.
        baselines: other systems on the same queries.
        commands: that reproduce the figures.
    """
    reported = []
    for baseline in baselines:
        for measure, comparison in result.compare_with(baseline).items():
            reported.append(
                ReportedResult(
                    result.collection,
                    result.split,
                    measure,
                    comparison.mean_system,
                    baseline.system,
                    comparison.mean_baseline,
                    comparison.p_value,
                )
            )
    if not baselines:
        reported = [
            ReportedResult(result.collection, result.split, measure, value)
            for measure, value in result.evaluation.means.items()
        ]
    write_card(Path(model), results=reported, commands=commands)
