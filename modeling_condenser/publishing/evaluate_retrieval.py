"""Evaluate this repository's encoder on retrieval collections, and compare with its model card.

    python evaluate_retrieval.py                            every result of the card that is public
    python evaluate_retrieval.py COLLECTION --split test    one collection

COLLECTION is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), a Hub data set in that
layout, or one with the configurations corpus, queries and qrels (or default), as in MTEB; the
judgements may also be in COLLECTION-qrels. The encoding is read from encoding_contract.json, and
the card's figures from evaluation_results.json.

A passage with the id of its query is left out of the ranking, as in BEIR, unless it is judged
relevant to that query. Search is exact. The exit status is 1 if a figure differs from the card in 4
decimals, 2 if something cannot be evaluated. Needs sentence-transformers, datasets and ir-measures;
no remote code.
"""

import argparse
import gzip
import heapq
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import ir_measures
import torch
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer

MEASURES, DEPTH = ["MRR@10", "nDCG@10", "R@100"], 100  # where neither user nor card says
MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
COLLECTION_FILES = ["README.md", "corpus.jsonl*", "queries.jsonl*", "qrels/*"]
QRELS_COLUMNS = ["query-id", "corpus-id", "score"]
OTHER_SPLIT = {"dev": "validation", "validation": "dev"}  # data sets have the one for the other
CHUNK = 4096  # passages that are searched together
MARGIN = 32  # passages beyond the depth, among which ids decide where scores are equal
Encoder = tuple[SentenceTransformer, str]  # and what stands between title and text
Texts = Iterator[tuple[str, str, str]]  # id, title and text
Qrels = dict[str, dict[str, int]]  # query id -> passage id -> grade
Run = dict[str, list[tuple[float, str]]]  # query id -> minus score and passage id, best first


def find_folder(name: str, files: list[str], **kind: Any) -> Path:
    """A local folder, or the downloaded files of a Hub repository."""
    if Path(name).is_dir():
        return Path(name)
    return Path(snapshot_download(name, allow_patterns=files, **kind))


def open_encoder(folder: Path, device: str | None = None) -> Encoder:
    """Open with sentence-transformers, whose modules hold all of the contract but the separator."""
    contract = json.loads((folder / "encoding_contract.json").read_text("utf-8"))
    model = SentenceTransformer(
        str(folder),
        device=device,
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True, "dtype": torch.float32},
    )
    return model, contract["title_separator"]


def read_collection(name: str, split: str) -> tuple[Texts, dict[str, str], Qrels]:
    """Passages, and the queries of a split that have a relevant passage, with their judgements."""
    folder = find_folder(name, COLLECTION_FILES, repo_type="dataset")
    qrels: Qrels = {}
    for query, passage, grade in read_qrels(name, folder, split):
        first = qrels.setdefault(str(query), {}).setdefault(str(passage), int(float(grade)))
        if first != int(float(grade)):
            raise ValueError(f"passage {passage!r} has two grades for query {query!r}")
    qrels = {query: grades for query, grades in qrels.items() if max(grades.values()) > 0}
    questions = read_texts(name, folder, ["queries", "query"], split)
    queries = {query: text for query, _, text in questions if query in qrels}
    if not queries or len(queries) < len(qrels):
        raise ValueError(f"{len(qrels)} queries have a relevant passage, {len(queries)} a text")
    return read_texts(name, folder, ["corpus"], split), queries, qrels


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a folder, which may be compressed and have .gz behind its name."""
    files = (folder / name, folder / f"{name}.gz")
    return next((file for file in files if file.is_file()), None)


def read_lines(file: Path) -> Iterator[str]:
    open_any: Any = gzip.open if file.suffix == ".gz" else open
    with open_any(file, "rt", encoding="utf-8-sig", newline="\n") as lines:
        yield from (line.rstrip("\r\n") for line in lines if line.strip())


def read_texts(name: str, folder: Path, configs: list[str], split: str) -> Texts:
    """Passages or queries, one by one, because a collection may not fit into memory."""
    file = find_file(folder, f"{configs[0]}.jsonl")
    records = map(json.loads, read_lines(file)) if file else load_table(name, configs, split)
    for record in records:
        text_id = record["_id"] if "_id" in record else record["id"]
        yield str(text_id), record.get("title") or "", record["text"]


def load_table(source: str, configs: list[str], split: str) -> Iterable[dict[str, Any]]:
    """A split, or the only split, of the first configuration that exists."""
    known = datasets.get_dataset_config_names(source)
    config = next((config for config in configs if config in known), configs[0])
    splits = datasets.get_dataset_split_names(source, config)
    chosen = [name for name in (split, OTHER_SPLIT.get(split)) if name in splits]
    if not chosen and ("qrels" in configs or len(splits) > 1):
        raise ValueError(f"{config} has no split {split!r}, but {', '.join(splits)}")
    return datasets.load_dataset(source, config, split=(chosen or splits)[0])


def read_qrels(name: str, folder: Path, split: str) -> Iterator[Sequence[Any]]:
    """Query id, passage id and grade of each judgement, of the data set or the one beside it."""
    is_table = find_file(folder, "corpus.jsonl") is None
    if is_table and {"qrels", "default"} & {*datasets.get_dataset_config_names(name)}:
        table = load_table(name, ["default", "qrels"], split)
        return ([row[column] for column in QRELS_COLUMNS] for row in table)
    held = folder / "qrels"
    if not held.is_dir():
        held = find_folder(f"{name.rstrip('/')}-qrels", ["*.tsv*"], repo_type="dataset")
    for chosen in (split, OTHER_SPLIT.get(split)):
        if file := find_file(held, f"{chosen}.tsv"):
            rows = (line.split("\t") for line in read_lines(file))
            return (row for row in rows if row != QRELS_COLUMNS)
    there = ", ".join(sorted(file.name for file in held.glob("*"))) or "nothing"
    raise ValueError(f"{held} has no judgements of the split {split!r}, but {there}")


def search(
    encoder: Encoder,
    passages: Texts,
    queries: dict[str, str],
    depth: int,
    own: frozenset[str] = frozenset(),
) -> Run:
    """The best `depth` passages of each query, ties by id; one chunk of passages at a time.

    `own` are queries whose passage of the same id is left out.
    """
    model, separator = encoder
    asked = model.encode_query([*queries.values()], show_progress_bar=False)  # (Q, H)
    best: Run = {query: [] for query in queries}
    chunks = iter(lambda: list(islice(passages, CHUNK)), [])
    for chunk in datasets.utils.tqdm(chunks, desc=f"{CHUNK} passages each"):
        ids = [passage_id for passage_id, _, _ in chunk]
        texts = [title + separator + text if title else text for _, title, text in chunk]
        vectors = model.encode_document(texts, show_progress_bar=False)  # (P, H)
        # Rounded to float32, so that equal vectors have equal scores.
        scores = model.similarity(asked.astype(float), vectors.astype(float)).float()  # (Q, P)
        top, rows = scores.topk(min(depth + MARGIN, len(ids)))  # (Q, k) both
        for query, minus, found in zip(queries, (-top).tolist(), rows.tolist(), strict=True):
            pairs = zip(minus, (ids[row] for row in found), strict=True)
            costs = (pair for pair in pairs if pair[1] != query or query not in own)
            best[query] = heapq.nsmallest(depth, [*best[query], *costs])
    return best


def measure_run(qrels: Qrels, run: Run, names: Sequence[str]) -> dict[str, float]:
    """Means over all queries. ir_measures sees ranks, since it breaks ties in other ways."""
    ranks = {q: {p: -float(i) for i, (_, p) in enumerate(found)} for q, found in run.items()}
    means = ir_measures.calc_aggregate(map(parse, names), qrels, ranks)
    return {name: means[parse(name)] for name in names}


def parse(name: str) -> ir_measures.Measure:
    return ir_measures.parse_measure(name.replace("R-Prec", "Rprec"))


def is_measure(name: str) -> bool:
    """Whether ir_measures knows it, unlike Hit@k and measures of the user's own."""
    try:
        return parse(name) is not None
    except NameError:
        return False


