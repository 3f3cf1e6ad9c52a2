"""Open a repository as a user without this package does, in a process of its own.

    python open_repository.py FOLDER

The process fails and prints the reason if the repository cannot be used. This package cannot be
imported here, so a checkpoint is opened by the code in its repository.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

TEXTS = ["A text.", "Another one, which is longer than the first."]


def try_repository(folder: Path) -> None:
    """Encode with an encoder in both libraries, or compute a checkpoint's loss by its own code."""
    encoder_folder, modules = folder, folder / "modules.json"
    if modules.is_file():
        encoder_folder /= json.loads(modules.read_text("utf-8"))[0]["path"]  # may be 0_Transformer
    config = json.loads((encoder_folder / "config.json").read_text("utf-8"))
    if config["model_type"] == "condenser":
        trusting: Any = {"trust_remote_code": True}
        has_head = "CondenserForPreTraining" in config["architectures"]
        opener = AutoModelForPreTraining if has_head else AutoModelForMaskedLM
        model, info = opener.from_pretrained(folder, output_loading_info=True, **trusting)
        tokenizer = AutoTokenizer.from_pretrained(folder, **trusting)
        batch = tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
        ids = batch["input_ids"]
        if has_head and config.get("head_mlm_probability") is not None:  # masks a second time
            batch |= {"head_input_ids": ids, "head_targets": ids}
        result = model.eval()(**batch, labels=ids).loss
    else:
        _, info = AutoModel.from_pretrained(encoder_folder, output_loading_info=True)
        encoder = SentenceTransformer(str(folder), device="cpu")
        result = torch.as_tensor(encoder.encode_document(TEXTS))
        transformer: Any = encoder[0]
        used = {name for name in transformer.model.state_dict() if "pooler" not in name}
        info["missing_keys"] = used & set(info["missing_keys"])  # not of a pooler or a decoder
    for name, what in {"missing_keys": "are missing", "unexpected_keys": "are unknown"}.items():
        if keys := sorted(info[name]):
            raise ValueError(f"{len(keys)} weights {what}, such as {keys[0]}")
    if not result.isfinite().all():
        raise ValueError("its results hold NaN or infinity")


if __name__ == "__main__":
    for package in ("modeling_condenser", "hub_scripts"):
        sys.modules[package] = None  # type: ignore[assignment]  # importing it raises
    try:
        try_repository(Path(sys.argv[1]))
    except Exception as error:  # a user would get it too
        sys.stdout.write(f"{type(error).__name__}: {error}")
        sys.exit(1)
