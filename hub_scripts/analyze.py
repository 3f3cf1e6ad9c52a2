"""condenser analyze MODEL ... OUT: is a model ready, and when was it time to stop?

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl

A MODEL is a run of pre-training (its start, its checkpoints and its final model), a checkpoint, an
export, a retriever, or any encoder, by folder or Hub name. OUT gets readiness.json, readiness.md
and pictures.
"""

from hub_scripts.recipe_command import read_words_and_settings


def run(words: list[str]) -> None:
    from modeling_condenser.analysis.analyze import REPORT_FILE, AnalysisRecipe, analyze
    from modeling_condenser.analysis.report import entropy_table, measures_table
    from modeling_condenser.analysis.settings import Measuring

    named = {"models": ("MODEL ...", "what to measure"), "out": ("OUT", "folder to write")}
    settings = read_words_and_settings(
        "analyze", words, named, AnalysisRecipe, Measuring, description=__doc__
    )
    analysis = analyze(settings)
    print(f"{measures_table(analysis)}\n\nCLS attention entropy by layer, in nats:\n")
    print(f"{entropy_table(analysis)}\n\nreport: {settings['out']}/{REPORT_FILE}")