def plan(wanted: argparse.Namespace, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results to compute, in the card's form: all public ones, or those of a collection."""
    name, split, depth = wanted.collection, wanted.split, wanted.depth
    if name is None:
        return [r for r in results if r["source"] and split in (None, r["split"])]
    own = Path(name).resolve().name
    new = {"collection": own, "source": name, "split": split or "test", "values": {}}
    same = [
        {**result, "source": name}
        for result in results
        if (result["collection"].rpartition("/")[2], result["split"]) == (own, new["split"])
        and depth in (None, result["depth"])
    ]
    return same or [{**new, "depth": depth or DEPTH}]


def evaluate(encoder: Encoder, card: dict[str, Any], wanted: argparse.Namespace) -> dict[str, Any]:
    """Evaluate and print a table; return the figures, and the names of those that differ."""
    source, split, depth, known = (card[key] for key in ("source", "split", "depth", "values"))
    names = wanted.measures or [m for m in known if is_measure(m)] or MEASURES
    passages, queries, qrels = read_collection(source, split)
    own = frozenset(query for query, grades in qrels.items() if grades.get(query, 0) <= 0)
    run = search(encoder, passages, queries, depth, own)
    here = measure_run(qrels, run, names)
    differing = [m for m in here if m in known and round(here[m], 4) != round(known[m], 4)]
    print(f"\n{source} ({split}): {len(queries)} queries, depth {depth}")
    print(f"{'measure':16}{'card':>8}{'here':>8}")
    for name in dict.fromkeys([*here, *known]):
        figures = [f"{column[name]:.4f}" if name in column else "-" for column in (known, here)]
        print(f"{name:16}{figures[0]:>8}{figures[1]:>8}{'  differs' * (name in differing)}")
    return {**card, "card": known, "values": here, "differing": differing}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", nargs="?", help="folder or Hub name; see this script's top")
    parser.add_argument("--split", help="default: test; without a collection, all of the card")
    parser.add_argument("--model", default=str(Path(__file__).absolute().parent))
    parser.add_argument("--revision", help="of a --model on the Hub")
    parser.add_argument("--measures", nargs="+", help="such as MRR@10; default: the card's")
    parser.add_argument("--depth", type=int, help="passages of a query; default: the card's")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--device", help="such as cpu or cuda:1")
    wanted, found = parser.parse_args(), []
    folder = find_folder(wanted.model, MODEL_FILES, revision=wanted.revision)
    file = folder / "evaluation_results.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    tasks = plan(wanted, [result for result in results if not result.get("search")])
    if not tasks:
        parser.error(f"no result in {file} is of a public collection: name a collection")
    encoder = open_encoder(folder, wanted.device)
    for task in tasks:
        try:
            found.append(evaluate(encoder, task, wanted))
        except Exception as error:  # the other collections can still be evaluated
            reason = f"{type(error).__name__}: {error}"
            print(f"error: {task['source']} ({task['split']}): {reason}", file=sys.stderr)
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if differing := [f"{r['collection']}: {name}" for r in found for name in r["differing"]]:
        print(f"These figures are not the card's: {', '.join(differing)}", file=sys.stderr)
        return 1
    return 2 if len(found) < len(tasks) else 0


if __name__ == "__main__":
    sys.exit(main())
