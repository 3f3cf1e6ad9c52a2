"""Search a list of texts for questions.

An encoder that was not trained to retrieve needs a stated pooling. A published embedding model, an
export or a fine-tuned retriever states its own: `Index.build(texts, "my-retriever")`.
"""

from importlib.resources import files

from datasets import load_dataset

from modeling_condenser import Index

corpus = files("modeling_condenser") / "health" / "corpus.jsonl.gz"
rows = load_dataset("json", data_files=str(corpus), split="train[:600]")
texts = [f"{row['title']}: {row['text']}" for row in rows]

index = Index.build(texts, "starter,pooling=mean,similarity=cosine,passage_max_length=64")
questions = ["what are the symptoms of hairy cell leukemia", "what are the stages of penile cancer"]
for question, found in zip(questions, index.search(questions, k=3), strict=True):
    print(question)
    for passage in found:
        print(f"  {passage.score:.3f}  {passage.text[:80]}")
