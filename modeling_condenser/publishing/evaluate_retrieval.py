"""Evaluate this repository's encoder on retrieval collections, and compare with its model card.

    python evaluate_retrieval.py                            every result of the card that is public
    python evaluate_retrieval.py COLLECTION --split test    one collection

COLLECTION is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), a Hub data set of that
layout, or one with the configurations corpus, queries and qrels (or default), as MTEB has them; the
judgements may also lie in COLLECTION-qrels. How texts become vectors is read from
encoding_contract.json, and the card's figures from evaluation_results.json.

The status is 1 if a figure is not the card's to 4 decimals, 2 if something cannot be evaluated.
Exact search. Needs torch, transformers, datasets, faiss-cpu, ir-measures; runs no remote code.
"""

import argparse
import gzip
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import faiss
import ir_measures
import numpy as np
import torch
from datasets import Dataset, Value, exceptions
from huggingface_hub import snapshot_download
from transformers import AutoModel, AutoTokenizer

UNREADABLE = (OSError, ValueError, StopIteration, exceptions.DatasetsError)
MEASURES, DEPTH = ["MRR@10", "nDCG@10", "R@100"], 100  # where neither user nor card says
IR_NAMES = {"MRR": "RR", "MAP": "AP", "R-Prec": "Rprec"}  # where ir_measures has another name
MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
COLLECTION_FILES = ["README.md", "corpus.jsonl*", "queries.jsonl*", "qrels/*"]
QRELS_FILES, QRELS_COLUMNS = ["*.tsv*", "*.jsonl*"], ["query-id", "corpus-id", "score"]
OTHER_SPLIT = {"dev": "validation", "validation": "dev"}  # data sets have the one for the other
# Texts share batches as in the package, so that vectors are its vectors to the last bit.
WINDOW, SMALLEST_CHUNK, LARGEST_CHUNK = 4096, 256, 8192
MARGIN = 32  # passages that faiss proposes beyond the depth
Qrels = dict[str, dict[str, int]]  # query id -> passage id -> grade
Ranking = list[tuple[float, str]]  # minus score, and id: sorted, the best is first, ties by id
Run = dict[str, Ranking]  # by query id


def find_folder(name: str, files: list[str], **kind: Any) -> Path:
    """A folder as it is, or these files of a Hub repository."""
    if not Path(name).is_dir():
        return Path(snapshot_download(name, allow_patterns=files, **kind))
    if kind.get("revision"):
        raise ValueError(f"{name} is a folder, which has no revisions: drop --revision")
    return Path(name)


