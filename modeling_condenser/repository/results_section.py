"""The card's section of results: what was evaluated in, tables that can be checked out."""

from collections.abc import Sequence
from itertools import groupby

from .markdown import code, code_block, escape, listed, p_value, table
from .results import RESULTS_FILE, RUNS_FOLDER, BaselineComparison, EvaluationResult

ALPHA = 0.05
NOT_EVALUATED = "This model has not been evaluated."


def results_section(results: Sequence[EvaluationResult], *, is_checkpoint: bool = False) -> str:
    """All results as text, or that there are none."""
    heading = "## Evaluation results"
    if not results:
        how = (
            "It is no retriever: export its encoder, fine-tune that, and evaluate the result."
            if is_checkpoint
            else "`condenser evaluate` measures it and writes what it found here."
        )
        return f"{heading}\n\n{NOT_EVALUATED} {how}"
    parts = [heading, *(_one(result) for result in results), _notes(results)]
    return "\n\n".join(parts)


def headline(result: EvaluationResult) -> str:
    """The first figure in one sentence."""
    measure, value = next(iter(result.values.items()))
    said = f"{escape(measure)} on {_name(result)} ({escape(result.split)}): **{value:.4f}**"
    compared = [c for c in result.comparisons if c.measure == measure]
    beside = [f"{escape(c.baseline)} {c.value:.4f} (p {_sign(c.p_value)})" for c in compared]
    return f"{said}; {', '.join(beside)}." if beside else f"{said}."


def _one(result: EvaluationResult) -> str:
    search = ", ".join(f"{name} {value}" for name, value in result.search.items())
    facts = [
        f"{result.n_queries:,} queries",
        f"{result.depth:,} passages retrieved for each",
        f"approximate search ({escape(search)})" if search else "exact search",
    ]
    facts += [f"on {escape(result.date)}"] if result.date else []
    parts = [f"### {_name(result)}, {escape(result.split)}", ", ".join(facts) + ".", _table(result)]
    parts += [said] if (said := _verdict(result.comparisons)) else []
    checks = []
    if result.run:
        file = result.run["file"]
        checks.append(f"Run: [{escape(file)}]({file}), SHA-256 {code(result.run['sha256'])}.")
    if result.qrels_sha256:
        checks.append(f"Judgements: SHA-256 {code(result.qrels_sha256)}.")
    if result.fingerprint_passages:
        checks.append(f"Passages: fingerprint {code(result.fingerprint_passages)}.")
    if result.source is None:
        checks.append(f"{_name(result)} is a folder, not on the Hub: compare the sums with yours.")
    parts += ["\n".join(f"- {check}" for check in checks)] if checks else []
    parts += [code_block(result.command, "bash")] if result.command else []
    return "\n\n".join(parts)


def _name(result: EvaluationResult) -> str:
    name = escape(result.collection)
    if result.source is None:
        return name
    return f"[{escape(result.source)}](https://huggingface.co/datasets/{result.source})"


def _table(result: EvaluationResult) -> str:
    """A row a measure and baseline; columns for what there is."""
    header = ["measure", "this model"]
    if result.intervals:
        header.append("95 % interval")
    if result.comparisons:
        header += ["compared with", "its value", "difference", "p"]
    rows = []
    for measure, value in result.values.items():
        interval = result.intervals.get(measure)
        start = [escape(measure), f"{value:.4f}"]
        if result.intervals:
            start.append(f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else "")
        compared = [c for c in result.comparisons if c.measure == measure]
        rows += [[*start, *_cells(c)] for c in compared]
        if not compared:
            rows.append([*start, *[""] * (len(header) - len(start))])
    return table(header, rows, numbers_from=1)


def _cells(c: BaselineComparison) -> list[str]:
    return [escape(c.baseline), f"{c.value:.4f}", f"{c.difference:+.4f}", p_value(c.p_value)]


def _verdict(comparisons: Sequence[BaselineComparison]) -> str:
    """What the p-values say, in a sentence for each baseline."""
    sentences = []
    by_name = sorted(comparisons, key=lambda c: c.baseline)
    for baseline, group in groupby(by_name, key=lambda c: c.baseline):
        tested = list(group)
        better = [c for c in tested if c.p_value < ALPHA and c.difference > 0]
        worse = [c for c in tested if c.p_value < ALPHA and c.difference < 0]
        open_ = [c for c in tested if c not in better and c not in worse]
        said = [
            f"{word} in {listed([escape(c.measure) for c in found])}"
            for word, found in (
                ("better", better),
                ("worse", worse),
                ("not shown to differ", open_),
            )
            if found
        ]
        sentences.append(f"Against {escape(baseline)}: {'; '.join(said)}.")
    return " ".join(sentences)


def _notes(results: Sequence[EvaluationResult]) -> str:
    notes = f"All figures in full are in [{RESULTS_FILE}]({RESULTS_FILE})."
    if any(result.run for result in results):
        notes += f" The checksums are of the runs in `{RUNS_FOLDER}/` as they are uncompressed."
    if any(result.comparisons for result in results):
        notes += (
            " p is of a two-sided paired randomisation test over queries, by Holm's correction for "
            "all tests of its table; below 0.05 a difference is called shown. It speaks of the "
            "choice of queries, not of the training seed."
        )
    return notes


def _sign(p: float) -> str:
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"
