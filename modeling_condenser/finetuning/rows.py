"""Read rows of labelled data, and turn them into training examples.

An example is a query with its positive and, for some formats, any number of negatives and a
cross-encoder's scores; or two sentences with a score. Its texts include the prompts. A row without
a usable text or negative is left out and counted (`LEFT_OUT`).
"""

import csv
import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from datasets import load_dataset

from modeling_condenser.collection.passages import file_states
from modeling_condenser.collection.text_files import open_text, plain_name, read_lines
from modeling_condenser.hub.contract import EncodingContract

from .recipe import FinetuningRecipe

Example = dict[str, Any]
Fields = Mapping[str, Any]

LEFT_OUT = "left_out"  # why a row is not an example
BLANK = "rows with a blank text"
NO_NEGATIVE = "rows without a negative"
NO_POSITIVE = "questions without a positive passage"

_STSB_COLUMNS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")
_STSB_RANGE = (0.0, 5.0)
_JSON_CHUNK = 1 << 22  # characters


def open_rows(recipe: FinetuningRecipe) -> tuple[Iterable[Fields], list[str]]:
    """The rows of the files or the Hub data set that a recipe names; and what identifies them."""
    patterns = [recipe.data] if isinstance(recipe.data, str | Path) else recipe.data
    found = [_local_files(str(pattern)) for pattern in patterns]
    if all(found):
        files = list(chain.from_iterable(found))
        return chain.from_iterable(_read_file(file, recipe) for file in files), file_states(files)
    name = str(patterns[found.index([])])
    if len(patterns) > 1:
        raise FileNotFoundError(f"{name} matches no file: correct the path.")
    split = "train" if recipe.format == "id_triples" else recipe.split or "train"
    try:
        table = load_dataset(name, recipe.data_name, split=split, revision=recipe.data_revision)
    except (OSError, ValueError) as error:  # OSError by the Hub; ValueError for a wrong split
        raise FileNotFoundError(
            f"There is no local file {name!r}, and the Hub data set of that name could not be "
            f"loaded ({str(error).splitlines()[0]}): correct data, data_name or split."
        ) from error
    return table, [f"{name}: {table._fingerprint}"]


def _local_files(pattern: str) -> list[Path]:
    if Path(pattern).is_file():
        return [Path(pattern)]
    return list(filter(Path.is_file, map(Path, sorted(glob.glob(pattern, recursive=True)))))


def _read_file(file: Path, recipe: FinetuningRecipe) -> Iterator[Fields]:
    """The rows of a file, which is neither copied nor read as a whole; text stays as it stands."""
    suffix = Path(plain_name(file)).suffix.lower()
    is_table = suffix in (".tsv", ".csv")
    if isinstance(recipe.columns, list | tuple) and not is_table:
        raise ValueError(
            f"{file}: a list of columns is for .tsv and .csv files without a header; map our names "
            "to the data's instead, as columns: {query: question}."
        )
    try:
        if recipe.format == "stsb":  # lines of seven fields, and in some lines licences
            for fields in _split_lines(file, "\t"):
                yield dict(zip(_STSB_COLUMNS, fields, strict=False))
        elif is_table:
            yield from _read_table(file, recipe.columns, "\t" if suffix == ".tsv" else ",")
        elif suffix == ".json" and _is_array(file):
            yield from _read_array(file)
        elif suffix in (".json", ".jsonl"):
            yield from (json.loads(line) for _, line in read_lines(file))
        elif suffix == ".parquet":
            yield from load_dataset("parquet", data_files=str(file), split="train", streaming=True)
        else:
            raise ValueError("expected a file of type .jsonl, .json, .tsv, .csv or .parquet.")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _read_table(file: Path, columns: Any, separator: str) -> Iterator[Fields]:
    rows = _split_lines(file, separator)
    names = list(columns) if isinstance(columns, list | tuple) else next(rows, [])
    for fields in rows:
        if len(fields) != len(names):
            raise ValueError(f"a row has {len(fields)} fields, expected {', '.join(names)}.")
        yield dict(zip(names, fields, strict=True))


def _split_lines(file: Path, separator: str) -> Iterator[list[str]]:
    """The fields of each line; only a comma has quotes around it."""
    if separator == "\t":
        yield from (line.split("\t") for _, line in read_lines(file))
        return
    csv.field_size_limit(2**31 - 1)
    with open_text(file, newline="") as stream:
        yield from filter(None, csv.reader(stream))


def _is_array(file: Path) -> bool:
    with open_text(file) as stream:
        return stream.read(1 << 12).lstrip().startswith("[")


def _read_array(file: Path) -> Iterator[Fields]:
    """Read the objects of a JSON array one by one: DPR's file for Natural Questions has 8 GB."""
    decoder, separators = json.JSONDecoder(), re.compile(r"[,\s]*")
    with open_text(file) as stream:
        text, place = stream.read(_JSON_CHUNK).lstrip(), 1
        while True:
            place = separators.match(text, place).end()  # type: ignore[union-attr]
            try:
                row, place = decoder.raw_decode(text, place)
                yield row
            except json.JSONDecodeError:
                if text.startswith("]", place):
                    return
                more = stream.read(_JSON_CHUNK)
                if not more:
                    raise
                text, place = text[place:] + more, 0


