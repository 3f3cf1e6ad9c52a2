"""An encoder that ONNX Runtime computes on the CPU, in the place of a sentence-transformers one."""

from pathlib import Path
from typing import Any

import torch

from .models import INT8_FILE


class OnnxEncoder(torch.nn.Module):
    """Token ids to hidden states, by a file of `add_int8`; threads may share it.

    A ValueError is raised if onnxruntime is not installed.
    """

    def __init__(self, file: Path, config: Any) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            hint = 'pip install -c constraints.txt -e ".[onnx]"'
            raise ValueError(f"onnxruntime is not installed: {hint}") from error
        self.config = config
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(
            str(file),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # slower than its parts
        )
        self._inputs = [each.name for each in self._session.get_inputs()]

    def forward(self, **features: Any) -> dict[str, torch.Tensor]:
        """The hidden states of the last layer, (B, T, H) float32."""
        columns = {name: features[name].numpy() for name in self._inputs if name in features}
        [hidden] = self._session.run(None, columns)
        return {"last_hidden_state": torch.from_numpy(hidden)}


def int8_file(folder: Path) -> Path:
    """The int8 file of a model; a ValueError if it has none."""
    if not (folder / INT8_FILE).is_file():
        raise ValueError(
            f"{folder} has no {INT8_FILE}, which dtype=int8 needs: `condenser export {folder} OUT"
            " --onnx int8` writes a copy of the model with it."
        )
    return folder / INT8_FILE
