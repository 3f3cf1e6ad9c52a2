"""Retrieval measures as a module of the `evaluate` library: evaluate.load("<this folder>").

Stand-alone, since it travels to the Hub: it needs evaluate, datasets, ir-measures, scipy and regex.
`evaluate` reads the imports below with a regex that sees one module a line.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import ir_measures
import regex  # type: ignore[import-untyped]
from scipy import stats

_DESCRIPTION = """\
Measures of ranked passages and of text similarity, as papers on dense retrieval report them.

"retrieval" (the default): MRR, MRR@k, nDCG, nDCG@k, R@k, MAP, MAP@k, R-Prec, P@k and Success@k by
ir-measures, which is trec_eval's own code but for MRR@k. A grade above 0 is relevant;
MRR(rel=2)@10, MAP(rel=2), R(rel=2)@1000 and the like ask for a grade of 2, as TREC Deep Learning
does. Ties are broken by passage id ascending. The mean is over all queries with a relevant passage:
one that has no passages counts 0, and queries that nobody judged are ignored.
"answers": Hit@k, whether one of the first k texts holds an answer string, by DPR's rule.
"graded_pairs": Spearman's and Pearson's correlation with scores that people gave.
"triplets": how often the anchor is more similar to the positive than to the negative.
"""

_CITATION = """\
@inproceedings{macavaney2022streamlining,
  title = {Streamlining Evaluation with ir-measures},
  author = {MacAvaney, Sean and Macdonald, Craig and Ounis, Iadh},
  booktitle = {Advances in Information Retrieval},
  year = {2022}
}
"""

_INPUTS = """
Args:
    predictions: as many rows as references; they are matched by query_id.
        "retrieval": {"query_id": str, "passage_ids": [str], "scores": [float]};
        "answers": the same and "texts": [str], the passages' texts without titles;
        "graded_pairs": similarities, floats;
        "triplets": the anchor's similarities to positive and negative: {"to_positive": float,
        "to_negative": float}. An equal one counts as wrong.
    references: "retrieval": {"query_id": str, "passage_ids": [str], "grades": [int]};
        "answers": {"query_id": str, "answers": [str]};
        "graded_pairs": scores, floats;
        "triplets": none.
    measures: of "retrieval" (default MRR@10, nDCG@10 and R@100) and "answers" (Hit@20 and Hit@100).
    per_query: of these two, whether to return the value of each query too, below "per_query".

Returns:
    measure -> value; for graded pairs "spearman" and "pearson", for triplets "accuracy".

Examples:
    >>> module = evaluate.load("retrieval_measures")
    >>> run = [{"query_id": "q", "passage_ids": ["a", "b"], "scores": [0.9, 0.5]}]
    >>> qrels = [{"query_id": "q", "passage_ids": ["b", "c"], "grades": [1, 1]}]
    >>> module.compute(predictions=run, references=qrels, measures=["MRR@10", "R@100"])
    {'MRR@10': 0.5, 'R@100': 0.5}
