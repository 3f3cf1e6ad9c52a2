"""ONNX graphs of encoders: exported by torch, and quantised to int8 by onnxruntime."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from modeling_condenser.files.models import INT8_FILE


def export_graph(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], output: str) -> Any:
    """Export a module to an onnx.ModelProto, without the exporter's notes, which hold local paths.

    Args:
        module: maps `features`, such as `inputs`, to a tensor.
        inputs: name -> an example, (B, T) int64. T may vary, and B too if it is not 1.
        output: the tensor's name in the graph.

    Raises:
        ValueError: onnx or onnxscript is not installed.
    """
    try:
        import onnxscript  # noqa: F401 (torch's exporter imports it)
    except ModuleNotFoundError as error:
        raise ValueError(_install_hint(error)) from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    sizes = {
        name: {i: torch.export.Dim.DYNAMIC for i, size in enumerate(each.shape) if size > 1}
        for name, each in inputs.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside of the exporter
        program: Any = torch.onnx.export(
            module.eval(),
            kwargs={"features": dict(inputs)},
            dynamo=True,
            verbose=False,
            input_names=[*inputs],
            output_names=[output],
            dynamic_shapes={"features": sizes},
        )
    model = program.model_proto
    graph = model.graph
    parts = (graph.node, graph.value_info, graph.input, graph.output, graph.initializer)
    for item in (model, graph, *(item for part in parts for item in part)):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    return model


def write_int8(model: Any, file: Path) -> None:
    """Quantise the weights of an onnx.ModelProto, and write it.

    Each channel of a weight has its own scale, without which vectors are much worse. Weights take 7
    bits, because products of 8 bits overflow on processors without VNNI.

    Raises:
        ValueError: onnxruntime is not installed.
    """
    try:
        from onnxruntime.quantization import quantize_dynamic
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata
    except ModuleNotFoundError as error:
        raise ValueError(_install_hint(error)) from error
    add_pre_process_metadata(model)  # or it warns that the model was not preprocessed
    quantize_dynamic(model, file, per_channel=True, reduce_range=True)


def add_int8(folder: Path) -> None:
    """Add `INT8_FILE` to a model's folder: its encoder, for onnxruntime and sentence-transformers.

    The inputs are those of the tokenizer, (B, T) int64; the output `last_hidden_state` is (B, T, H)
    float32. Pooling and what follows are not in it.
    """
    from sentence_transformers import SentenceTransformer  # takes seconds

    # ONNX Runtime is faster with the operators of eager attention than with those of sdpa.
    how: Any = {"dtype": torch.float32, "attn_implementation": "eager"}
    opened: Any = SentenceTransformer(str(folder), device="cpu", model_kwargs=how)
    texts = ["which way do rivers run", "to the sea"]
    features = opened.tokenizer(texts, padding=True, return_tensors="pt")
    graph = export_graph(_HiddenStates(opened[0].model), dict(features), "last_hidden_state")
    (folder / INT8_FILE).parent.mkdir(exist_ok=True)
    write_int8(graph, folder / INT8_FILE)


class _HiddenStates(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.encoder(**features).last_hidden_state


def _install_hint(error: ModuleNotFoundError) -> str:
    return f'{error.name} is not installed: pip install -c constraints.txt -e ".[onnx]"'
