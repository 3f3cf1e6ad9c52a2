"""The files of a plain encoder: weights, tokenizer, and the modules of sentence-transformers.

Travels to the Hub with `modeling_condenser.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def write_modules(folder: Path, dimension: int, contract: Mapping[str, Any]) -> None:
    """Write the files from which sentence-transformers 6 builds the modules around an encoder.

    Without them it would pool by the mean. `contract` has the fields of the package's
    `EncodingContract`; only pooling and similarity must be there.
    """
    base = "sentence_transformers.base.modules"
    modules = {
        "": f"{base}.transformer.Transformer",
        "1_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    }
    files: dict[str, Any] = {
        "1_Pooling/config.json": {
            "embedding_dimension": dimension,
            "pooling_mode": contract["pooling"],
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {
                "query": contract.get("query_prompt", ""),
                "document": contract.get("passage_prompt", ""),
            },
            "default_prompt_name": None,
            "similarity_fn_name": contract["similarity"],
            "title_separator": contract.get("title_separator", " "),  # which the library ignores
        },
    }
    if contract["similarity"] == "cosine":
        modules["2_Normalize"] = f"{base}.normalize.Normalize"
        files["2_Normalize/config.json"] = {}  # the Hub has no empty folders
    if "query_max_length" in contract:
        query, passage = contract["query_max_length"], contract["passage_max_length"]
        files["sentence_bert_config.json"] = {
            "max_seq_length": max(query, passage),
            "query_length": query,
            "document_length": passage,
        }
    files["modules.json"] = [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (path, kind) in enumerate(modules.items())
    ]
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(f"{text}\n", "utf-8")


def write_encoder(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contract: Mapping[str, Any],
) -> None:
    """Write a plain encoder: weights, tokenizer, and modules, which state its contract.

    `contract` has the fields of the package's `EncodingContract`, of which those with a default may
    be left out. The tokenizer is changed (`save_tokenizer`), and the encoder names no code of
    others any more.
    """
    vars(encoder.config).pop("auto_map", None)
    encoder.save_pretrained(folder)
    save_tokenizer(tokenizer, contract, folder)
    write_modules(folder, encoder.config.hidden_size, contract)


def find_tokenizer(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's training, or of the checkpoint that it was loaded from."""
    if model.trained_tokenizer is not None:
        return model.trained_tokenizer
    name = model.name_or_path or model.config.encoder_config.name_or_path
    if not name:
        raise ValueError(
            "The model was not loaded from a checkpoint: pass its tokenizer as processing_class "
            "(in save_encoder: tokenizer)."
        )
    return AutoTokenizer.from_pretrained(name, **model.opened_with)


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, contract: Mapping[str, Any], folder: Path
) -> None:
    """Save a tokenizer with the lengths and inputs of a contract, and padding at the right."""
    longest = max(contract["query_max_length"], contract["passage_max_length"])
    tokenizer.model_max_length = longest
    tokenizer.padding_side = "right"  # else learned positions of a text depend on its neighbours
    segments = ["token_type_ids"] if contract.get("token_type_ids") else []
    tokenizer.model_input_names = ["input_ids", *segments, "attention_mask"]
    # The attribute alone is not saved.
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    # Of the call that opened it, and code of others.
    for name in ("is_local", "local_files_only", "auto_map"):
        tokenizer.init_kwargs.pop(name, None)
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()  # of the last call
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)