"""

_STRING = datasets.Value("string")
_FLOAT = datasets.Value("float64")
_RUN = {"query_id": _STRING, "passage_ids": [_STRING], "scores": [_FLOAT]}
_QRELS = {"query_id": _STRING, "passage_ids": [_STRING], "grades": [datasets.Value("int64")]}
_FEATURES = {
    "retrieval": {"predictions": _RUN, "references": _QRELS},
    "answers": {
        "predictions": {**_RUN, "texts": [_STRING]},
        "references": {"query_id": _STRING, "answers": [_STRING]},
    },
    "graded_pairs": {"predictions": _FLOAT, "references": _FLOAT},
    "triplets": {"predictions": {"to_positive": _FLOAT, "to_negative": _FLOAT}},
}

_LEVEL = r"(?:\(rel=(?P<rel>\d+)\))?"
_CUTOFF = r"@(?P<k>\d+)"
# What follows a measure's name, and ir-measures' name for it. Its own parser lets through what then
# ends the process, such as R@0.
_FAMILIES = {
    "MRR": (f"{_LEVEL}({_CUTOFF})?", ir_measures.RR),
    "nDCG": (f"({_CUTOFF})?", ir_measures.nDCG),
    "R": (f"{_LEVEL}{_CUTOFF}", ir_measures.R),
    "MAP": (f"{_LEVEL}({_CUTOFF})?", ir_measures.AP),
    "R-Prec": (_LEVEL, ir_measures.Rprec),
    "P": (f"{_LEVEL}{_CUTOFF}", ir_measures.P),
    "Success": (f"{_LEVEL}{_CUTOFF}", ir_measures.Success),
}
_GREATEST = 1_000_000  # grade or cut-off

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")  # of DPR's SimpleTokenizer


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class RetrievalMeasures(evaluate.Metric):
    """The module that `evaluate.load` gives."""

    @property
    def _task(self) -> str:
        return "retrieval" if self.config_name == "default" else self.config_name

    def _info(self) -> evaluate.MetricInfo:
        if self._task not in _FEATURES:
            raise ValueError(
                f"the configuration is {self._task!r}, expected one of {', '.join(_FEATURES)}"
            )
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(_FEATURES[self._task]),
            reference_urls=["https://ir-measur.es", "https://github.com/usnistgov/trec_eval"],
        )

    def _compute(
        self, *, predictions: Sequence[Any], references: Sequence[Any] = (), **settings: Any
    ) -> dict[str, Any]:
        match self._task:
            case "graded_pairs":
                return correlations(predictions, references, **settings)
            case "triplets":
                return triplet_accuracy(predictions, **settings)
            case "answers":
                return hits(predictions, references, **settings)
            case _:
                return retrieval(predictions, references, **settings)


def retrieval(
    predictions: Sequence[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    *,
    measures: Sequence[str] = ("MRR@10", "nDCG@10", "R@100"),
    per_query: bool = False,
) -> dict[str, Any]:
    """Measures of a run by judgements."""
    parsed = {name: _parse_measure(name) for name in _checked_names(measures)}
    qrels = {}
    for query_id, row in _by_query(references, "references").items():
        grades = _paired(row, "grades", query_id)
        if max(grades.values(), default=0) > _GREATEST:
            raise ValueError(f"query {query_id!r} has a grade above {_GREATEST:,}: mend it")
        if any(grade > 0 for grade in grades.values()):
            qrels[query_id] = grades
    rankings = _rankings(predictions, qrels, needed="a passage of a grade above 0")
    run = {
        query_id: {passage: -float(rank) for rank, passage in enumerate(ranking)}
        for query_id, ranking in rankings.items()
    }
    values = {measure: dict.fromkeys(qrels, 0.0) for measure in parsed.values()}
    if run:
        for metric in ir_measures.iter_calc(list(values), qrels, run):
            values[metric.measure][metric.query_id] = float(metric.value)
    return _result({name: values[measure] for name, measure in parsed.items()}, per_query)


def hits(
    predictions: Sequence[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    *,
    measures: Sequence[str] = ("Hit@20", "Hit@100"),
    per_query: bool = False,
) -> dict[str, Any]:
    """Whether one of the first k texts holds an answer string (Karpukhin et al. 2020)."""
    cutoffs = {}
    for name in _checked_names(measures):
        match = re.fullmatch(f"Hit{_CUTOFF}", name)
        if not match or not 1 <= int(match["k"]) <= _GREATEST:
            raise ValueError(f"unknown measure {name!r}: expected Hit with a cut-off, as in Hit@20")
        cutoffs[name] = int(match["k"])
    answers = {
        query_id: [_tokens(answer) for answer in row["answers"]]
        for query_id, row in _by_query(references, "references").items()
        if row["answers"]
    }
    found = dict.fromkeys(answers, math.inf)
    texts = {
        query_id: _paired(row, "texts", query_id)
        for query_id, row in _by_query(predictions, "predictions").items()
    }
    for query_id, ranking in _rankings(predictions, answers, needed="an answer").items():
        for rank, passage in enumerate(ranking[: max(cutoffs.values())], start=1):
            words = f" {' '.join(_tokens(texts[query_id][passage]))} "  # no token holds a blank
            # An answer without tokens is found everywhere, as in DPR.
            if any(not a or f" {' '.join(a)} " in words for a in answers[query_id]):
                found[query_id] = rank
                break
    return _result(
        {name: {q: float(rank <= k) for q, rank in found.items()} for name, k in cutoffs.items()},
        per_query,
    )


def correlations(similarities: Sequence[float], scores: Sequence[float]) -> dict[str, float]:
    """Spearman's and Pearson's correlation of similarities with the scores that people gave."""
    for name, values in (("predictions", similarities), ("references", scores)):
        _check_finite(values, name)
        if len(set(values)) < 2:
            raise ValueError(f"all {name} are equal, with which nothing correlates")
    return {
        "spearman": float(stats.spearmanr(similarities, scores).statistic),
        "pearson": float(stats.pearsonr(similarities, scores).statistic),
    }


def triplet_accuracy(predictions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """How often the anchor is more similar to the positive than to the negative."""
    for side in ("to_positive", "to_negative"):
        _check_finite([row[side] for row in predictions], side)
    if not predictions:
        raise ValueError("there is no triplet, expected at least one")
    right = [row["to_positive"] > row["to_negative"] for row in predictions]
    return {"accuracy": sum(right) / len(right)}


def _by_query(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if found.setdefault(row["query_id"], row) is not row:
            raise ValueError(f"{name} has two rows of query {row['query_id']!r}: merge them")
    return found


def _paired(row: Mapping[str, Any], column: str, query_id: str) -> dict[str, Any]:
    """Passage id -> what the column holds for it."""
    ids, values = row["passage_ids"], row[column]
    if len(ids) != len(values) or len(set(ids)) != len(ids):
        raise ValueError(
            f"query {query_id!r} has {len(set(ids))} different passage_ids of {len(ids)}, and"
            f" {len(values)} {column}: expected different ids, and one of the {column} for each"
        )
    if None in ids or any(value is None for value in values):
        raise ValueError(f"query {query_id!r} has null among its passage_ids or {column}: mend it")
    return dict(zip(ids, values, strict=True))


def _rankings(
    predictions: Sequence[Mapping[str, Any]], judged: Mapping[str, object], *, needed: str
) -> dict[str, list[str]]:
    """The passages of each judged query: best first, ties by id ascending."""
    if not judged:
        raise ValueError(f"no query of references has {needed}: there is nothing to measure")
    rankings = {}
    by_query = _by_query(predictions, "predictions")
    for query_id, row in by_query.items():
        scores = _paired(row, "scores", query_id)
        if any(math.isnan(score) for score in scores.values()):
            raise ValueError(f"query {query_id!r} has a score that is NaN: expected numbers")
        if query_id in judged and scores:
            rankings[query_id] = sorted(scores, key=lambda p, s=scores: (-s[p], p))  # type: ignore[misc]
    if by_query and not by_query.keys() & judged.keys():
        raise ValueError(
            f"no query of predictions, such as {next(iter(by_query))!r}, is among those of"
            f" references, such as {next(iter(judged))!r}: expected the same ids"
        )
    return rankings


def _result(values: dict[str, dict[str, float]], per_query: bool) -> dict[str, Any]:
    means = {name: sum(by_query.values()) / len(by_query) for name, by_query in values.items()}
    return {**means, "per_query": values} if per_query else means


def _checked_names(measures: Sequence[str]) -> Sequence[str]:
    if isinstance(measures, str) or not measures:
        raise ValueError(f'measures is {measures!r}, expected a list of names, such as ["MRR@10"]')
    return measures


def _parse_measure(name: str) -> ir_measures.Measure:
    for family, (rest, measure) in _FAMILIES.items():
        match = re.fullmatch(f"{family}{rest}", name)
        if match is None:
            continue
        level, cutoff = (match.groupdict().get(key) for key in ("rel", "k"))
        if not all(1 <= int(number) <= _GREATEST for number in (level, cutoff) if number):
            break
        if level and int(level) > 1:
            measure = measure(rel=int(level))
        return measure @ int(cutoff) if cutoff else measure
    raise ValueError(
        f"unknown measure {name!r}: expected MRR, MRR@10, nDCG, nDCG@10, R@100, MAP, MAP@100,"
        " R-Prec, P@5 or Success@5, or one of them (but nDCG) with a threshold, as R(rel=2)@100"
    )


def _tokens(text: str) -> list[str]:
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def _check_finite(values: Sequence[float], name: str) -> None:
    wrong = [i for i, value in enumerate(values) if value is None or not math.isfinite(value)]
    if wrong:
        raise ValueError(f"row {wrong[0]} of {name} is {values[wrong[0]]}: expected a number")
