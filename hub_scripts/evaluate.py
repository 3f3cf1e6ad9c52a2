"""Search, measure, and test whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate evaluate/thesis.yaml a b my-collection --depth 1000

A system is an export, a sentence-transformers model, an encoder with a stated pooling
(google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,preset=thesis).
"""

from .command_line import read_settings, register_model


def run(words: list[str]) -> None:
    from modeling_condenser.evaluation.evaluate import EvaluationRecipe, evaluate
    from modeling_condenser.retrieval.dense import SearchSettings

    classes, plain = (EvaluationRecipe, SearchSettings), ("systems", "collection")
    settings = read_settings("evaluate", words, *classes, plain=plain, about=__doc__)
    register_model(*settings.get("systems", ()), settings.get("baseline"))
    report = evaluate(**settings)
    print(f"{report}\n\nreport: {report.file}")
