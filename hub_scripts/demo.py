"""The demonstration: a study on medical questions, and some searches."""

import json
import time
from pathlib import Path
from typing import Any

import datasets
import transformers

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.model_files.model_folder import STARTER
from modeling_condenser.publishing.markdown import p_in_words
from modeling_condenser.publishing.training_log import spread
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import BM25
from modeling_condenser.runs.recipe import read_recipe
from modeling_condenser.study.results import StudyResults
from modeling_condenser.study.study import SEARCH_FILE, run_study

_N_EXAMPLES = 3


def run(changes: dict[str, Any], *, command: str) -> None:
    """Run the study of the demo with changed fields of `StudyRecipe`, and print what it found."""
    started = time.perf_counter()
    transformers.utils.logging.disable_progress_bar()  # of opening and saving models
    datasets.disable_progress_bars()
    recipe = {} if "arms" in changes else read_recipe("study/demo")
    encoder = changes.get("encoder", STARTER)
    has_untouched = bool(recipe) and encoder != STARTER
    if has_untouched:
        recipe = with_untouched(recipe)
    settings = {"output_dir": "runs/demo", **recipe, **changes}
    results, out = run_study(settings, command=command), Path(settings["output_dir"])
    tables = [results.table(name, with_p=True).to_string() for name in results.bm25.means]
    print("", *tables, results.explanation, against_bm25(results), sep="\n\n")
    print(f"\nBest passages of BM25 and of {results.best_arm}, where they differ:")
    named, facts = json.loads((out / SEARCH_FILE).read_text()), results.facts
    collection = load_collection(out / named["collection"], split=facts["split"])
    show_searches(collection, out / BM25, (out / named["embeddings"]).parent)
    minutes = (time.perf_counter() - started) / 60
    print(f"\n{facts['n_passages']} passages, {facts['n_queries']} queries, {minutes:.1f} minutes.")
    print(
        f"Report with curves: {out}/results.md. Run files and model cards are beside it. Search:\n"
    )
    print(f'  condenser search {out} "how is asthma treated"')
    if has_untouched:
        print(f"\nWithout labels: condenser adapt {encoder} health --output_dir {out}-adapted")


def with_untouched(recipe: dict[str, Any]) -> dict[str, Any]:
    """The demo for a published encoder: the untouched one is the control, and rates are its own."""
    return {
        **recipe,
        "control": "untouched",
        "arms": {"untouched": None, "recommended": recipe["arms"]["recommended"]},
        "pretraining": {**recipe["pretraining"], "learning_rate": 3e-5},
        "finetuning": {**recipe["finetuning"], "learning_rate": 5e-5},
    }


def against_bm25(results: StudyResults) -> str:
    """A sentence on the gain of the best fine-tuned arm over BM25."""
    group, best, first = [*results.groups][-1], results.best_arm, next(iter(results.bm25.means))
    own, lexical = results.last_group[best].means[first], results.bm25.means[first]
    p = p_in_words(results.tests[group, best, first, BM25].p_adjusted)
    return f"{best} with {group}: {first} {own:.3f}; {BM25}: {lexical:.3f} ({p})."


def show_searches(collection: Collection, bm25: Path, dense: Path) -> None:
    """Print the first passage of both systems for some queries where they differ."""
    # Runs of several depths, if the measures were changed, begin alike.
    files = {BM25: bm25.glob("run-*.trec"), "dense": dense.glob("run-*.trec")}
    runs = {name: read_run(next(found)) for name, found in files.items()}
    first = {
        query: {name: next(iter(run[query])) for name, run in runs.items()}
        for query in collection.queries
        if all(run.get(query) for run in runs.values())
    }
    differing = [query for query, passages in first.items() if len(set(passages.values())) > 1]
    for query in spread(differing, at_most=_N_EXAMPLES):
        print(f"\n  {collection.queries[query]}")
        rows = find_rows(collection.passages, first[query].values())
        for name, passage in first[query].items():
            row = collection.passages[rows[passage]]
            relevant = "right" if collection.qrels[query].get(passage, 0) > 0 else "wrong"
            content = " ".join(f"{row['title']}: {row['text']}".split())
            print(f"    {name:<5} {relevant}  {content[:100]}")
