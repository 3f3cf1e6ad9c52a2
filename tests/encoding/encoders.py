"""Encoders, and texts to encode with them, for the tests of encoding."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

LONG = "The glacier visits Oslo, and the violin measures the orchard near Kyoto. "
# Of very mixed length, out of order, with copies.
MIXED = [LONG * 9, "", "Why?", "東京大学 café naïveté \N{SNOWMAN}", LONG]
MIXED += [" ", "Why?", LONG * 2, "x"]


def save_modules(
    folder: Path,
    encoder: Path,
    modules: Callable[[int], list],
    *,
    max_seq_length: int = 64,
    **settings: object,
) -> Path:
    """Save a sentence-transformers model: an encoder, and the modules after it."""
    transformer = Transformer(str(encoder), max_seq_length=max_seq_length)
    following = modules(transformer.get_embedding_dimension())
    model = SentenceTransformer(modules=[transformer, *following], device="cpu", **settings)
    model.save_pretrained(str(folder))
    return folder


def save_pooled(folder: Path, encoder: Path, mode: object) -> Path:
    """Save a sentence-transformers model with one pooling and the dot product."""
    return save_modules(
        folder,
        encoder,
        lambda size: [Pooling(size, pooling_mode=mode)],
        similarity_fn_name="dot",
    )


def change_json(file: Path, **fields: object) -> None:
    """Change fields of a JSON file and its layout; None removes a field."""
    content = json.loads(file.read_text()) | fields
    removed = {name for name, value in fields.items() if value is None}
    kept = {name: value for name, value in content.items() if name not in removed}
    file.write_text(json.dumps(kept, indent=7))


def as_passages(texts: list[str], titles: list[str] | None = None) -> Dataset:
    return Dataset.from_dict({"title": titles or [""] * len(texts), "text": texts})


def with_segments(encoder: Path, folder: Path) -> Path:
    """A copy of an encoder whose tokenizer gives segment 1 to all tokens but the first."""
    shutil.copytree(encoder, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
    ).save_pretrained(folder)
    return folder
