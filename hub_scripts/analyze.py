"""condenser analyze MODEL ... OUT: is a model ready, and when was it time to stop?

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl
    condenser analyze my-encoder runs/retriever/model figure-2 --recipe analyze/figure-2 \\
        --corpus my-documents.jsonl

A MODEL is a run of pre-training (its start, its checkpoints and its final model), a checkpoint, an
export, a retriever, or any encoder, by folder or Hub name. OUT gets readiness.json, readiness.md
and pictures.
"""

from hub_scripts.recipe_command import read_words_and_settings


def run(words: list[str]) -> None:
    from modeling_condenser.analysis.analyze import (
        REPORT_FILE,
        AnalysisRecipe,
        analyze,
        entropy_table,
        measures_table,
    )
    from modeling_condenser.analysis.sample import Measuring

    named = {"models": ("MODEL ...", "what to measure"), "out": ("OUT", "folder to write")}
    settings = read_words_and_settings(
        "analyze", words, named, AnalysisRecipe, Measuring, description=__doc__
    )
    entries = analyze(settings).entries
    print(f"{measures_table(entries)}\n\nCLS attention entropy by layer, in nats:\n")
    print(f"{entropy_table(entries)}\n\nreport: {settings['out']}/{REPORT_FILE}")
