"""The encoding contract: how a text becomes a vector, written once and read by every consumer.

A retriever is its weights and these choices; a silently different pooling or title separator is the
usual reason why a published figure is not reproduced. transformers, sentence-transformers and the
evaluation script of a repository all follow the one file written here.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from modeling_condenser.pretraining.checkpoints import write_json
from modeling_condenser.pretraining.recipe import fill

CONTRACT_FILE = "encoding_contract.json"


@dataclass(frozen=True)
class EncodingContract:
    """How a retriever encodes.

    Attributes:
        pooling: which vector of the last hidden state; "cls" is position 0, as in the papers.
        similarity: "dot" for inner product, "cosine" for inner product of unit vectors.
        query_max_length: longest query in tokens, with special tokens; the rest is cut.
        passage_max_length: longest passage in tokens, with special tokens; the rest is cut.
        title_separator: stands between a passage's title and its text, where it has a title.
        token_type_ids: whether segment ids are passed; pre-training passes none.
    """

    query_max_length: int
    passage_max_length: int
    pooling: Literal["cls"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    title_separator: str = " "
    token_type_ids: bool = False

    def save(self, folder: Path) -> None:
        write_json(folder / CONTRACT_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "EncodingContract":
        """Read a repository's contract.

        Raises:
            FileNotFoundError: the folder has none, so how it encodes is unknown.
            ValueError: it has a field that this version does not know.
        """
        file = folder / CONTRACT_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{folder} has no {CONTRACT_FILE}, so how it encodes is unknown: export the "
                "encoder with `condenser export`, which writes it."
            )
        return fill(json.loads(file.read_text()), cls)[0]

    def passage(self, title: str, text: str) -> str:
        """The text of a passage as it is encoded."""
        return f"{title}{self.title_separator}{text}" if title else text
