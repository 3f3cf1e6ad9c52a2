"""Cost of encoding: measured in fresh processes, with bounds that arithmetic gives."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.cost import EncodingCost, measure_cost


@pytest.fixture
def large_folder(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    """120 MB of word vectors, which no step reads, and feed-forward layers of 8,192 numbers."""
    config = BertConfig(
        vocab_size=120_000,
        hidden_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8192,
        max_position_embeddings=64,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    wordpiece_tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_step_is_measured_as_asked_for_and_without_what_the_caller_holds(
    large_folder: Path,
) -> None:
    held = torch.ones(100_000_000)  # 400 MB, which the fresh process must not see
    retriever = Retriever(large_folder, pooling="max", device="cpu")
    settings = {"pooling": "max"}
    cost = measure_cost(
        large_folder, settings=settings, batch_size=2, length=16, n_steps=5, device="cpu"
    )
    assert (cost.device, cost.batch_size, cost.length, cost.n_steps) == ("cpu", 2, 16, 5)
    assert cost.dtype == "float32"
    assert cost.n_parameters == sum(p.numel() for p in retriever.model.parameters())
    low, high = cost.quartiles
    assert 0 < low <= cost.seconds_per_step <= high < 5
    assert cost.texts_per_second == pytest.approx(2 / cost.seconds_per_step)
    weights = 4 * cost.n_parameters
    assert weights > 120e6
    assert weights <= cost.peak_memory_bytes < weights + 150e6
    assert len(held) == 100_000_000


@pytest.mark.slow
def test_memory_grows_with_the_activations_of_a_step(large_folder: Path) -> None:
    settings = {"pooling": "cls"}
    small, large = (
        measure_cost(
            large_folder, settings=settings, batch_size=size, length=64, n_steps=2, device="cpu"
        ).peak_memory_bytes
        for size in (1, 32)
    )
    # Both sides of the activation: 31 texts more x 64 tokens x 8,192 numbers x 4 bytes.
    activation = 31 * 64 * 8192 * 4
    assert activation < large - small < 6 * activation


@pytest.mark.slow
def test_errors_of_the_fresh_process_are_raised_here(bert_folder: Path) -> None:
    with pytest.raises(ValueError, match="positions for 64 tokens only"):
        measure_cost(bert_folder, settings={"pooling": "cls"}, length=65, device="cpu")


@pytest.mark.gpu
def test_on_a_gpu_memory_is_what_torch_allocated(large_folder: Path) -> None:
    cost = measure_cost(
        large_folder, settings={"pooling": "cls"}, batch_size=1, length=8, device="cuda"
    )
    assert isinstance(cost, EncodingCost) and cost.device == "cuda"
    weights = 4 * cost.n_parameters
    assert weights <= cost.peak_memory_bytes < weights + 50e6


def test_a_size_below_one_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size is 0, expected at least 1"):
        measure_cost(tmp_path, batch_size=0)
