"""Loads the training data of a recipe, as a data set with the columns that the loss reads.

Rows of texts, or the judged queries of a collection, become examples. An example is a query with
its positives and negatives, and for distillation a cross-encoder's scores; or two sentences with a
score. The texts include the prompts. Rows that cannot be used are left out and counted.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import glob
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value, concatenate_datasets

from modeling_condenser.collection.collection import (
    Collection,
    PassageIndex,
    fingerprint_passages,
    plain_text,
    titles_and_texts,
)
from modeling_condenser.collection.conversion import TABLE_ENDINGS, read_any_rows
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.rows import (
    file_states,
    fingerprint_rows,
    load_hub_rows,
    plain_ending,
    read_table,
    store_rows,
)
from modeling_condenser.files.hub import split_revision
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.pretraining.counter_random import EpochKeys

from .hard_negatives import KnownPassages, judged_positives, read_hard_negatives
from .recipe import FinetuningRecipe

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
Example = dict[str, Any]

_JSON = "json"  # the column that holds a row of a file
_LABEL_COLUMNS = {"query": "question", "positive": "passage"}  # those of `condenser collect`
_TEACHER_SCORES = {"positive_teacher_scores", "negative_teacher_scores"}
_BLANK, _NO_NEGATIVE = "rows with a blank text", "rows without a negative"

_TEXT = Value("string")
_BOOKKEEPING = {"left_out": _TEXT, "row_number": Value("int64")}  # the reason; the example's number
_PAIR = {"sentence1": _TEXT, "sentence2": _TEXT, "label": Value("float64"), **_BOOKKEEPING}


def _ranking_features(passage: str) -> dict[str, Any]:
    """The columns of examples whose passages are texts ("string") or rows ("int64").

    `scores` are of the positives, then of the negatives.
    """
    passages = List(Value(passage))
    columns = {"query": _TEXT, "positives": passages, "negatives": passages}
    return {**columns, "scores": List(Value("float32")), **_BOOKKEEPING}


class TrainingData(NamedTuple):
    """The examples of a recipe, the transform that draws passages, and facts for the record.

    The columns of `examples` are `query`, `positive`, `negative_1`, ... and possibly `label`, see
    `DrawnPassages`; or `sentence1`, `sentence2`, `label`.
    """

    examples: Dataset
    drawn: "DrawnPassages | None"
    facts: dict[str, Any]


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load the training data of a recipe; `seed` is for drawing passages."""
    passages = None
    facts: dict[str, Any] = {}
    if recipe.collection is None:
        table, left_out = _text_examples(recipe, contract)
    else:
        collection = load_collection(recipe.collection, split=recipe.split or "train")
        passages = collection.passages
        facts["passages_fingerprint"] = fingerprint_passages(passages)
        table, left_out = _collection_examples(recipe, contract, collection)
    source = str(recipe.data or recipe.negatives or recipe.collection)
    if left_out:
        facts["left_out"] = dict(left_out)
        logger.warning("%s: left out %s; %d examples remain.", source, dict(left_out), len(table))
    if not len(table):
        raise ValueError(f"{source} contains no training example (left out: {dict(left_out)}).")
    n_negatives = _count_negatives(recipe, table, source)
    if recipe.train_size is not None:  # the subsets of one seed are nested
        if recipe.train_size > len(table):
            raise ValueError(
                f"train_size is {recipe.train_size}, but {source} has {len(table)} training "
                "examples."
            )
        order = np.random.default_rng(recipe.subset_seed).permutation(len(table))
        table = table.select(np.sort(order[: recipe.train_size]))
    facts["rows_sha256"] = fingerprint_rows(table)
    facts |= {"n_negatives": n_negatives, "n_examples": len(table)}
    if recipe.objective == "mse_cosine":
        return TrainingData(table.remove_columns(list(_BOOKKEEPING)), None, facts)
    drawn = DrawnPassages(n_negatives, seed, contract=contract, passages=passages)
    if passages is not None and recipe.objective == "contrastive":
        drawn.n_positives = pc.max(pc.list_value_length(table.data.column("positives"))).as_py()
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _count_negatives(recipe: FinetuningRecipe, table: Dataset, source: str) -> int:
    """Return with how many negatives each example is trained."""
    if recipe.objective == "triplet":
        return 1
    if recipe.objective == "mse_cosine":
        return 0
    if recipe.n_negatives is not None:
        return recipe.n_negatives
    lengths = pc.list_value_length(table.data.column("negatives")).drop_null()  # null if left out
    numbers = lengths.unique().to_pylist()
    if len(numbers) > 1:
        raise ValueError(
            f"The examples of {source} have from {min(numbers)} to {max(numbers)} negatives: set "
            "n_negatives, the number to train with (drawn anew in each epoch)."
        )
    return numbers[0]


