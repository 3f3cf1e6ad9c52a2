"""Search, measure, and test whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate evaluate/thesis.yaml a b my-collection --depth 1000

A system is an export, a sentence-transformers model, an encoder with a stated pooling
(google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,preset=thesis).
"""

from modeling_condenser.evaluation.evaluate import EvaluationRecipe, evaluate
from modeling_condenser.retrieval.dense import SearchSettings

from .command_line import CommandLine, register_model


def run(line: CommandLine) -> None:
    settings = line.read(EvaluationRecipe, SearchSettings, plain=("systems", "collection"))
    register_model(*settings.get("systems", ()), settings.get("baseline"))
    report = evaluate(**settings)
    print(f"{report}\n\nreport: {report.file}")
