"""Cost of encoding: measured in new processes, with bounds that arithmetic gives."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, PreTrainedTokenizerBase

from modeling_condenser.evaluation.cost import measure_cost
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.publishing.export import export_encoder

CPU = {"pooling": "max", "device": "cpu"}


@pytest.fixture
def large_folder(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    """120 MB of word vectors, which no step reads, and feed-forward layers of 8,192 numbers."""
    sizes = {"vocab_size": 120_000, "hidden_size": 256, "intermediate_size": 8192}
    config = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    wordpiece_tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_step_is_measured_with_its_activations_and_without_the_memory_of_the_caller(large_folder):
    held = torch.ones(100_000_000)  # 400 MB, which must not count
    cost = measure_cost(large_folder, settings=CPU)
    assert (cost["device"], cost["length"], cost["dtype"]) == ("cpu", 64, "float32")
    assert cost["n_parameters"] > 120_000 * 256
    low, high = cost["quartiles"]
    assert 0 < low <= cost["seconds_per_step"] <= high
    weights, memory = 4 * cost["n_parameters"], cost["peak_memory_bytes"]
    activation = 8 * 64 * 8192 * 4  # texts x tokens x numbers of the feed-forward layer x bytes
    assert 120e6 < weights < weights + activation < memory < weights + 200e6
    assert len(held) == 100_000_000


@pytest.mark.slow
def test_the_cost_of_int8_weights_is_measured_too(bert_run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    contract = EncodingContract(8, 24, token_type_ids=True)
    folder = export_encoder(bert_run, tmp_path / "int8", contract=contract, onnx="int8")
    cost = measure_cost(folder, settings={"dtype": "int8"})
    assert (cost["device"], cost["dtype"]) == ("cpu", "int8") and cost["seconds_per_step"] > 0
    assert cost["n_parameters"] == AutoModel.from_pretrained(folder).num_parameters()


@pytest.mark.gpu
def test_on_a_gpu_memory_is_what_torch_allocated(large_folder):
    settings = {"pooling": "cls", "device": "cuda"}
    cost = measure_cost(large_folder, settings=settings)
    weights = 4 * cost["n_parameters"]
    assert cost["device"] == "cuda" and weights <= cost["peak_memory_bytes"] < weights + 150e6
