"""Measure whether models are ready to be fine-tuned, and when it was time to stop.

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl
    condenser analyze my-encoder runs/retriever/model figure-2 --recipe analyze/figure-2 \\
        --corpus my-documents.jsonl

A model is a pre-training run (its start, its checkpoints and its final model), a checkpoint, an
export, a retriever, or any encoder, by folder or Hub name.
"""

from .command_line import read_settings


def run(words: list[str]) -> None:
    from modeling_condenser.analysis.analyze import REPORT_FILE, AnalysisRecipe, analyze, report
    from modeling_condenser.analysis.sample import Measuring

    settings = read_settings(
        "analyze", words, AnalysisRecipe, Measuring, plain=("models", "out"), about=__doc__
    )
    print(f"{report(analyze(settings))}\n\nreport: {settings['out']}/{REPORT_FILE}")