class Encoder:
    """Texts in, vectors out, as the contract says. `batch_tokens` count a batch's padding, too."""

    FIELDS = frozenset(
        "pooling similarity title_separator query_prompt passage_prompt query_max_length "
        "passage_max_length token_type_ids".split()
    )

    def __init__(self, folder: Path, device: str | None = None, batch_tokens: int | None = None):
        file = folder / "encoding_contract.json"
        if not file.is_file():
            raise ValueError(f"there is no {file}: fetch the whole repository, or name its --model")
        self.contract = json.loads(file.read_text(encoding="utf-8"))
        if other := self.FIELDS ^ self.contract.keys():
            raise ValueError(f"{file}: {other} missing or unknown: take the script of its revision")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        is_cpu, n_cores = self.device.type == "cpu", os.cpu_count() or 1
        self.batch_tokens = batch_tokens or (2048 if is_cpu else 32_768)
        self.n_workers = n_cores if is_cpu else 1
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # no advice
        model = AutoModel.from_pretrained(folder, trust_remote_code=False, use_safetensors=True)
        self.model = model.eval().to(self.device)

    def encode_queries(self, texts: Iterable[str]) -> np.ndarray:
        """Vectors of N queries, (N, H) float32."""
        prompt = self.contract["query_prompt"]
        return self.encode([prompt + text for text in texts], self.contract["query_max_length"])

    def encode_passages(self, titles: Iterable[str | None], texts: Iterable[str]) -> np.ndarray:
        """Vectors of N passages, (N, H) float32."""
        separator, prompt = self.contract["title_separator"], self.contract["passage_prompt"]
        starts = [f"{prompt}{title}{separator}" if title else prompt for title in titles]
        bodies = [start + text for start, text in zip(starts, texts, strict=True)]
        return self.encode(bodies, self.contract["passage_max_length"])

    def encode(self, texts: Sequence[str], max_length: int) -> np.ndarray:
        """Vectors of N texts as they stand, (N, H) float32."""
        vectors = np.empty((len(texts), self.model.config.hidden_size), dtype=np.float32)
        for first in range(0, len(texts), WINDOW):
            tokens = self.tokenizer(
                texts[first : first + WINDOW],
                truncation=True,
                max_length=max_length,
                return_token_type_ids=self.contract["token_type_ids"],
            )
            lengths = np.array([len(ids) for ids in tokens["input_ids"]])
            batches: list[np.ndarray] = []
            order = np.argsort(-lengths, kind="stable")  # texts of like length share a batch
            while len(order):
                n_rows = max(1, self.batch_tokens // lengths[order[0]])
                batches, order = [*batches, order[:n_rows]], order[n_rows:]
            with ThreadPoolExecutor(self.n_workers) as pool:
                for rows, found in pool.map(partial(self._encode_batch, tokens), batches):
                    vectors[first + rows] = found
        if not np.isfinite(vectors).all():
            raise ValueError("a vector holds NaN or infinity: are the weights damaged?")
        return vectors

    @torch.inference_mode()
    def _encode_batch(self, tokens: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        columns = {name: [column[row] for row in rows] for name, column in tokens.items()}
        batch = self.tokenizer.pad(columns, return_tensors="pt").to(self.device)
        hidden = self.model(**batch).last_hidden_state  # (B, T, H)
        pooled = self._pool(hidden, batch["attention_mask"]).float()  # (B, H)
        if self.contract["similarity"] == "cosine":
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return rows, pooled.cpu().numpy()

    def _pool(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector a text, (B, H), of hidden states (B, T, H)."""
        kept = mask[..., None].to(hidden.dtype)  # (B, T, 1)
        match self.contract["pooling"]:
            case "cls":
                return hidden[torch.arange(len(mask)), mask.argmax(dim=1)]
            case "mean":
                total = (hidden * kept).sum(1, dtype=torch.float32)
                return (total / kept.sum(1, dtype=torch.float32)).to(hidden.dtype)
            case "max":
                return hidden.masked_fill(kept == 0, float("-inf")).amax(dim=1)
        raise ValueError(f"pooling is {self.contract['pooling']!r}, expected cls, mean or max")


def read_collection(name: str, split: str) -> tuple[Dataset, dict[str, str], Qrels]:
    """Passages, the queries of a split that count, and their judgements, known to fit together."""
    folder, configs = find_folder(name, COLLECTION_FILES, repo_type="dataset"), []
    if corpus := find_file(folder, "corpus.jsonl"):
        passages = store(corpus)
        questions = store(find_file(folder, "queries.jsonl") or folder / "queries.jsonl")
    elif "corpus" in (configs := datasets.get_dataset_config_names(name)):
        passages = load_table(name, "corpus", split)
        questions = load_table(name, "query" if "query" in configs else "queries", split)
    else:
        raise ValueError("there is neither corpus.jsonl nor a configuration corpus")
    qrels: Qrels = {}
    for query, passage, grade in read_qrels(name, folder, split, configs):
        if not re.fullmatch(r"-?\d+(\.0*)?", str(grade)):
            raise ValueError(f"{query} {passage}: the grade is {grade!r}, expected a whole number")
        qrels.setdefault(str(query), {})[str(passage)] = int(float(grade))
    texts = dict(zip(map(str, questions["_id"]), questions["text"], strict=True))
    judged = {passage for grades in qrels.values() for passage in grades}
    for table, what, wanted in ((passages, "passages", judged), (questions, "queries", {*qrels})):
        n_ids = len(table.data.column("_id").unique())
        if n_ids < max(1, len(table)):
            raise ValueError(f"{len(table)} {what} have {n_ids} ids, expected one each")
        for batch in table.select_columns(["_id"]).iter(batch_size=65_536):
            wanted.difference_update(map(str, batch["_id"]))
        if wanted:
            raise ValueError(f"{len(wanted)} judged {what} are missing, such as {min(wanted)!r}")
    # No system can score on a query without a relevant passage, so it does not count.
    qrels = {query: grades for query, grades in qrels.items() if max(grades.values()) > 0}
    if not qrels:
        raise ValueError("no passage is judged with a grade above 0")
    return passages, {query: text for query, text in texts.items() if query in qrels}, qrels


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a folder, as it is or with .gz behind its name."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Place and text of each line."""
    open_any: Any = gzip.open if file.suffix == ".gz" else open
    with open_any(file, "rt", encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip("\r\n"):
                yield f"{file}:{number}", line.rstrip("\r\n")


def read_rows(file: Path, state: str) -> Iterator[dict[str, str]]:
    """Passages or queries; parsed here, since readers of tables take some ids for dates."""
    for place, line in read_lines(file):
        try:
            record = json.loads(line)
            key = str(record["_id"]) if type(record["_id"]) is int else record["_id"]
            row = {"_id": key, "title": record.get("title") or "", "text": record["text"]}
            "".join(row.values())  # a TypeError if one is no string
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{place}: expected JSON with strings _id, text: {error!r}") from error
        yield row


def store(file: Path) -> Dataset:
    """The rows of a file, memory-mapped; stored anew if its size or time changes."""
    if next(read_lines(file), None) is None:
        raise ValueError(f"{file} is empty")
    columns = datasets.Features({name: Value("string") for name in ("_id", "title", "text")})
    given = {"file": file, "state": f"{file.stat().st_size} {file.stat().st_mtime_ns}"}
    return Dataset.from_generator(read_rows, features=columns, gen_kwargs=given)


def load_table(source: str, config: str, split: str) -> Dataset:
    """A split of a configuration; of passages and queries also their only one, which is for all."""
    splits = datasets.get_dataset_split_names(source, config)
    chosen = [name for name in (split, OTHER_SPLIT.get(split)) if name in splits]
    if not chosen and (config in ("default", "qrels") or len(splits) > 1):
        raise ValueError(f"{config} has no split {split!r}, but {', '.join(splits)}")
    table = datasets.load_dataset(source, config, split=(chosen or splits)[0])
    if "id" in table.column_names and "_id" not in table.column_names:
        table = table.rename_column("id", "_id")
    needed = QRELS_COLUMNS if config in ("default", "qrels") else ["_id", "text"]
    return table.select_columns([*needed, *{"title"}.intersection(table.column_names)])


def read_qrels(name: str, folder: Path, split: str, configs: list[str]) -> Iterable[Sequence[Any]]:
    """Query id, passage id and grade of each judgement, of the data set or the one beside it."""
    held = folder / "qrels"
    if not held.is_dir() and not {"default", "qrels"} & {*configs}:
        name = f"{name.rstrip('/')}-qrels"
        held = find_folder(name, QRELS_FILES, repo_type="dataset")
        files = [file for pattern in QRELS_FILES for file in held.glob(pattern)]
        configs = [] if files else datasets.get_dataset_config_names(name)
    for chosen in (split, OTHER_SPLIT.get(split)):
        for ending in (".tsv", ".jsonl"):
            if file := find_file(held, f"{chosen}{ending}"):
                return read_judgements(file)
    if config := next((c for c in ("default", "qrels") if c in configs), None):
        table = load_table(name, config, split)
        return ([row[column] for column in QRELS_COLUMNS] for row in table)
    there = ", ".join(sorted(file.name for file in held.glob("*"))) or "nothing"
    raise ValueError(f"{held} has no judgements of the split {split!r}, but {there}")


def read_judgements(file: Path) -> Iterator[list[Any]]:
    """The judgements of a .tsv or .jsonl file."""
    is_json = ".jsonl" in file.suffixes
    for i, (place, line) in enumerate(read_lines(file)):
        fields = [json.loads(line).get(c) for c in QRELS_COLUMNS] if is_json else line.split("\t")
        if len(fields) != 3 or (i == 0 and not is_json and fields != QRELS_COLUMNS):
            raise ValueError(f"{place}: {line!r}, expected {QRELS_COLUMNS}, with tabs and a header")
        if i > 0 or is_json:
            yield fields


def search(encoder: Encoder, passages: Dataset, queries: dict[str, str], depth: int) -> Run:
    """The best `depth` passages of each query; memory holds one chunk of passages at a time."""
    query_vectors = encoder.encode_queries(queries.values())  # (Q, H)
    best: list[Ranking] = [[(np.inf, "")] * depth for _ in queries]  # free places
    far = encoder.contract["similarity"] == "euclidean"
    size = min(LARGEST_CHUNK, max(SMALLEST_CHUNK, -(-len(passages) // 16)))
    for first in datasets.utils.tqdm(range(0, len(passages), size), desc=f"{size} passages each"):
        rows = passages[first : first + size]
        titles = rows.get("title", [""] * len(rows["text"]))
        vectors = encoder.encode_passages(titles, rows["text"])  # (P, H)
        compete(best, query_vectors, vectors, list(map(str, rows["_id"])), far=far)
    return {q: [p for p in row if p[0] < np.inf] for q, row in zip(queries, best, strict=True)}


def compete(best: list[Ranking], queries: Any, passages: Any, ids: list[str], far: bool) -> None:
    """Let passages compete for the places of each query: faiss proposes, float64 decides.

    faiss's scores, in float32, are off by less than `error` (Higham 2002, section 3.1). While a
    passage that was not proposed could have a place, because many nearly tie, more are asked for.
    `far`: the score is minus the squared distance.
    """
    norms, longest = np.linalg.norm(queries, axis=1), np.linalg.norm(passages, axis=1).max()
    sizes = (norms + longest) ** 2 if far else norms * longest
    error = queries.shape[1] * np.finfo(np.float32).eps * sizes.astype(np.float64) + 1e-30  # (Q,)
    metric = faiss.METRIC_L2 if far else faiss.METRIC_INNER_PRODUCT
    waiting, k = np.arange(len(queries)), min(len(best[0]) + MARGIN, len(passages))
    while len(waiting):
        scores, rows = faiss.knn(queries[waiting], passages, k, metric=metric)  # (W, k)
        scores, undecided = (-scores if far else scores), []
        for place, query in enumerate(waiting):
            near = rows[place][scores[place] + error[query] >= -best[query][-1][0]]
            vectors, vector = passages[near].astype(np.float64), queries[query].astype(np.float64)
            exact = (-((vectors - vector) ** 2) if far else vectors * vector).sum(axis=1)
            found = zip((0.0 - exact).tolist(), [ids[row] for row in near], strict=True)
            ranking = sorted([*best[query], *found])[: len(best[query])]
            if k < len(passages) and scores[place, -1] + error[query] >= -ranking[-1][0]:
                undecided.append(query)
            else:
                best[query] = ranking
        waiting, k = np.array(undecided, dtype=int), min(4 * k, len(passages))


def parse_measure(name: str) -> Any:
    """The measure of a name such as MRR@10; with R(rel=2)@10, grades from 2 on are relevant."""
    pattern = r"(MRR|nDCG|R|MAP|R-Prec|P|Success)(\(rel=[1-9]\d*\))?(@[1-9]\d*)?"
    family, rel, cutoff = match.groups() if (match := re.fullmatch(pattern, name)) else [""] * 3
    needs = family in ("R", "P", "Success") and not cutoff
    if not family or needs or (family == "R-Prec" and cutoff) or (family == "nDCG" and rel):
        raise ValueError(
            f"unknown measure {name!r}: expected MRR@k, nDCG@k, R@k, MAP, MAP@k, R-Prec, P@k or "
            "Success@k. Hit@k looks for answers, which the package that made this model does"
        )
    return ir_measures.parse_measure(f"{IR_NAMES.get(family, family)}{rel or ''}{cutoff or ''}")


def measure_run(qrels: Qrels, run: Run, parsed: dict[str, Any]) -> dict[str, float]:
    """Means over all queries. ir_measures sees ranks, since it breaks ties in other ways."""
    ranks = {q: {p: -float(i) for i, (_, p) in enumerate(found)} for q, found in run.items()}
    values = {name: dict.fromkeys(qrels, 0.0) for name in parsed}
    for name, by_query in values.items():
        for metric in ir_measures.iter_calc([parsed[name]], qrels, ranks):
            by_query[metric.query_id] = float(metric.value)
    return {name: fmean(by_query.values()) for name, by_query in values.items()}


def plan(wanted: argparse.Namespace, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What to evaluate, in the form of the card's results: all public ones, or what is named."""
    if (name := wanted.collection) is None:
        for r in (r for r in results if r["source"] is None):
            print(f"{r['collection']} ({r['split']}) is a local collection: give its folder")
        return [r for r in results if r["source"] and wanted.split in (None, r["split"])]
    is_folder, split, depth = Path(name).is_dir(), wanted.split or "test", wanted.depth
    own = Path(name).resolve().name if is_folder else name.rpartition("/")[2]
    results = [r for r in results if r["split"] == split and depth in (None, r["depth"])]
    results = [r for r in results if is_folder or r["source"] in (None, name)]
    results = [r for r in results if r["collection"].rpartition("/")[2] == own]
    new: dict[str, Any] = {"collection": own, "split": split, "depth": depth or DEPTH, "values": {}}
    return [{**result, "source": name} for result in results or [new]]


def evaluate(encoder: Encoder, card: dict[str, Any], wanted: argparse.Namespace) -> dict[str, Any]:
    """Evaluate and print a table; gives the figures, and the names of those that differ."""
    source, split, depth, known = (card[key] for key in ("source", "split", "depth", "values"))
    names = wanted.measures or [m for m in known if not m.startswith("Hit@")] or MEASURES
    parsed = {name: parse_measure(name) for name in names}
    passages, queries, qrels = read_collection(source, split)
    run = search(encoder, passages, queries, depth)
    if wanted.run:
        rows = ((q, p, i, 0.0 - cost) for q in run for i, (cost, p) in enumerate(run[q], start=1))
        lines = [f"{q} Q0 {p} {i} {score!r} evaluate_retrieval\n" for q, p, i, score in rows]
        wanted.run.write_text("".join(lines), encoding="utf-8")
    here = measure_run(qrels, run, parsed)
    differing = [m for m in here if m in known and round(here[m], 4) != round(known[m], 4)]
    print(f"\n{source} ({split}): {len(queries)} queries, {len(passages)} passages, depth {depth}")
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
    parser.add_argument("--run", type=Path, help="TREC file to write, of one collection")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--batch_tokens", type=int, help="changes the last bits of vectors")
    parser.add_argument("--device", help="such as cpu or cuda:1")
    wanted, found, status = parser.parse_args(), [], 0
    try:
        if wanted.depth is not None and wanted.depth < 1:
            raise ValueError(f"--depth is {wanted.depth}, expected at least 1")
        if wanted.collection is None and (wanted.run or wanted.measures or wanted.depth):
            raise ValueError("--run, --measures and --depth need a collection: name one")
        folder = find_folder(wanted.model, MODEL_FILES, revision=wanted.revision)
        file = folder / "evaluation_results.json"
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        if not (tasks := plan(wanted, [r for r in results if not r.get("search")])):
            raise ValueError(f"no result in {file} is of a public collection: name a collection")
        torch.set_num_threads(1)  # for a batch, or its last bits would depend on their number
        encoder = Encoder(folder, wanted.device, wanted.batch_tokens)
    except UNREADABLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for task in tasks:
        try:
            found.append(evaluate(encoder, task, wanted))
        except UNREADABLE as error:
            reason = error.__cause__ if isinstance(error, exceptions.DatasetsError) else error
            print(f"error: {task['source']} ({task['split']}): {reason!r}", file=sys.stderr)
            status = 2
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if differing := [f"{r['collection']}: {name}" for r in found for name in r["differing"]]:
        print(f"These figures are not the card's: {', '.join(differing)}", file=sys.stderr)
    return 1 if differing else status


if __name__ == "__main__":
    sys.exit(main())
