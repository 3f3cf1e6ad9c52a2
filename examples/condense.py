"""Pre-train an encoder with Condenser on your own text, without labels.

`starter` and the text come with the package. Name your own encoder and texts in their place, and
train on all of them.
"""

from importlib.resources import files

from datasets import load_dataset

from modeling_condenser import (
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    Retriever,
)

corpus = files("modeling_condenser") / "health" / "corpus.jsonl.gz"
texts = load_dataset("json", data_files=str(corpus), split="train[:500]")  # a column `text`
model = CondenserForPreTraining.from_encoder("starter")
arguments = CondenserTrainingArguments(
    "runs/condense",
    max_length=64,
    bow_weight=1.0,  # bag-of-words prediction beside the Condenser head
    max_steps=20,
    per_device_train_batch_size=16,
    learning_rate=5e-4,  # for `starter`; 5e-5 for a model of BERT's size
    logging_steps=5,
    disable_tqdm=True,
)
trainer = CondenserTrainer(model, arguments, train_dataset=texts)
trainer.train()

folder = model.save_encoder("runs/condensed-encoder")  # a plain encoder, without the head
vectors = Retriever(folder, passage_max_length=64).encode_passages(texts["text"][:100])
print(f"{folder} encodes {len(vectors)} texts into vectors of {vectors.shape[1]} numbers")
