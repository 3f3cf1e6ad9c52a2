"""condenser evaluate SYSTEM ... COLLECTION: runs, measures, and whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate a b my-collection --recipe evaluate/thesis --depth 1000

A SYSTEM is an export, any sentence-transformers model, any encoder with a stated pooling
(google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,preset=thesis).
"""

import argparse

from hub_scripts.recipe_command import separate


def run(words: list[str]) -> None:
    import dataclasses

    from modeling_condenser.evaluation.evaluate import EvaluationRecipe, evaluate
    from modeling_condenser.retrieval.dense import SearchSettings
    from modeling_condenser.runs.recipe import parse_changes, read_recipe

    fields = [f.name for cls in (EvaluationRecipe, SearchSettings) for f in dataclasses.fields(cls)]
    parser = argparse.ArgumentParser(
        prog="condenser evaluate",
        usage="condenser evaluate SYSTEM ... COLLECTION [--recipe RECIPE] [--field value ...]",
        description=f"{__doc__}\nFields, each of which --field value sets: {', '.join(fields)}."
        f"\n\n{EvaluationRecipe.__doc__}\n\n{SearchSettings.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("systems", metavar="SYSTEM", nargs="+", help="what to evaluate")
    parser.add_argument("collection", metavar="COLLECTION", help="folder, file or Hub name")
    named, changes = separate(words)
    arguments = parser.parse_args(named)
    settings = parse_changes(changes)
    recipe = settings.pop("recipe", None)
    report = evaluate(
        {
            **(read_recipe(recipe) if recipe else {}),
            **settings,
            "systems": arguments.systems,
            "collection": arguments.collection,
        }
    )
    print(f"{report.summary}\n\nreport: {report.file}")
