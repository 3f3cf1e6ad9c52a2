"""Compare systems on one task, and write a report.

report.md        tables with tests, and groups of queries
results.json     all figures, and what they were made from
per_query.tsv    one line for each query: id, text, and each system's value in each measure
Queries are grouped by length, and by the type of the answer that they ask for: the six coarse
classes of Li & Roth (2002), "Learning Question Classifiers", which rules find.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import regex
from datasets import Dataset
from jinja2 import Environment

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.sentences import SPACELESS
from modeling_condenser.files.run_folder import atomic_file, describe_machine, write_json
from modeling_condenser.retrieval.words import NO_LANGUAGE, recognize_language

from .measures import ALPHA, N_RESAMPLES, Comparison, Evaluation, correct, make_evaluation

REPORT_FILE, RESULTS_FILE, PER_QUERY_FILE = "report.md", "results.json", "per_query.tsv"
_LEAST_QUERIES = 20  # of a group, whose mean would be chance otherwise

MARKS = (
    f"▲ and ▼ mark a difference with p < {ALPHA} after the correction; ○ means that no difference "
    "was shown."
)

Groupings = Mapping[str, Mapping[str, list[str]]]
"""By what queries are grouped -> name of a group -> ids."""

Evaluations = Mapping[str, Evaluation]
"""Name of a system -> measures of the same queries; the first system is the baseline."""


@dataclass(frozen=True)
class SystemResult:
    """The measures of one system.

    Attributes:
        run_file: the TREC run that was measured; None for pairs and triplets.
        record: facts about the search, such as its time.
        settings: of the system, such as its pooling.
        cost: time and memory of encoding, from `measure_cost`.
    """

    system: str
    evaluation: Evaluation
    run_file: Path | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Report:
    """The result of an evaluation; `print(report)` shows measures and differences.

    Attributes:
        folder: of the report's files.
        results: one for each system, the baseline first.
        comparisons: (system, measure) -> comparison with the baseline, corrected together (Holm).
        content: all figures, as in results.json.
    """

    folder: Path
    results: Sequence[SystemResult]
    comparisons: Mapping[tuple[str, str], Comparison]
    content: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """The report as Markdown."""
        return self.folder / REPORT_FILE

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """System -> measure -> mean."""
        return {result.system: result.evaluation.means for result in self.results}

    @property
    def per_query(self) -> dict[str, dict[str, dict[str, float]]]:
        """System -> measure -> query -> value."""
        return {result.system: result.evaluation.per_query for result in self.results}

    def to_pandas(self) -> pd.DataFrame:
        """A row for each system and measure: mean, bounds of its 95 % interval, and comparison.

        `difference` from the baseline, `p` after Holm's correction, and `mark` (see `MARKS`) are
        missing for the baseline itself.
        """
        rows = {}
        for system, means in self.means.items():
            for measure, mean in means.items():
                interval = self.content["results"][measure][system]["interval"]
                low, high = interval or (math.nan, math.nan)
                row = {"mean": mean, "low": low, "high": high}
                if c := self.comparisons.get((system, measure)):
                    row |= {"difference": c.difference, "p": c.p_adjusted, "mark": c.mark}
                rows[system, measure] = row
        return pd.DataFrame([*rows.values()], pd.MultiIndex.from_tuples(rows))

    def __str__(self) -> str:
        table = self.to_pandas().to_string(float_format="{:.4f}".format, na_rep="")
        notes = f"\n\np is two-sided, by Holm's correction over this table. {MARKS}"
        return f"{self.content['title']}\n\n{table}{notes if self.comparisons else ''}"

    def _repr_markdown_(self) -> str:  # what a notebook shows
        return self.file.read_text(encoding="utf-8")


def write_report(
    folder: Path,
    results: Sequence[SystemResult],
    *,
    name: str,
    split: str,
    collection: Collection | None = None,
    command: str = "",
    seed: int = 0,
) -> Report:
    """Compare systems, and write the report's files, which replace those of an earlier report.

    Args:
        folder: created if missing.
        results: of the same measures and queries. The first system is the baseline; groups of
            queries are compared in the first measure.
        name: of the collection, or of the file of pairs or triplets.
        split: of the queries, or the task.
        collection: None for graded pairs and triplets.
        command: reproduces the report.
        seed: of all tests and intervals.
    """
    first = results[0]
    systems = {result.system: result.evaluation for result in results}
    main, n_items = next(iter(first.evaluation.means)), first.evaluation.n_items
    comparisons, figures = _compare(systems, seed=seed)
    queries: dict[str, str] = {}
    groups: Groupings = {}
    if collection:
        queries = {q: collection.queries[q] for q in first.evaluation.per_query[main]}
        texts = Dataset.from_dict({"title": [""] * len(queries), "text": list(queries.values())})
        is_english = recognize_language(texts) in ("english", NO_LANGUAGE)  # few words show none
        groups = group_queries(queries, is_english=is_english, at_least=_LEAST_QUERIES)
    content = {
        "title": f"{name}, {split}: {n_items:,} {'queries' if collection else 'items'}",
        "n_items": n_items,
        "shared_queries": dict(collection.shared) if collection else {},
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {
            result.system: {
                "settings": dict(result.settings),
                "record": dict(result.record),
                "cost": result.cost,
            }
            for result in results
        },
        "results": figures,
        "groups": _compare_groups(systems, main, groups, seed=seed),
        "command": command,
        "seed": seed,
        **describe_machine(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULTS_FILE, content)
    if queries:
        table = pd.DataFrame({"text": pd.Series(queries).str.split().str.join(" ")})
        for system, evaluation in systems.items():
            table = table.join(pd.DataFrame(evaluation.per_query).add_prefix(f"{system} "))
        with atomic_file(folder / PER_QUERY_FILE) as file:
            table.to_csv(file, sep="\t", index_label="query_id")
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    source = Path(__file__).with_name("report.md.jinja").read_text(encoding="utf-8")
    facts = {"marks": MARKS, "n_resamples": N_RESAMPLES, "least_queries": _LEAST_QUERIES}
    text = environment.from_string(source).render(content, **facts)
    with atomic_file(folder / REPORT_FILE) as file:
        file.write(text.encode())
    return Report(folder, results, comparisons, content)


def _compare(
    systems: Evaluations, *, seed: int
) -> tuple[dict[tuple[str, str], Comparison], dict[str, dict[str, Any]]]:
    """Compare with the first system, corrected over all measures (Holm).

    Also return measure -> system -> its figures, for results.json.
    """
    baseline, *others = systems
    measures = list(systems[baseline].means)
    comparisons = {}
    for measure in measures:
        for system in others:
            comparison = systems[system].compare(measure, systems[baseline], seed=seed)
            comparisons[system, measure] = comparison
    comparisons = correct(comparisons)
    figures: dict[str, dict[str, Any]] = {measure: {} for measure in measures}
    for measure in measures:
        for system, evaluation in systems.items():
            interval = evaluation.interval(measure, seed=seed)
            figures[measure][system] = {"mean": evaluation.means[measure], "interval": interval}
            if c := comparisons.get((system, measure)):
                figures[measure][system]["against_baseline"] = {**c._asdict(), "mark": c.mark}
    return comparisons, figures


def _compare_groups(
    systems: Evaluations, main: str, groupings: Groupings, *, seed: int
) -> dict[str, Any]:
    """Compare systems in groups of queries, in one measure; corrected over each grouping."""
    content: dict[str, Any] = {}
    for by, groups in groupings.items():
        parts = {}  # a group takes the place of a measure
        for system, evaluation in systems.items():
            values = evaluation.per_query[main]
            by_group = {group: {q: values[q] for q in ids} for group, ids in groups.items()}
            parts[system] = make_evaluation(by_group)
        _, figures = _compare(parts, seed=seed)
        content[by] = {
            group: {"n_queries": len(ids), "systems": figures[group]}
            for group, ids in groups.items()
        }
    return content


AnswerType = Literal["description", "number", "human", "location", "entity", "abbreviation"]

_WORD = regex.compile(rf"[{SPACELESS}]|[^\s{SPACELESS}]+")
_MOST_WORDS = {"1-4 words": 4, "5-8 words": 8, "9-12 words": 12, "13 words or more": float("inf")}
# The first pattern that is found decides.
_PATTERNS: Mapping[str, AnswerType | None] = {
    r"\b(stands?|short) for\b|\b(abbreviations?|abbreviated|acronym|full form)\b": "abbreviation",
    r"^(is|are|was|were|do|does|did|has|have|had|can|could|should|will (a|the|there|it))\b": None,
    r"^(define|explain|describe|meaning)\b|\b(definition|meaning|symptoms)$": "description",
    r"\bhow to\b|\b(vs|versus)\b|^what (causes?|caused|makes?|happens?|happened)\b": "description",
    r"^what (do|does|did) .*\b(mean|do|say|look like)\b": "description",
    r"^what (is|are) .*\bmade (of|from)$|^what (is|are|was|were) an? .* called$": "entity",
    r"\bhow (big|cold|deep|far|fast|heavy|high|hot|large|long|many|much|often|old|tall)": "number",
}
# Question words and nouns that name a type.
_WORDS: Mapping[AnswerType, str] = {
    "description": """how why advantage cause effect feature function history meaning origin process
        property purpose reason relationship role step symptom treatment use""",
    "number": """when age average calorie cost date day degree depth distance height length number
        percentage period point population price rate size speed temperature time worth year""",
    "human": """who whom whose actor actress artist astronaut author band brother cast character
        club company composer daughter director doctor father founder group husband inventor king
        leader man member mother musician occupation owner painter people person player poet
        president queen ruler scientist singer sister son star team wife winner woman writer""",
    "location": """where address airport birthplace border capital castle city continent country
        county desert island lake location mountain museum ocean place planet province region river
        road sea state street town village volcano""",
    "entity": """album animal award bird body book brand breed car color colour currency disease
        dish dog drink event film fish flag flower food fruit game gas hormone instrument language
        material metal mineral movie muscle name novel organ part plant play product religion ship
        show song species sport story symbol tree vitamin war""",
}
_TYPE_OF: Mapping[str, AnswerType] = {
    word: answer for answer, words in _WORDS.items() for word in words.split()
}
_PHRASE_END = (
    r"\b(is|are|was|were|be|do|does|did|can|could|should|has|have|had|about|after|as|at|between|by|"
    r"during|for|from|in|into|near|of|on|to|under|with|that|who|which|where|when|'s)\b"
)
# What stands before the noun that counts: "the name of the", "what kind of".
_BEFORE_NOUN = (
    r"^(of |(the )?(\w+ ){0,2}?(name|type|kind|sort|form|variety|one)s? of |name |list )"
    r"(the |an? |these |this |following )*"
)
_SELECTED = r"\b(name|most|least|best|first|second|last|only|main|national|average|\w{2,}est)\b"


def answer_type(question: str) -> AnswerType | None:
    """Classify an English question or search query.

    It is None for yes/no questions and for phrases without a known noun.
    """
    text = re.sub(r"[’`]", "'", question.lower())
    text = re.sub(r"\b(what|who|where|when|how)( ?'s|s)\b", r"\1 is", text).replace(".", "")
    text = " ".join(re.findall(r"'s\b|\w+", text)[:100])  # the beginning of a long text
    for pattern, answer in _PATTERNS.items():
        if re.search(pattern, text):
            return answer
    asked = re.search(r"\b(who|whom|whose|where|when|why|how|what|which)\b", text)
    word, rest = (asked[0], text[asked.end() :]) if asked else ("", text)
    if word in _TYPE_OF:
        return _TYPE_OF[word]
    copula = re.match(r" (is|are|was|were) (an? |.* 's )?", rest)
    phrase = rest[copula.end() :] if copula else rest.strip()
    if copula and copula[2] in ("a ", "an "):
        return "description"
    if noun_type := _type_of_noun(phrase):
        return noun_type
    if not asked:
        return None
    return "description" if copula and not re.search(_SELECTED, phrase) else "entity"


def _type_of_noun(phrase: str) -> AnswerType | None:
    """The type of the last noun in the first run of known nouns before a verb or preposition."""
    bare = re.sub(_BEFORE_NOUN, "", re.sub(r"^(the|an?|your|my|its) ", "", phrase))
    noun_type: AnswerType | None = None
    for word in re.split(_PHRASE_END, bare, maxsplit=1)[0].split():
        forms = (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))
        known = next((_TYPE_OF[form] for form in forms if form in _TYPE_OF), None)
        if noun_type and not known:
            break
        noun_type = known
    return noun_type


def group_queries(queries: Mapping[str, str], *, is_english: bool, at_least: int = 1) -> Groupings:
    """Group queries (id -> text) by "answer type" (English ones) and by "query length", in words.

    A character of a script without spaces is a word.

    Smaller groups than `at_least` and queries without a type are left out.
    """
    types = [answer_type(text) if is_english else None for text in queries.values()]
    lengths = [len(_WORD.findall(text)) for text in queries.values()]
    columns = {
        "answer type": pd.Categorical(types, get_args(AnswerType)),
        "query length": pd.cut(lengths, [-1, *_MOST_WORDS.values()], labels=list(_MOST_WORDS)),
    }
    table = pd.DataFrame(columns, index=list(queries))
    groupings: dict[str, dict[str, list[str]]] = {}
    for by in table:
        groups = table.groupby(by, observed=True).groups.items()
        large = {name: list(ids) for name, ids in groups if len(ids) >= at_least}
        if large:
            groupings[by] = large
    return groupings
