"""Adds an encoder with int8 weights, as an ONNX file, to the folder of a model."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from modeling_condenser.files.models import INT8_FILE

TEXTS = ["which way do rivers run", "to the sea"]  # of two lengths, as an example


def add_int8(folder: Path) -> None:
    """Add `INT8_FILE` to a model's folder: its encoder, for onnxruntime and sentence-transformers.

    The inputs are those of the tokenizer, (B, T) int64; the output `last_hidden_state` is (B, T, H)
    float32. Pooling and what follows are not in it. Each channel of a weight has its own scale,
    without which vectors are much worse. Weights take 7 bits, because products of 8 bits overflow
    on processors without VNNI.

    Raises:
        ValueError: onnx, onnxscript or onnxruntime is not installed.
    """
    from sentence_transformers import SentenceTransformer  # takes seconds

    try:
        import onnxscript  # noqa: F401 (torch's exporter imports it)
        from onnxruntime.quantization import quantize_dynamic
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata
    except ModuleNotFoundError as error:
        hint = 'pip install -c constraints.txt -e ".[onnx]"'
        raise ValueError(f"{error.name} is not installed: {hint}") from error
    # ONNX Runtime is faster with the operators of eager attention than with those of sdpa.
    settings: Any = {"dtype": torch.float32, "attn_implementation": "eager"}
    opened: Any = SentenceTransformer(str(folder), device="cpu", model_kwargs=settings)
    inputs = dict(opened.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    graph = _export(_HiddenStates(opened[0].model), inputs)
    add_pre_process_metadata(graph)  # or it warns that the model was not preprocessed
    (folder / INT8_FILE).parent.mkdir(exist_ok=True)
    quantize_dynamic(graph, folder / INT8_FILE, per_channel=True, reduce_range=True)


class _HiddenStates(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.encoder(**features).last_hidden_state


def _export(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Any:
    """Export a module to an onnx.ModelProto, without the exporter's notes, which hold local paths.

    `inputs` are examples, (B, T) int64, whose sizes may vary.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside of the exporter
        program: Any = torch.onnx.export(
            module.eval(),
            kwargs={"features": inputs},
            dynamo=True,
            verbose=False,
            input_names=[*inputs],
            output_names=["last_hidden_state"],
            dynamic_shapes={"features": dict.fromkeys(inputs, any_size)},
        )
    model = program.model_proto
    graph = model.graph
    items = [model, graph, *graph.node, *graph.value_info]
    items += [*graph.input, *graph.output, *graph.initializer]
    for item in items:
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    return model
