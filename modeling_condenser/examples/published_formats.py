"""Training data in two published layouts: DPR's JSON and the STS benchmark's own files.

Both are read as they are published; see `formats.py` for what an example is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from modeling_condenser.collection.text_files import read_lines

from .data_files import DataSource, Record
from .formats import BLANK, NO_NEGATIVE, ExampleReader
from .stored_examples import Example

NO_POSITIVE = "questions without a positive passage"
_STSB_FIELDS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")


def read_dpr(records: Iterator[Record], reader: ExampleReader, *, least: int) -> Iterator[Example]:
    """Read DPR's retriever training data (Karpukhin et al. 2020, section 4.2).

    An entry is `question`, `positive_ctxs`, `negative_ctxs` and `hard_negative_ctxs`, the latter
    three lists of `title` and `text`. As DPR does, the first positive is taken, negatives are the
    hard ones (BM25's, or mined), and other negatives only where there is no hard one.

    Args:
        records: the entries of the array.
        reader: holds the contract, and counts entries that are left out.
        least: 0 to keep questions without negatives, 1 to leave them out.

    Raises:
        ValueError: an entry that is laid out otherwise; the message names file and line.
    """
    for place, entry in records:
        question = entry.get("question")
        if not isinstance(question, str):
            raise ValueError(
                f"{place}: 'question' is {question!r:.60}, expected text, beside positive_ctxs and "
                f"hard_negative_ctxs; there is {', '.join(entry)[:200]}: the data is not DPR's"
            )
        positives = _contexts(entry, "positive_ctxs", place, reader)
        if not positives:
            reader.left_out[NO_POSITIVE] += 1
            continue
        if not question.strip() or not positives[0].strip():
            reader.left_out[BLANK] += 1
            continue
        negatives = _contexts(entry, "hard_negative_ctxs", place, reader, required=False)
        negatives = negatives or _contexts(entry, "negative_ctxs", place, reader, required=False)
        kept = reader.distinct(negatives, positives[0])
        if len(kept) < least:
            reader.left_out[NO_NEGATIVE] += 1
            continue
        yield {
            "query": reader.contract.query(question),
            "positive": positives[0],
            "negatives": [negatives[i] for i in kept],
        }


def _contexts(
    entry: Mapping[str, Any], name: str, place: str, reader: ExampleReader, *, required: bool = True
) -> list[str]:
    """The passages of one of an entry's lists, as they are encoded."""
    contexts = entry.get(name, None if required else [])
    if not isinstance(contexts, list):
        raise ValueError(
            f"{place}: {name!r} is {contexts!r:.60}, expected a list of passages, as "
            '[{"title": ..., "text": ...}]: mend the entry'
        )
    texts = []
    for context in contexts:
        title, text = ("", None)
        if isinstance(context, dict):
            title, text = context.get("title") or "", context.get("text")
        if not isinstance(title, str) or not isinstance(text, str):
            raise ValueError(
                f"{place}: {name!r} holds {context!r:.60}, expected passages of title and text: "
                "mend the entry"
            )
        texts.append(reader.contract.passage(title, text))
    return texts


def read_stsb(source: DataSource, reader: ExampleReader) -> Iterator[Example]:
    """Read the STS benchmark's own files, such as sts-train.csv (Cer et al. 2017).

    They are tables without header between tabs, whatever their ending; quotes are part of the text,
    and lines may go on with licences behind the two sentences.

    Raises:
        ValueError: a line that is laid out otherwise.
    """
    if source.table is not None:
        raise ValueError(
            f"{source.name} is a Hub data set, but format stsb is for the benchmark's own files: "
            "say format: graded_pairs, and map its columns."
        )
    for file in source.files:
        for number, line in read_lines(file):
            place, fields = f"{file}:{number}", line.split("\t")
            if len(fields) < len(_STSB_FIELDS):
                raise ValueError(
                    f"{place}: {len(fields)} fields between tabs, expected "
                    f"{', '.join(_STSB_FIELDS)}: mend the line; a file with the header "
                    "sentence1,sentence2,score has format graded_pairs"
                )
            score, first, second = fields[4:7]
            example = reader.graded(first, second, score, place)
            if example is not None:
                yield example
