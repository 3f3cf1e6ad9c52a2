"""Open a repository as a user without this package does, in a process of its own.

    python open_repository.py FOLDER encoder|checkpoint

Prints a JSON list of problems. This package cannot be imported here, so a checkpoint is opened by
the code in its repository.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

TEXTS = ["A text.", "Another one, which is longer than the first."]


def open_encoder(folder: str) -> list[str]:
    """Open an encoder with transformers and sentence-transformers, and encode with it."""
    _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    model: Any = SentenceTransformer(folder, device="cpu")
    vectors = torch.as_tensor(model.encode_document(TEXTS))
    contract = json.loads(Path(folder, "encoding_contract.json").read_text())
    found = {"pooling": model[1].pooling_mode, "similarity": model.similarity_fn_name}
    return _problems(info, vectors) + [
        f"{name} is {value} in sentence-transformers, but {contract[name]} in the contract"
        for name, value in found.items()
        if value != contract[name]
    ]


def open_checkpoint(folder: str) -> list[str]:
    """Open a pre-training checkpoint by its own code, and compute its losses."""
    asked: dict[str, Any] = {"trust_remote_code": True}
    whole, info = AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True, **asked)
    tokenizer = AutoTokenizer.from_pretrained(folder, **asked)
    batch = tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        loss = whole.eval()(**batch, labels=batch["input_ids"]).loss
    return _problems(info, loss)


def _problems(info: dict[str, Any], result: torch.Tensor) -> list[str]:
    """What is wrong with the weights that were loaded, and with what they compute."""
    named = {"missing_keys": "are missing", "unexpected_keys": "do not belong to it"}
    lost = {what: sorted(map(str, info[name])) for name, what in named.items()}
    problems = [f"{len(k)} weights {what}, such as {k[0]}" for what, k in lost.items() if k]
    return problems + ([] if result.isfinite().all() else ["its results hold NaN or infinity"])


if __name__ == "__main__":
    for package in ("modeling_condenser", "hub_scripts"):
        sys.modules[package] = None  # type: ignore[assignment]  # importing it raises
    open_folder = {"encoder": open_encoder, "checkpoint": open_checkpoint}[sys.argv[2]]
    try:
        problems = open_folder(sys.argv[1])
    except Exception as error:  # a user would meet it too
        problems = [f"{type(error).__name__}: {error}"]
    sys.stdout.write(json.dumps(problems) + "\n")
