"""Make an encoder for a language without one: tokenizer, random weights, pre-training, fine-tuning.

The texts come with the package, and are English. Put a file of your language in their place, and a
larger model; docs/from-nothing.md has settings of published encoders.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from datasets import load_dataset
from tokenizers import BertWordPieceTokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertTokenizer, set_seed

from modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    evaluate,
    finetune,
)

KIND = "bert"  # or "modernbert"

corpus = files("modeling_condenser") / "health" / "corpus.jsonl.gz"
# A stream, with a column `text`: nothing is stored, whatever its size.
texts = load_dataset("json", data_files=str(corpus), split="train", streaming=True).take(1000)

folder = Path("runs/from-scratch", f"tokenizer-{corpus.name}")
if not folder.exists():  # each training gives another vocabulary, and a resumed run needs its own
    pieces = BertWordPieceTokenizer(lowercase=True, strip_accents=False)  # où is not ou
    pieces.train_from_iterator((row["text"] for row in texts), vocab_size=4000)
    made = BertTokenizer(pieces.get_vocab(), do_lower_case=True, strip_accents=False)
    made.model_max_length = 512
    made.save_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)

set_seed(0)
config = AutoConfig.for_model(
    KIND,
    vocab_size=len(tokenizer),
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=512,
    **{
        f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")
    },
)
model = CondenserForMaskedLM.from_encoder(AutoModelForMaskedLM.from_config(config))

settings: dict[str, Any] = {
    "max_length": 64,
    "max_steps": 20,  # some ten thousands for a language
    "per_device_train_batch_size": 32,
    "logging_steps": 10,
    "disable_tqdm": True,
}
arguments = CondenserTrainingArguments(
    "runs/from-scratch/mlm",
    objective="mlm",
    mlm_probability=0.3,
    learning_rate=1e-3,
    **settings,
)
CondenserTrainer(model, arguments, train_dataset=texts, processing_class=tokenizer).train()

# A Condenser head is random, so it comes when the encoder is not. After so little text the mean of
# the token vectors is the better dense vector; the papers' is "cls".
condenser = CondenserForPreTraining.from_encoder("runs/from-scratch/mlm", pooling="mean")
arguments = CondenserTrainingArguments(
    "runs/from-scratch/condenser",
    bow_weight=1.0,
    learning_rate=5e-4,
    **settings,
)
CondenserTrainer(condenser, arguments, train_dataset=texts).train()
encoder = condenser.save_encoder("runs/from-scratch/encoder")  # AutoModel opens it

retriever = finetune(
    encoder=str(encoder),
    collection="health",
    train_size=256,  # labels
    similarity="cosine",
    query_max_length=32,
    passage_max_length=32,
    per_device_train_batch_size=32,
    num_train_epochs=3,
    learning_rate=1e-3,
    load_best_model_at_end=False,
    disable_tqdm=True,
    output_dir="runs/from-scratch/retriever",
)
report = evaluate(
    systems=[str(retriever)],
    baseline="bm25",
    collection="health",
    split="dev",
    output_dir="runs/from-scratch/evaluation",
)
print(report)
