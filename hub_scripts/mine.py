"""condenser mine SYSTEM COLLECTION OUT: hard negatives for fine-tuning.

    condenser mine bm25 my-collection negatives/bm25
    condenser mine my-retriever my-collection negatives/hard --first_rank 30 --n_negatives 10
    condenser mine my-retriever my-collection negatives/denoised --recipe mine/rocketqa

A SYSTEM is bm25 (bm25,preset=msmarco-passage), an export, any sentence-transformers model, any
encoder with a stated pooling (google-bert/bert-base-uncased,pooling=mean), or a TREC run file.
"""

import argparse

from hub_scripts.recipe_command import separate


def run(words: list[str]) -> None:
    import dataclasses
    import json

    from modeling_condenser.mining.mine import mine
    from modeling_condenser.mining.negatives import EXAMPLES_FILE
    from modeling_condenser.mining.recipe import MiningRecipe
    from modeling_condenser.retrieval.dense import SearchSettings
    from modeling_condenser.runs.recipe import parse_changes, read_recipe
    from modeling_condenser.runs.run_folder import RUN_FILE

    fields = [f.name for cls in (MiningRecipe, SearchSettings) for f in dataclasses.fields(cls)]
    parser = argparse.ArgumentParser(
        prog="condenser mine",
        usage="condenser mine SYSTEM COLLECTION OUT [--recipe RECIPE] [--field value ...]",
        description=f"{__doc__}\nFields, each of which --field value sets: {', '.join(fields)}."
        f"\n\n{MiningRecipe.__doc__}\n\n{SearchSettings.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("system", metavar="SYSTEM", help="what finds the candidates")
    parser.add_argument("collection", metavar="COLLECTION", help="folder or Hub name")
    parser.add_argument("output_dir", metavar="OUT", help="folder for the negatives")
    named, changes = separate(words)
    arguments = parser.parse_args(named)
    changed = parse_changes(changes)
    recipe = changed.pop("recipe", None)
    file = mine({**(read_recipe(recipe) if recipe else {}), **changed, **vars(arguments)})
    facts = json.loads((file.parent / RUN_FILE).read_text())
    print(f"{facts['queries']:,} queries, {facts['mean_negatives']:.1f} negatives each")
    print(
        f"{facts['queries_without_negatives']:,} without any, {facts['queries_with_fewer']:,} with "
        f"fewer than asked for, {facts['queries_without_positive']:,} left out without a positive"
    )
    dropped = [f"{name} {n:,}" for name, n in facts["dropped"].items() if n]
    print(f"dropped: {', '.join(dropped) or 'none'}")
    print(f"negatives: {file}")
    examples = file.with_name(EXAMPLES_FILE)
    data = f"--collection {arguments.collection} --negatives {file}"
    if examples.is_file():  # which needs no judgements, and has relabelled positives
        print(f"examples: {examples}")
        data = f"--format negatives --data {examples}"
    print(f"next: condenser finetune finetune/contrastive {data}")
