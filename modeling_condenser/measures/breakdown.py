"""Where a system is good: its values by groups of queries, each beside the baseline's.

In: values per query for several systems, and groups of queries, by the type of the answer (the
thesis, section 4.4.2 and Table 4.4) or by the query's length. Out: a `Breakdown`, whose p-values
are corrected over all of its comparisons: a gain that was looked for in six places is more easily
found by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contrasts import Contrast, Pair, Values, contrast

LENGTH_LIMITS = (4, 8, 12)
"""The greatest numbers of words in all groups of queries but the last, which has no limit."""


@dataclass(frozen=True)
class Group:
    """One group of queries.

    Attributes:
        name: such as "number" or "5-8 words".
        n_queries: in the group, at least one.
        means: system -> mean over the group's queries, baseline included.
        contrasts: system -> comparison with the baseline, for all systems but the baseline; without
            a test in a group of one query.
    """

    name: str
    n_queries: int
    means: Mapping[str, float]
    contrasts: Mapping[str, Contrast]


@dataclass(frozen=True)
class Breakdown:
    """One measure of several systems, by groups of queries.

    Attributes:
        by: what the groups are made by, such as "answer type".
        measure: such as "MRR@10".
        baseline: the system that the others are compared with; None if there is only one system.
        groups: those with a query.
        n_left_out: queries that belong to no group.
    """

    by: str
    measure: str
    baseline: str | None
    groups: tuple[Group, ...]
    n_left_out: int


def break_down(
    values: Mapping[str, Values],
    groups: Mapping[str, Sequence[str]],
    *,
    by: str,
    measure: str,
    baseline: str | None,
    seed: int = 0,
    progress: bool = False,
) -> Breakdown:
    """Break the values of several systems down by groups of queries.

    Args:
        values: system -> query id -> value of the measure, for the same queries.
        groups: name -> query ids; queries that were not measured are passed over, and groups
            without a measured query left out.
        by: what the groups are made by.
        measure: its name.
        baseline: one of the systems, or None to compare nothing.
        seed: of the tests and intervals.
        progress: whether to show a progress bar.

    Returns:
        Means and comparisons, p-values corrected over all groups and systems together.

    Raises:
        ValueError: no systems, an unknown baseline, different queries, or a query in two groups.
    """
    _check(values, groups, baseline)
    measured = next(iter(values.values())).keys()
    members = {name: [q for q in ids if q in measured] for name, ids in groups.items()}
    members = {name: ids for name, ids in members.items() if ids}
    parts = {
        name: {system: {q: by_query[q] for q in ids} for system, by_query in values.items()}
        for name, ids in members.items()
    }
    pairs = [
        (name, Pair(system, baseline, measure, part[system], part[baseline]))
        for name, part in parts.items()
        for system in part
        if baseline is not None and system != baseline
    ]
    contrasts = contrast([pair for _, pair in pairs], seed=seed, progress=progress)
    found = {(name, pair.system): c for (name, pair), c in zip(pairs, contrasts, strict=True)}
    return Breakdown(
        by=by,
        measure=measure,
        baseline=baseline,
        groups=tuple(
            Group(
                name=name,
                n_queries=len(members[name]),
                means={s: sum(part[s].values()) / len(part[s]) for s in part},
                contrasts={s: found[name, s] for s in part if (name, s) in found},
            )
            for name, part in parts.items()
        ),
        n_left_out=len(measured) - sum(map(len, members.values())),
    )


def _check(
    values: Mapping[str, Values], groups: Mapping[str, Sequence[str]], baseline: str | None
) -> None:
    if not values:
        raise ValueError("no system to break down, expected at least one: give its values")
    if baseline is not None and baseline not in values:
        raise ValueError(
            f"the baseline {baseline!r} is not among the systems ({', '.join(values)}): name one"
            " of them"
        )
    first, *others = values
    for other in others:
        apart = values[first].keys() ^ values[other].keys()
        if apart:
            raise ValueError(
                f"{first} and {other} were measured on different queries ({len(apart)} in one"
                f" only, such as {min(apart)!r}): evaluate both against the same qrels"
            )
    seen: set[str] = set()
    for name, ids in groups.items():
        for query_id in ids:
            if query_id in seen:
                raise ValueError(
                    f"query {query_id!r} of group {name!r} is in the groups twice, expected each"
                    " query once: make the groups disjoint"
                )
            seen.add(query_id)


def group_by_length(queries: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort queries by their number of words, as blanks separate them.

    Args:
        queries: query id -> text.

    Returns:
        "1-4 words", "5-8 words", "9-12 words", "13 words or more" -> query ids, in the order of
        `queries`. Groups without a query, and queries without a word, are left out.
    """
    groups: dict[str, list[str]] = {name: [] for name in _length_names()}
    for query_id, text in queries.items():
        n_words = len(text.split())
        if n_words:
            place = sum(n_words > limit for limit in LENGTH_LIMITS)
            groups[_length_names()[place]].append(query_id)
    return {name: ids for name, ids in groups.items() if ids}


def _length_names() -> list[str]:
    starts = [1, *(limit + 1 for limit in LENGTH_LIMITS)]
    bounded = [f"{start}-{end} words" for start, end in zip(starts, LENGTH_LIMITS, strict=False)]
    return [*bounded, f"{starts[-1]} words or more"]
