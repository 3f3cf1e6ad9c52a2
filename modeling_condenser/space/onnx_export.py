"""Export the query side of a retriever to ONNX, for transformers.js: token ids to a vector.

Pooling, truncation and normalisation are part of the graph, so the page needs only the prompt and
the length from the encoding contract.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from modeling_condenser.publishing.onnx_graph import export_graph, write_int8

if TYPE_CHECKING:  # it takes seconds to import, which help should not wait for
    from modeling_condenser.encoding.retriever import Retriever

Weights = Literal["float16", "float32", "int8"]

_SMALLEST = 1024  # numbers of a weight that is worth halving
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class _QueryEncoder(torch.nn.Module):
    """Token ids of one query without padding, (1, T) int64, to its vector, (1, D)."""

    def __init__(self, retriever: "Retriever") -> None:
        super().__init__()
        self.model, self.contract = retriever.model, retriever.contract
        self.dimension = retriever.dimension

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        input_ids = features["input_ids"]
        features = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if self.contract.token_type_ids:
            features["token_type_ids"] = torch.zeros_like(input_ids)
        vector = self.model(features)["sentence_embedding"][:, : self.dimension]
        return F.normalize(vector, dim=1) if self.contract.similarity == "cosine" else vector


def write_encoder(folder: Path, retriever: "Retriever", *, weights: Weights = "float16") -> None:
    """Write a retriever's tokenizer, and its graph to onnx/model.onnx, into a new folder.

    The graph's input `input_ids` is (1, T) int64, its output `sentence_embedding` (1, D) float32.
    Float16 weights halve the file and are cast to float32 when it is opened, which is exact for a
    model that was stored in float16, such as `starter`. Int8 weights are those of `write_int8`.

    Raises:
        ValueError: a library is not installed, or the retriever's tokenizer or pooling is not
            supported.
    """
    if "prompt" in retriever.contract.pooling or not retriever.model.tokenizer.is_fast:
        raise ValueError(
            f"{retriever.folder} pools without its prompt, or has a tokenizer without"
            " tokenizer.json, which the page does not support: state pooling=mean, or save a fast"
            " tokenizer there."
        )
    ids = torch.tensor([retriever.model.tokenizer("which way do rivers run")["input_ids"]])
    model = export_graph(_QueryEncoder(retriever), {"input_ids": ids}, "sentence_embedding")
    (folder / "onnx").mkdir(parents=True)
    file = folder / "onnx" / "model.onnx"
    if weights == "int8":
        write_int8(model, file)
    else:
        if weights == "float16":
            _halve_weights(model.graph)
        file.write_bytes(model.SerializeToString())
    for file in map(Path, retriever.model.tokenizer.save_pretrained(folder)):
        if file.name not in _TOKENIZER_FILES:
            file.unlink(missing_ok=True)
    transformer: Any = retriever.model[0]
    config = {"model_type": transformer.model.config.model_type}
    (folder / "config.json").write_text(json.dumps(config))


def _halve_weights(graph: Any) -> None:
    """Store the large weights as float16, each behind a cast to float32."""
    from onnx import helper, numpy_helper

    casts = []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size < _SMALLEST:
            continue
        if np.abs(values).max() <= np.finfo(np.float16).max:
            name = weight.name
            half = numpy_helper.from_array(values.astype(np.float16), f"{name}_float16")
            weight.CopyFrom(half)
            casts.append(helper.make_node("Cast", [half.name], [name], to=1))  # 1 is float32
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
