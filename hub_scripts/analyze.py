"""Measure whether models are ready to be fine-tuned, and when it was time to stop.

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl
    condenser analyze my-encoder runs/retriever/model figure-2 --recipe analyze/figure-2 \\
        --corpus my-documents.jsonl

A model is a pre-training run (its checkpoints and its final model), a checkpoint, an export, a
retriever, or any encoder, by folder or Hub name.
"""

from modeling_condenser.analysis.analyze import REPORT_FILE, AnalysisRecipe, analyze
from modeling_condenser.analysis.sample import Measuring

from .command_line import CommandLine


def run(line: CommandLine) -> None:
    settings = line.read(AnalysisRecipe, Measuring, plain=("models", "out"))
    print(f"{analyze(settings)}\n\nreport: {settings['out']}/{REPORT_FILE}")
