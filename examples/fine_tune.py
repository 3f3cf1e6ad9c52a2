"""Fine-tune an encoder on a few labels, and measure it against its start.

`health` is a collection: passages, queries, and judgements that say which passage answers which
query. `docs/collection.md` makes one of your own files and labels.
"""

from modeling_condenser import evaluate, finetune

model = finetune(
    encoder="starter",
    pooling="cls",  # which a plain encoder does not state itself
    collection="health",
    train_size=256,  # labels
    similarity="cosine",
    query_max_length=32,
    passage_max_length=32,
    per_device_train_batch_size=32,
    num_train_epochs=3,
    learning_rate=1e-3,  # for `starter`; 2e-5 for a model of BERT's size
    disable_tqdm=True,
    output_dir="runs/fine-tune",
)
start = {"model": "starter", "pooling": "cls", "similarity": "cosine", "passage_max_length": 32}
report = evaluate(
    systems=[start, str(model)], collection="health", split="dev", measures=["MRR@10", "R@100"]
)
print(report)
