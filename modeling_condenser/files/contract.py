"""The encoding contract: how a text becomes a vector, as the files of a model state it.

The files are those of sentence-transformers and of the tokenizer. Only the title separator is an
addition of this package, which sentence-transformers ignores: `title_separator` in
config_sentence_transformers.json. `encoder_parts.py` writes these files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .atomic import read_json
from .models import MODULES_CONFIG_FILE, MODULES_FILE, is_checkpoint, module_paths
from .settings import parse_settings

UNLIMITED = 10**9  # transformers writes 10^30 for a tokenizer without a maximum length

Pooling = Literal["cls", "mean", "max"]
Similarity = Literal["dot", "cosine", "euclidean"]

_OLD_FILE = "encoding_contract.json"  # of exports by earlier versions: all fields
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' order
_OLD_POOLINGS = {  # fields of a pooling's config.json in older versions of the library
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class EncodingContract:
    """How a retriever encodes.

    Attributes:
        query_max_length, passage_max_length: in tokens, with special tokens; the rest is cut.
        pooling: of the last hidden state: "cls" is position 0, as in the Condenser papers; "mean"
            and "max" are over all tokens of the text, special tokens included.
        similarity: "cosine" is the inner product of unit vectors, "euclidean" the negative
            distance.
        title_separator: between the title and the text of a passage with a title.
        query_prompt, passage_prompt: put before every query or passage.
        token_type_ids: whether segment ids are passed; pre-training passes none.
    """

    query_max_length: int
    passage_max_length: int
    pooling: Pooling = "cls"
    similarity: Similarity = "dot"
    title_separator: str = " "
    query_prompt: str = ""
    passage_prompt: str = ""
    token_type_ids: bool = False

    @classmethod
    def load(cls, folder: Path) -> "EncodingContract":
        """Read the contract of a model that this package wrote, without opening the model.

        Raises:
            ValueError: the files do not state a field, or state a value that is not supported.
        """
        return parse_settings(read_contract(folder), cls)[0]

    def query(self, text: str) -> str:
        """A query as it is encoded."""
        return f"{self.query_prompt}{text}"

    def passage(self, title: str, text: str) -> str:
        """A passage as it is encoded."""
        body = f"{title}{self.title_separator}{text}" if title else text
        return f"{self.passage_prompt}{body}"


def states_encoding(folder: Path) -> bool:
    """Whether a model's files say how it pools and compares; those of a plain encoder do not."""
    return (folder / MODULES_FILE).is_file()


def read_contract(folder: Path) -> dict[str, Any]:
    """The fields of `EncodingContract` that the files of a model state.

    The values are those of the files, so a pooling or similarity may not be supported.
    """
    settings = read_json(folder / MODULES_CONFIG_FILE, {})
    prompts = settings.get("prompts") or {}
    passage_prompts = [prompts[name] for name in _PASSAGE_PROMPTS if prompts.get(name)]
    transformer = folder / module_paths(folder)[0]
    tokenizer = read_json(transformer / "tokenizer_config.json", {})
    fields = {
        **_read_lengths(transformer, tokenizer),
        **_read_modules(folder),
        "title_separator": settings.get("title_separator"),
        "query_prompt": prompts.get("query"),
        "passage_prompt": passage_prompts[0] if passage_prompts else None,
    }
    if settings.get("similarity_fn_name"):
        fields["similarity"] = settings["similarity_fn_name"]
    if "model_input_names" in tokenizer:
        fields["token_type_ids"] = "token_type_ids" in tokenizer["model_input_names"]
    if is_checkpoint(folder):
        fields["token_type_ids"] = False  # pre-training passes none, whatever the tokenizer says
    known = {name: value for name, value in fields.items() if value is not None}
    return {**known, **read_json(folder / _OLD_FILE, {})}


def _read_lengths(transformer: Path, tokenizer: dict[str, Any]) -> dict[str, int | None]:
    """The maximum lengths of queries and passages; None if the files have no limit."""
    config: dict[str, Any] = {}
    for file in transformer.glob("sentence_*_config.json"):  # old models have other names
        config = read_json(file, {})
    both = config.get("max_seq_length") or tokenizer.get("model_max_length")
    if both is not None and both >= UNLIMITED:
        both = None
    return {
        "query_max_length": config.get("query_length") or both,
        "passage_max_length": config.get("document_length") or both,
    }


def _read_modules(folder: Path) -> dict[str, str]:
    """Pooling, and the similarity of models that end in a normalisation."""
    modules = read_json(folder / MODULES_FILE, [])
    if not modules:
        return {}
    fields = {"pooling": "none"}
    for module in modules:
        if module["type"].endswith(".Pooling"):
            fields["pooling"] = _name_pooling(
                read_json(folder / module["path"] / "config.json", {})
            )
    if modules[-1]["type"].endswith(".Normalize"):
        fields["similarity"] = "cosine"
    return fields


def _name_pooling(config: dict[str, Any]) -> str:
    """Such as "cls", or "cls+mean without prompt"."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [name for field, name in _OLD_POOLINGS.items() if config.get(field)]
    if isinstance(modes, list):
        modes = "+".join(modes) or "mean"
    return modes if config.get("include_prompt", True) else f"{modes} without prompt"