def _text_examples(
    recipe: FinetuningRecipe, contract: EncodingContract
) -> tuple[Dataset, Counter[str]]:
    """Make examples of rows that contain the texts; also count what was left out."""
    make: Callable[..., Example] = make_example
    features = _ranking_features("string")
    if recipe.objective == "mse_cosine":
        make, features = make_graded_pair, _PAIR
    columns = recipe.columns if isinstance(recipe.columns, Mapping) else {}

    def convert(row: Row, number: int) -> Example:
        row = json.loads(row[_JSON]) if row.keys() == {_JSON} else row
        labels = {ours: row[name] for ours, name in _LABEL_COLUMNS.items() if name in row}
        try:
            renamed = {ours: row[name] for ours, name in columns.items()}
            example = make({**labels, **row, **renamed}, recipe, contract)
        except KeyError as error:
            raise ValueError(
                f"{recipe.data} has no column {error}; its columns are {', '.join(row)}. Map our "
                "names to these, as columns: {query: question}, or list all columns of a .tsv or "
                ".csv file without a header."
            ) from error
        except ValueError as error:
            raise ValueError(f"{recipe.data}, row {number + 1}: {error}") from error
        return {**dict.fromkeys(features), **example, "row_number": number}

    tables = []
    for rows in open_rows(recipe, contract.title_separator):
        table = rows.map(
            convert,
            with_indices=True,
            remove_columns=rows.column_names,
            features=Features(features),
            load_from_cache_file=False,  # the cache does not see a change of this code
        )
        tables.append(table)
    table = concatenate_datasets(tables)
    reasons = table.data.column("left_out").to_pandas()
    left_out = Counter[str](reasons.dropna().tolist())
    return (table.select(np.flatnonzero(reasons.isna())) if left_out else table), left_out


def open_rows(recipe: FinetuningRecipe, title_separator: str = " ") -> list[Dataset]:
    """Open the rows of each of a recipe's files, or of its Hub data set."""
    names = [recipe.data] if isinstance(recipe.data, str) else recipe.data or []
    tables: list[Dataset] = []
    for name in names:
        files = [name] if Path(name).is_file() else sorted(glob(name))
        if not files and (len(names) > 1 or plain_ending(Path(name)) in TABLE_ENDINGS):
            raise FileNotFoundError(f"There is no file {name!r}.")
        tables += [_open_file(file, recipe, title_separator) for file in files]
    if tables and (recipe.split or recipe.data_name):
        raise ValueError(f"{recipe.data} is of files: leave out split and data_name.")
    if not tables and isinstance(recipe.columns, list):
        raise ValueError(
            f"columns is a list, which is for files without a header, but {recipe.data} is a Hub "
            "data set: map our names to its columns, as in {query: question}."
        )
    if not tables:
        name, revision = split_revision(names[0])
        split = recipe.split or "train"
        tables = [load_hub_rows(name, recipe.data_name, split=split, revision=revision)]
    return tables


def _open_file(file: str, recipe: FinetuningRecipe, title_separator: str) -> Dataset:
    """Store the rows of a file, each as JSON: values stay as they are, whatever other rows have."""
    path, names = Path(file), recipe.columns if isinstance(recipe.columns, list) else None

    def read() -> Iterator[Row]:
        rows: Iterable[Row]
        if names is None:
            rows = read_any_rows(path)
        else:
            is_csv = plain_ending(path) == ".csv"
            rows = read_table(path, names, delimiter="," if is_csv else "\t", quoted=is_csv)
        is_empty = True
        for row in rows:
            is_empty = False
            content = read_dpr(row, title_separator) if "positive_ctxs" in row else row
            yield {_JSON: json.dumps(content, default=str)}
        if is_empty:
            raise ValueError(f"{file} has no rows.")

    identity = ["training rows", str(names), title_separator]
    return store_rows(read, {_JSON: _TEXT}, identity=[*identity, *file_states([path])])


