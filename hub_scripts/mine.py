"""Find hard negatives for fine-tuning.

    condenser mine bm25 my-collection negatives/bm25
    condenser mine my-retriever my-collection negatives/hard --first_rank 30 --n_negatives 10
    condenser mine mine/rocketqa.yaml my-retriever my-collection negatives/denoised

A system is bm25 (bm25,preset=msmarco-passage), an export, a sentence-transformers model, an
encoder with a stated pooling (google-bert/bert-base-uncased,pooling=mean), or a TREC run file.
"""

import json

from modeling_condenser.mining.recipe import MiningRecipe
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.runs.run_folder import RUN_FILE

from .command_line import CommandLine, register_model


def run(line: CommandLine) -> None:
    plain = ("system", "collection", "output_dir")
    settings = line.read(MiningRecipe, SearchSettings, plain=plain)
    register_model(settings.get("system"))
    from modeling_condenser.mining.mine import EXAMPLES_FILE, mine

    file = mine(**settings)
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
    data = f"--collection {settings['collection']} --negatives {file}"
    if examples.is_file():  # which needs no judgements, and has relabelled positives
        print(f"examples: {examples}")
        data = f"--format negatives --data {examples}"
    print(f"next: condenser finetune finetune/contrastive {data}")
