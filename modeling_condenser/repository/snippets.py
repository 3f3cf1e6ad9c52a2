"""Code on model cards: a contract in, snippets that do just what it says out.

Each runs as it stands once `OWNER/NAME` is the repository's name or folder; the tests run them.
"""

import json

from .contract import EncodingContract

PLACEHOLDER = "OWNER/NAME"
"""Stands in snippets until the repository's name is known."""

_QUERY, _TITLE, _TEXT = "what is the capital of Norway", "Oslo", "It is the capital of Norway."

_POOLING = {
    "cls": "    vectors = hidden[:, 0]",
    "mean": """    mask = batch["attention_mask"][..., None]
    vectors = (hidden * mask).sum(1) / mask.sum(1)""",
    "max": """    mask = batch["attention_mask"][..., None].bool()
    vectors = hidden.masked_fill(~mask, float("-inf")).amax(1)""",
}
_SCORES = {
    "dot": "queries @ passages.T",
    "cosine": "queries @ passages.T",
    "euclidean": "-torch.cdist(queries, passages)",
}


def sentence_transformers_snippet(contract: EncodingContract) -> str:
    """Queries and passages encoded and compared with sentence-transformers."""
    title = f"{_TITLE}{contract.title_separator}"
    return f'''from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{PLACEHOLDER}")
queries = model.encode_query([{_quoted(_QUERY)}])
title = {_quoted(title)}  # a passage without a title has none of it
passages = model.encode_document([title + {_quoted(_TEXT)}])
print(model.similarity(queries, passages))'''


def transformers_snippet(contract: EncodingContract) -> str:
    """The same with transformers alone."""
    unit = "\n    vectors = vectors / vectors.norm(dim=-1, keepdim=True)"
    normalised = unit if contract.similarity == "cosine" else ""
    return f'''import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{PLACEHOLDER}")
encoder = AutoModel.from_pretrained("{PLACEHOLDER}").eval()


@torch.no_grad()
def encode(texts, max_length):
    cut = dict(padding=True, truncation=True, max_length=max_length)
    batch = tokenizer(texts, return_tensors="pt", **cut)
    hidden = encoder(**batch).last_hidden_state
{_POOLING[contract.pooling]}{normalised}
    return vectors


queries = encode([{_quoted(contract.query(_QUERY))}], {contract.query_max_length})
passages = encode([{_quoted(contract.passage(_TITLE, _TEXT))}], {contract.passage_max_length})
print({_SCORES[contract.similarity]})'''


def package_snippet(contract: EncodingContract) -> str:
    """The same with this package, for whole collections."""
    numpy, scores = "", "queries @ passages.T"
    if contract.similarity == "euclidean":
        numpy = "import numpy as np\n"
        scores = "-np.linalg.norm(queries[:, None] - passages, axis=-1)"
    return f'''{numpy}from datasets import Dataset
from modeling_condenser.encoding.retriever import Retriever

retriever = Retriever("{PLACEHOLDER}")
queries = retriever.encode_queries([{_quoted(_QUERY)}])
passage = {{"_id": "1", "title": {_quoted(_TITLE)}, "text": {_quoted(_TEXT)}}}
passages = retriever.encode_passages(Dataset.from_list([passage]))
print({scores})'''


def command_snippet(has_script: bool) -> str:
    """Its commands, and the repository's own script."""
    lines = [
        f"condenser search {PLACEHOLDER} COLLECTION {_quoted(_QUERY)}",
        f"condenser evaluate {PLACEHOLDER} COLLECTION --baseline bm25",
    ]
    if has_script:
        lines += [
            "# without the package, from a copy of this repository:",
            "python evaluate_retrieval.py COLLECTION",
        ]
    return "\n".join(lines)


def checkpoint_snippet(auto_class: str) -> str:
    """A pre-training checkpoint opened three ways with transformers, by its own code.

    Args:
        auto_class: opens all that was trained: "AutoModelForPreTraining", or
            "AutoModelForMaskedLM" where there is no head.
    """
    names = sorted({"AutoModel", "AutoModelForMaskedLM", auto_class, "AutoTokenizer"})
    whole = (
        f"\ncondenser = {auto_class}.from_pretrained(name, **pinned)  # the whole"
        if auto_class != "AutoModelForMaskedLM"
        else ""
    )
    return f'''import torch
from transformers import {", ".join(names)}

name = "{PLACEHOLDER}"
pinned = dict(trust_remote_code=True, revision="main")  # better a commit, see below
tokenizer = AutoTokenizer.from_pretrained(name, **pinned)
encoder = AutoModel.from_pretrained(name, **pinned)  # the backbone
language_model = AutoModelForMaskedLM.from_pretrained(name, **pinned){whole}

mask = tokenizer.mask_token
batch = tokenizer(f"Oslo is the {{mask}} of Norway.", return_tensors="pt")
batch = {{key: batch[key] for key in ("input_ids", "attention_mask")}}
with torch.no_grad():
    logits = language_model.eval()(**batch).logits
position = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
print(tokenizer.decode(logits[0, position].topk(5).indices))'''


def continue_snippet() -> str:
    """Commands that go on with pre-training, or make a plain encoder."""
    return f"""# go on with pre-training on your own text; head and split are kept
condenser pretrain pretrain/own-text --encoder {PLACEHOLDER} \\
    --corpus my-documents.jsonl --output_dir runs/mine
# take the encoder out: a plain model without remote code, to be fine-tuned
condenser export {PLACEHOLDER} my-encoder"""


def _quoted(text: str) -> str:
    """A text as Python and JSON both write it."""
    return json.dumps(text, ensure_ascii=False)
