"""Packed batches against padded ones: the same losses and gradients.

`tests/backbones` compares packed batches of every encoder with the equations.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    cpu_kernels,
    packing,
)
from modeling_condenser.packing import BatchShape, pack, unpack, use_packing
from tests.backbones.encoders import BACKBONES
from tests.models import assert_same, losses_and_gradients, make_model
from tests.naive_condenser import vectors

SHAPE = BatchShape(320, 20, 40, {"labels": 128, "head_targets": 128})

# torch warns where nested tensors have no kernel of their own, as on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.fixture(params=["CPU", "CPU, one block a call", "CUDA"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on a device, for small blocks and for large ones."""
    if request.param == "CUDA":
        monkeypatch.setattr(packing, "cpu_attention", packing.cuda_attention)
    elif request.param != "CPU":
        monkeypatch.setattr(cpu_kernels, "_LARGEST_CALL", 1)


def test_blocks_lie_end_to_end_the_longest_first_and_the_filler_behind_them():
    blocks = [[2, 5, 3], [2, 3], [2, 7, 8, 9, 3]]
    ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, blocks)), batch_first=True)
    labels = torch.where(ids != 0, 10 * ids, -100)
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    packed = pack(batch)
    text = [2, 7, 8, 9, 3, 2, 5, 3, 2, 3]
    assert packed["input_ids"].tolist() == [text + [0] * 54]
    assert packed["labels"].tolist() == [[10 * i for i in text] + [-100] * 54]
    positions = [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, *[0] * 54]
    assert packed["position_ids"].tolist() == [positions]
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert packed[name].tolist() == [0, 5, 8, 10, 64]
        assert packed[name].dtype == torch.int32
    assert packed["max_length_q"] == packed["max_length_k"] == 54  # the filler's
    assert packed["block_index"].tolist() == [1, 2, 0]
    assert packed["masked_index"].tolist() == [*range(10), *range(11, 61)]  # and 4 starts
    assert "attention_mask" not in packed
    for name, column in unpack(packed).items():
        assert torch.equal(column, batch[name]), name
    shape = BatchShape(128, 8, 50, {"labels": 64})  # so two are empty, and three are filler
    packed = pack(batch, shape=shape)
    assert packed["cu_seq_lens_q"].tolist() == [0, 5, 8, 10, 10, 10, 60, 110, 128]
    assert packed["block_index"].tolist() == [1, 2, 0, 3, 3, 3, 3, 3]
    assert (packed["max_length_q"], len(packed["masked_index"])) == (50, 56)
    assert torch.equal(unpack(packed)["labels"], labels)
    full = {name: torch.ones(2, 32).long() for name in batch}  # which needs no filler
    assert pack(full)["cu_seq_lens_q"].tolist() == [0, 32, 64]


@pytest.mark.usefixtures("attention")
# BERT; positions with an offset; local attention, in blocks that are wider
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ModernBERT"])
@pytest.mark.parametrize(
    ("model_class", "pooling"),
    [
        (CondenserForPreTraining, "cls"),
        (CondenserForMaskedLM, "cls"),
        (CondenserForPreTraining, "mean"),
    ],
)
def test_a_packed_batch_has_the_losses_gradients_and_vectors_of_the_padded_one(
    name, model_class, pooling
):
    model = make_model(name, model_class, pooling=pooling)
    batch = BACKBONES[name].batch(6, 40)
    original = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    batch["bow_targets"] = original.where(batch["attention_mask"] == 1, -100)
    expected = losses_and_gradients(model, batch)
    late = model.condenser(batch["input_ids"], attention_mask=batch["attention_mask"])
    expected_vectors = vectors(pooling, late.last_hidden_state, batch["attention_mask"])
    use_packing(model)
    for inputs in (pack(batch), pack(batch, shape=SHAPE), batch):  # still takes padded ones
        assert_same(losses_and_gradients(model, inputs), expected)
        for vectors_only in (True, False):
            output = model(**inputs, vectors_only=vectors_only)
            found = output.cls_late[: len(expected_vectors)]
            torch.testing.assert_close(found, expected_vectors, rtol=0, atol=1e-10)
            assert (output.loss is None) == vectors_only
    model.select_rows = None
    packed = pack(batch)
    for name in ("max_length_q", "max_length_k", "masked_index"):  # which are then counted
        del packed[name]
    assert_same(losses_and_gradients(model, packed), expected)


@pytest.mark.parametrize(
    ("name", "n_layers", "skip_from", "omits"),
    [
        ("BERT", 4, 2, True),
        ("ALBERT", 4, 2, False),  # calls one layer again and again
        ("ModernBERT", 4, 2, False),  # projects keys and queries at once
        ("BERT", 4, 4, False),  # the head reads all outputs of the last layer
        ("BERT", 1, 0, False),  # the head reads the inputs of the last layer
    ],
)
def test_rows_are_omitted_only_where_nothing_reads_them(name, n_layers, skip_from, omits):
    encoder_config = BACKBONES[name].config(num_hidden_layers=n_layers)
    config = CondenserConfig(encoder_config=encoder_config, skip_from=skip_from)
    model = CondenserForPreTraining(config)
    use_packing(model)
    assert (model.select_rows is not None) == omits


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_last_layers_compute_only_rows_that_are_read(pooling):
    """CLS and masked tokens; the mean reads all rows of the backbone."""
    model = make_model("BERT", pooling=pooling)
    batch = pack(BACKBONES["BERT"].batch(64, 40))
    use_packing(model)
    seen: list[int] = []
    for layer in (*model.condenser.layers, *model.head):
        layer.intermediate.register_forward_hook(lambda *call: seen.append(call[-1].shape[1]))
    model(**batch)
    n_read = int((batch["labels"] != -100).sum()) + len(batch["cu_seq_lens_q"]) - 1
    n_rounded = -(-n_read // 64) * 64
    n_all = batch["input_ids"].shape[1]
    assert n_rounded < n_all / 2
    assert seen == [*[n_all] * 3, n_rounded if pooling == "cls" else n_all, n_all, n_rounded]
    seen.clear()
    model(**batch, output_hidden_states=True)  # which asks for all of them
    assert seen == [n_all] * 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ModernBERT"])
@pytest.mark.parametrize("shape", [SHAPE, None])
def test_a_compiled_model_is_one_graph_which_meets_new_batches_without_another(name, shape):
    model, compiled = (make_model(name, n_layers=2, n_head_layers=1) for _ in range(2))
    use_packing(compiled)
    torch.compiler.reset()
    counters.clear()
    compiled.compile(backend="aot_eager")  # graphs are counted; kernels do not matter here
    n_graphs = []
    for sizes in ((6, 40), (5, 33), (8, 30), (3, 25), (7, 38)):  # blocks, longest
        batch = BACKBONES[name].batch(*sizes)
        found = losses_and_gradients(compiled, pack(batch, shape=shape))
        assert_same(found, losses_and_gradients(model, batch))
        n_graphs.append(counters["stats"]["unique_graphs"])
    torch.compiler.reset()
    assert not counters["graph_break"]
    # Of new shapes, the first ones have few sizes.
    assert n_graphs == [1] * 5 if shape else n_graphs[3] == n_graphs[4], n_graphs
