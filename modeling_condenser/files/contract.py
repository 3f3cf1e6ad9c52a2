"""The encoding contract: how a text becomes a vector, stored beside the weights.

A different pooling or title separator is the usual reason why a published figure cannot be
reproduced, so every consumer of an export reads these choices from one file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .models import MODULES_FILE
from .settings import parse_settings

CONTRACT_FILE = "encoding_contract.json"  # also written by `encoder_parts.py`
UNLIMITED = 10**9  # transformers writes 10^30 for a tokenizer without a maximum length

Pooling = Literal["cls", "mean", "max"]
Similarity = Literal["dot", "cosine", "euclidean"]
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' order


def states_encoding(folder: Path) -> bool:
    """Whether a model's files say how it makes vectors: an export, or sentence-transformers'."""
    return any((folder / name).is_file() for name in (CONTRACT_FILE, MODULES_FILE))


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
        """Read a repository's contract; a ValueError for an unknown field or value."""
        stored = json.loads((folder / CONTRACT_FILE).read_text(encoding="utf-8"))
        return parse_settings(stored, cls)[0]

    def query(self, text: str) -> str:
        """A query as it is encoded."""
        return f"{self.query_prompt}{text}"

    def passage(self, title: str, text: str) -> str:
        """A passage as it is encoded."""
        body = f"{title}{self.title_separator}{text}" if title else text
        return f"{self.passage_prompt}{body}"


def choose_prompts(prompts: Mapping[str, str | None]) -> dict[str, str]:
    """The prompts of a sentence-transformers model for queries and passages, as fields."""
    passage = next(filter(None, map(prompts.get, _PASSAGE_PROMPTS)), "")
    return {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}
