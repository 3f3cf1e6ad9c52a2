"""condenser analyze MODEL ... OUT: is a model ready, and when was it time to stop?

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl

A MODEL is a run of pre-training (its start, its checkpoints and its final model), a checkpoint, an
export, a retriever, or any encoder, by folder or Hub name. OUT gets readiness.json, readiness.md
and pictures.
"""

import argparse

from hub_scripts.recipe_command import separate


def run(words: list[str]) -> None:
    import dataclasses

    from modeling_condenser.analysis.analyze import REPORT_FILE, AnalysisRecipe, analyze
    from modeling_condenser.analysis.report import entropy_table, measures_table
    from modeling_condenser.analysis.settings import Measuring
    from modeling_condenser.runs.recipe import parse_changes

    own = [f.name for f in dataclasses.fields(AnalysisRecipe) if f.name not in ("models", "out")]
    fields = [*own, *(f.name for f in dataclasses.fields(Measuring))]
    parser = argparse.ArgumentParser(
        prog="condenser analyze",
        usage="condenser analyze MODEL ... OUT [--field value ...]",
        description=f"{__doc__}\nFields, each of which --field value sets: {', '.join(fields)}."
        f"\n\n{AnalysisRecipe.__doc__}\n\n{Measuring.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="what to measure")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    named, changes = separate(words)
    arguments = parser.parse_args(named)
    analysis = analyze({**parse_changes(changes), "models": arguments.models, "out": arguments.out})
    print(f"{measures_table(analysis)}\n\nCLS attention entropy by layer, in nats:\n")
    print(f"{entropy_table(analysis)}\n\nreport: {arguments.out}/{REPORT_FILE}")