def make_examples(
    rows: Iterable[Fields], recipe: FinetuningRecipe, make: Callable[[Fields], Example]
) -> Iterator[Example]:
    """Make an example of each row, of which `make` gets the fields by our names."""
    columns = recipe.columns if isinstance(recipe.columns, Mapping) else {}
    for number, row in enumerate(rows, start=1):
        try:
            yield make({**row, **{ours: row[theirs] for ours, theirs in columns.items()}})
        except KeyError as error:
            raise ValueError(
                f"{recipe.data}, row {number}: there is no column {error}; the columns are "
                f"{', '.join(row)}. Map our names to theirs, as columns: {{query: question}}, or "
                "list all columns of a .tsv or .csv file without a header."
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{recipe.data}, row {number}: {error}") from error


def example_maker(
    recipe: FinetuningRecipe, contract: EncodingContract
) -> Callable[[Fields], Example]:
    """The function that makes an example of a row of the recipe's format."""

    def pair(row: Fields) -> Example:
        query, positive = _text(row, "query"), _text(row, "positive")
        if not query.strip() or not positive.strip():
            return {LEFT_OUT: BLANK}
        return {"query": contract.query(query), "positive": contract.passage("", positive)}

    def with_negatives(row: Fields, scores: Sequence[float] | None = None) -> Example:
        """Negatives that are blank or have the text of the positive are dropped."""
        example, negatives = pair(row), _values(row, "negatives", "negative")
        if scores is not None and len(scores) != 1 + len(negatives):
            raise ValueError(f"{len(scores)} scores for {1 + len(negatives)} passages.")
        own = row["positive"].strip()
        kept = [i for i, text in enumerate(negatives) if text.strip() not in ("", own)]
        if LEFT_OUT in example or not kept:
            return {LEFT_OUT: example.get(LEFT_OUT, NO_NEGATIVE)}
        example["negatives"] = [contract.passage("", negatives[i]) for i in kept]
        if scores is not None:
            example["teacher_scores"] = [scores[0], *(scores[1 + i] for i in kept)]
        return example

    def graded_pair(row: Fields) -> Example:
        """Both sentences are encoded as passages are, as in the evaluation of graded pairs."""
        first, second = _text(row, "sentence1"), _text(row, "sentence2")
        low, high = recipe.score_range or (_STSB_RANGE if recipe.format == "stsb" else (0.0, 1.0))
        score = float(row["score"])
        if not low <= score <= high:
            raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
        if not first.strip() or not second.strip():
            return {LEFT_OUT: BLANK}
        return {
            "sentence1": contract.passage("", first),
            "sentence2": contract.passage("", second),
            "label": (score - low) / (high - low),
        }

    def dpr(row: Fields) -> Example:
        """An entry of DPR's retriever training data (Karpukhin et al. 2020, section 4.2).

        As in DPR, the first positive is used; the negatives are the hard ones, and the other ones
        only for a question without hard ones.
        """
        question, positives = _text(row, "question"), row["positive_ctxs"]
        if not positives:
            return {LEFT_OUT: NO_POSITIVE}
        if not question.strip() or not positives[0]["text"].strip():
            return {LEFT_OUT: BLANK}
        negatives = row.get("hard_negative_ctxs") or row.get("negative_ctxs") or []
        own = _context(positives[0], contract)
        texts = [_context(context, contract) for context in negatives if context["text"].strip()]
        kept = [text for text in texts if text != own]
        if not kept and recipe.n_negatives != 0:
            return {LEFT_OUT: NO_NEGATIVE}
        return {"query": contract.query(question), "positive": own, "negatives": kept}

    makers: dict[str, Callable[[Fields], Example]] = {
        "pairs": pair,
        "triples": with_negatives,
        "negatives": with_negatives,
        "scored": lambda row: with_negatives(row, _scores(row)),
        "graded_pairs": graded_pair,
        "stsb": graded_pair,
        "dpr": dpr,
    }
    return makers[str(recipe.format)]


def _context(context: Fields, contract: EncodingContract) -> str:
    return contract.passage(context.get("title") or "", context["text"])


def _text(row: Fields, name: str) -> str:
    if not isinstance(row[name], str):
        raise ValueError(f"{name} is {row[name]!r:.60}, expected text.")
    return row[name]


def _scores(row: Fields) -> list[float]:
    """The scores of the positive and of the negatives.

    A margin is the score of a positive whose negative has 0.
    """
    if row.get("scores") is not None:
        scores = _values(row, "scores", "score")
    elif row.get("margin") is not None:
        scores = [row["margin"], 0.0]
    else:
        scores = [row["positive_score"], *_values(row, "negative_scores", "negative_score")]
    return [float(score) for score in scores]


def _values(row: Fields, plural: str, singular: str) -> list[Any]:
    """The list `plural` (in tables, as JSON); or `singular`; or `singular_1`, `singular_2`, ..."""
    values = row.get(plural)
    if values is not None:
        return json.loads(values) if isinstance(values, str) else values
    numbered = takewhile(row.__contains__, (f"{singular}_{n}" for n in count(1)))
    names = [singular] if row.get(singular) is not None else list(numbered) or [singular]
    return [row[name] for name in names if row[name] not in (None, "")]
