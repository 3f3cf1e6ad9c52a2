"""Open a repository as a user without this package does, in a process of its own.

    python open_repository.py FOLDER encoder|checkpoint

Prints a JSON list of problems. This package cannot be imported here, so a checkpoint is opened by
the code in its repository.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

TEXTS = ["A text.", "Another one, which is longer than the first."]
TOLERANCE = 1e-4


def open_encoder(folder: str) -> list[str]:
    """Open an encoder with transformers and sentence-transformers, and compare their vectors."""
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    contract = json.loads(Path(folder, "encoding_contract.json").read_text())
    vectors = []
    for text in TEXTS:
        batch = tokenizer(
            contract["passage_prompt"] + text,
            truncation=True,
            max_length=contract["passage_max_length"],
            return_tensors="pt",
        )
        hidden = model.eval()(**batch).last_hidden_state[0].float().detach()  # (T, H)
        pooled = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.amax(0)}
        vectors.append(pooled[contract["pooling"]])
    expected = torch.stack(vectors)  # (2, H)
    if contract["similarity"] == "cosine":
        expected = torch.nn.functional.normalize(expected, dim=-1)
    found = torch.as_tensor(SentenceTransformer(folder, device="cpu").encode_document(TEXTS))
    problems = _lost_weights(info)
    if not torch.isfinite(expected).all():
        problems.append("vectors hold NaN or infinity")
    elif found.shape != expected.shape or (found - expected).abs().max() > TOLERANCE:
        problems.append("sentence-transformers and the encoding contract give different vectors")
    return problems


def open_checkpoint(folder: str) -> list[str]:
    """Open a pre-training checkpoint by its own code, and compute its losses."""
    asked: dict[str, Any] = {"trust_remote_code": True}
    whole, info = AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True, **asked)
    tokenizer = AutoTokenizer.from_pretrained(folder, **asked)
    batch = tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, 1] = batch["input_ids"][0, 1]
    with torch.no_grad():
        loss = whole.eval()(**batch, labels=labels).loss.item()
    return [*_lost_weights(info), *([] if math.isfinite(loss) else [f"the loss is {loss}"])]


def _lost_weights(info: dict[str, Any]) -> list[str]:
    named = {"missing_keys": "are missing", "unexpected_keys": "do not belong to it"}
    lost = {what: sorted(map(str, info[name])) for name, what in named.items()}
    return [f"{len(k)} weights {what}, such as {k[0]}" for what, k in lost.items() if k]


if __name__ == "__main__":
    for package in ("modeling_condenser", "hub_scripts"):
        sys.modules[package] = None  # type: ignore[assignment]  # importing it raises
    open_folder = {"encoder": open_encoder, "checkpoint": open_checkpoint}[sys.argv[2]]
    try:
        problems = open_folder(sys.argv[1])
    except Exception as error:  # a user would meet it too
        problems = [f"{type(error).__name__}: {error}"]
    sys.stdout.write(json.dumps(problems) + "\n")
