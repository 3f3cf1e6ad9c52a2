"""Export the query side of a retriever to ONNX: token ids of one query to its vector.

Pooling, truncation and normalisation are part of the graph, so that a consumer needs nothing of
the encoding contract but prompt and length.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.runs.whole_files import whole_file

Weights = Literal["float16", "float32"]

INPUT, OUTPUT = "input_ids", "sentence_embedding"
_SMALLEST = 1024  # numbers of a weight that is worth halving


class _QueryEncoder(torch.nn.Module):
    """Token ids of one query without padding, (1, T) int64, to its vector, (1, D)."""

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.model, self.contract = retriever.model, retriever.contract
        self.dimension = retriever.dimension

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        features = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if self.contract.token_type_ids:
            features["token_type_ids"] = torch.zeros_like(input_ids)
        vector = self.model(features)["sentence_embedding"][:, : self.dimension]
        return F.normalize(vector, dim=1) if self.contract.similarity == "cosine" else vector


def export_onnx(retriever: Retriever, file: Path, *, weights: Weights = "float16") -> None:
    """Write an ONNX graph that gives `Retriever.encode_queries`' vector of one query.

    Its input `input_ids` is (1, T) int64, its output `sentence_embedding` (1, D) float32. With
    float16 weights the file has half the size, and they are cast to float32 when it is opened:
    nothing is lost of a model that was stored in float16, such as `starter`.

    Raises:
        ValueError: onnx or onnxscript is not installed, or the pooling needs the prompt's length.
    """
    helper, numpy_helper = _import_onnx()
    if "prompt" in retriever.contract.pooling:
        raise ValueError(
            f"{retriever.folder} has the pooling {retriever.contract.pooling!r}, which the page"
            " does not support: state another one, such as pooling=mean."
        )
    example = torch.tensor([retriever.model.tokenizer("which way do rivers run")[INPUT]])
    with _quiet_exporter():
        program: Any = torch.onnx.export(
            _QueryEncoder(retriever).cpu().eval(),
            (example,),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({1: torch.export.Dim.DYNAMIC},),
        )
    model = program.model_proto
    _remove_traces(model)
    if weights == "float16":
        _halve_weights(model.graph, helper, numpy_helper)
    with whole_file(file) as stream:
        stream.write(model.SerializeToString())


def _import_onnx() -> tuple[Any, Any]:
    try:
        import onnxscript  # noqa: F401 (torch's exporter imports it)
        from onnx import helper, numpy_helper
    except ModuleNotFoundError as error:
        hint = 'pip install -c constraints.txt -e ".[space]"'
        raise ValueError(f"{error.name} is not installed: {hint}") from error
    return helper, numpy_helper


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's notes about torchvision and deprecations, which mean nothing here."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _remove_traces(model: Any) -> None:
    """Remove the exporter's notes, which hold source lines and local paths."""
    graph = model.graph
    noted = (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for item in (model, graph, *noted):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")


def _halve_weights(graph: Any, helper: Any, numpy_helper: Any) -> None:
    """Store the large weights as float16, each behind a cast to float32."""
    casts = []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size < _SMALLEST:
            continue
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if np.isfinite(half).all():
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(half, f"{name}_float16"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=1))  # 1 is float32
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