def make_example(row: Row, recipe: FinetuningRecipe, contract: EncodingContract) -> Example:
    """Make an example of a query with passages."""
    query, positive = row["query"] or "", row["positive"] or ""
    negatives = [] if recipe.n_negatives == 0 else _negatives_of(row)
    for name, text in (
        ("query", query),
        ("positive", positive),
        *(("negative", each) for each in negatives),
    ):
        if not isinstance(text, str | None):
            raise ValueError(f"{name} is {text!r:.60}, expected text.")
    if not query.strip() or not positive.strip():
        return {"left_out": _BLANK}
    scores = row["scores"] if recipe.is_distilled else [None] * (1 + len(negatives))
    if not isinstance(scores, list) or (recipe.is_distilled and None in scores):
        raise ValueError(f"scores are {scores!r:.60}, expected a list of numbers.")
    if len(scores) != 1 + len(negatives):
        raise ValueError(f"{len(scores)} scores for {1 + len(negatives)} passages.")
    useless = {"", plain_text(query), plain_text(positive)}
    kept, kept_scores = [], scores[:1]
    for negative, score in zip(negatives, scores[1:], strict=True):
        if plain_text(negative or "") not in useless:
            kept.append(contract.passage("", negative))
            kept_scores.append(score)
    if not kept and (negatives or recipe.needs_negatives):
        return {"left_out": _NO_NEGATIVE}
    return {
        "query": contract.query(query),
        "positives": [contract.passage("", positive)],
        "negatives": kept,
        "scores": kept_scores if recipe.is_distilled else None,
    }


def _negatives_of(row: Row) -> list[str]:
    """The list `negatives`, or `negative`, or `negative_1`, ...; empty if there are none."""
    negatives = row.get("negatives")
    if negatives is not None:
        if not isinstance(negatives, str | list):
            raise ValueError(f"negatives are {negatives!r:.60}, expected a list of texts.")
        return [negatives] if isinstance(negatives, str) else negatives
    names = ["negative"]
    if "negative" not in row:
        names = list(takewhile(row.__contains__, (f"negative_{n}" for n in count(1))))
    return [row[name] for name in names if row.get(name)]


def read_dpr(entry: Row, separator: str) -> Row:
    """Read an entry of DPR's JSON as a row; passages begin with their titles.

    As in DPR (Karpukhin et al. 2020, section 4.2), only the first positive is used, and other
    negatives only if there are no hard ones.
    """
    negatives = entry.get("hard_negative_ctxs") or entry.get("negative_ctxs") or []
    contexts = [*entry["positive_ctxs"][:1], *negatives]
    texts = []
    for context in contexts:
        title, text = context.get("title"), context["text"]
        texts.append(f"{title}{separator}{text}" if title else text)
    if not entry["positive_ctxs"]:
        texts = [""]
    return {"query": entry["question"], "positive": texts[0], "negatives": texts[1:]}


def make_graded_pair(row: Row, recipe: FinetuningRecipe, contract: EncodingContract) -> Example:
    """Make an example of two sentences; both are encoded as passages, as in the evaluation."""
    texts = [row["sentence1"] or "", row["sentence2"] or ""]
    low, high = recipe.score_range or (0.0, 1.0)
    try:
        score = float(row["score"])
    except TypeError as error:
        raise ValueError(f"score is {row['score']!r:.60}, expected a number.") from error
    if not low <= score <= high:
        raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
    if not all(text.strip() for text in texts):
        return {"left_out": _BLANK}
    first, second = (contract.passage("", text) for text in texts)
    return {"sentence1": first, "sentence2": second, "label": (score - low) / (high - low)}


