"""condenser evaluate SYSTEM ... COLLECTION: runs, measures, and whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate a b my-collection --recipe evaluate/thesis --depth 1000

A SYSTEM is an export, any sentence-transformers model, any encoder with a stated pooling
(google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,preset=thesis).
"""

from hub_scripts.recipe_command import read_words_and_settings


def run(words: list[str]) -> None:
    from modeling_condenser.evaluation.evaluate import EvaluationRecipe, evaluate
    from modeling_condenser.retrieval.dense import SearchSettings

    named = {
        "systems": ("SYSTEM ...", "what to evaluate"),
        "collection": ("COLLECTION", "folder, file or Hub name"),
    }
    settings = read_words_and_settings(
        "evaluate", words, named, EvaluationRecipe, SearchSettings, description=__doc__
    )
    report = evaluate(**settings)
    print(f"{report}\n\nreport: {report.file}")