def _collection_examples(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection
) -> tuple[Dataset, Counter[str]]:
    """Make an example of each judged query; also count what was left out.

    Passages are given by their rows and looked up when a batch needs them, so that a negative of a
    thousand queries is stored once. Negatives that are known to be none (`KnownPassages`) are
    dropped. Positives are the judged ones, or for scores those of the file.
    """
    index, judged = PassageIndex(collection.passages), judged_positives(collection)
    known, left_out = KnownPassages(collection, index), Counter[str]()
    names = ("query", "positives", "negatives", "scores")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    lines: Iterable[dict[str, Any]] = ({"query_id": name, "negative_ids": []} for name in judged)
    if recipe.negatives is not None:
        lines = read_hard_negatives(Path(recipe.negatives))
    unread = set(judged)
    for line in lines:
        query_id, negatives = line["query_id"], line["negative_ids"]
        if query_id not in collection.queries:
            left_out["lines of queries that are not in the split"] += 1
            continue
        if recipe.is_distilled and not line.keys() >= _TEACHER_SCORES:
            raise ValueError(
                f"objective {recipe.objective} needs a cross-encoder's scores, but the file has "
                "none: mine with cross_encoder, or use objective contrastive."
            )
        positives = judged.get(query_id)  # labels may be newer than the file
        if recipe.is_distilled or not positives:
            positives = line.get("positive_ids") or positives
        unread.discard(query_id)
        if not positives:
            left_out["lines of queries without a positive"] += 1
            continue
        rows, kept = index.rows(negatives), []
        if negatives:  # else the texts of all passages need not be hashed
            known_ids, known_contents = known.find(query_id, positives)
        for place, (name, row) in enumerate(zip(negatives, rows, strict=True)):
            if name not in known_ids and index.content[row] not in known_contents:
                kept.append(place)
        if not kept and recipe.negatives is not None:
            left_out[_NO_NEGATIVE] += 1
            continue
        scores = None
        if recipe.is_distilled:
            others = line["negative_teacher_scores"]
            scores = [*line["positive_teacher_scores"], *(others[place] for place in kept)]
        if not collection.queries[query_id].strip():
            left_out[_BLANK] += 1
            continue
        columns["query"].append(contract.query(collection.queries[query_id]))
        columns["positives"].append(index.rows(positives))
        columns["negatives"].append(rows[kept])
        columns["scores"].append(scores)
    if unread:
        left_out["judged queries without a line in negatives"] = len(unread)
    n_examples = len(columns["query"])
    columns |= {"left_out": [None] * n_examples, "row_number": list(range(n_examples))}
    return Dataset.from_dict(columns, features=Features(_ranking_features("int64"))), left_out


def passage_columns(n_negatives: int) -> list[str]:
    """Return the names of the columns of a query's passages."""
    return ["positive", *(f"negative_{n}" for n in range(1, n_negatives + 1))]


class DrawnPassages(EpochKeys):
    """Draws a positive and the negatives of each query in an epoch; a transform of a `Dataset`.

    A query with several positives, such as all passages of a file, is one example, as in Tevatron
    (Gao et al. 2022) and DPR, which takes the first of them. The draw depends only on the seed, the
    epoch and the number of the example, so data loader workers, batch sizes and restarts do not
    change it. Negatives of an example that has fewer than `n_negatives` are repeated.

    With `passages`, the examples contain rows of passages, which are written as in `contract`.

    The column `label` has the scores of the drawn passages. Or, if `n_positives`, the greatest
    number of a query, is set to more than 1: the rows of the drawn passages and then those of all
    positives, repeated to this number, so that the loss can mask the positives of a query that are
    drawn for others.
    """

    def __init__(
        self,
        n_negatives: int,
        seed: int,
        *,
        contract: EncodingContract,
        passages: Dataset | None = None,
        n_positives: int = 1,
    ):
        super().__init__(seed)
        self.n_negatives, self.n_positives = n_negatives, n_positives
        self.contract, self.passages = contract, passages

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Make the columns `query`, `positive`, `negative_1`, ..., and possibly `label`."""
        drawn, labels = [], []
        keys = self.keys(rows["row_number"]).tolist()
        columns = (rows[name] for name in ("positives", "negatives", "scores"))
        for positives, negatives, scores, key in zip(*columns, keys, strict=True):
            draw = np.random.default_rng(key)
            order = draw.permutation(len(negatives))
            of_negatives = len(positives) + np.sort(np.resize(order, self.n_negatives))
            places = [draw.integers(len(positives)), *of_negatives]
            chosen = [[*positives, *negatives][place] for place in places]
            drawn.append(chosen)
            if scores:
                labels.append([scores[place] for place in places])
            elif self.n_positives > 1:
                labels.append([*chosen, *np.resize(positives, self.n_positives).tolist()])
        table = np.array(drawn, dtype=object)  # (B, 1 + negatives)
        if self.passages is not None:
            pairs = titles_and_texts(self.passages, table.ravel())
            texts = [self.contract.passage(title, text) for title, text in pairs]
            table = np.array(texts, dtype=object).reshape(table.shape)
        names = passage_columns(self.n_negatives)
        made = {"query": rows["query"], **dict(zip(names, table.T.tolist(), strict=True))}
        return {**made, "label": labels} if labels else made
