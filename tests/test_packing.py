"""Packed batches against padded ones: the same losses and gradients.

`tests/backbones` compares packed batches of every encoder with the equations.
"""

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    cpu_kernels,
    packed_attention,
)
from modeling_condenser.packed_attention import cuda_attention
from modeling_condenser.packing import BatchShape, is_packing, pack, unpack, use_packing
from tests.backbones.encoders import BACKBONES
from tests.models import LOSSES, assert_same, losses_and_gradients, make_model
from tests.naive_condenser import vectors

WAYS = ("forward", "backward")
SHAPE = BatchShape(320, 20, 40, {"labels": 128, "head_targets": 128})


@pytest.fixture(params=["CPU", "CPU, one block a call", "CUDA"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on a device, for small blocks and for large ones."""
    if request.param == "CUDA":
        monkeypatch.setattr(packed_attention, "cpu_attention", cuda_attention)
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


@pytest.mark.usefixtures("attention")
def test_heads_may_share_their_keys():
    model = make_model("EuroBERT", changes={"num_key_value_heads": 1})
    batch = BACKBONES["EuroBERT"].batch(6, 40)
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    assert_same(losses_and_gradients(model, pack(batch)), expected)


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


def test_positions_are_right_whichever_models_share_a_configuration():
    config = CondenserConfig(encoder_config=BACKBONES["RoBERTa"].config())
    for _ in range(2):
        model = CondenserForPreTraining(config).eval()
        model.set_attn_implementation("sdpa")
        batch = BACKBONES["RoBERTa"].batch(6, 24)
        expected = model(**batch).loss
        for _ in range(2):
            use_packing(model)
            torch.testing.assert_close(model(**pack(batch)).loss, expected)
            model.set_attn_implementation("sdpa")
    use_packing(model)
    assert is_packing(model) and not is_packing(CondenserForMaskedLM(config))


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


class LargestTensor(TorchDispatchMode):
    """Names of the operators that run, and the numbers of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.size = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None):
        found = operator(*args, **(kwargs or {}))
        self.names.append(operator.name())
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return found


def test_local_attention_in_half_precision_is_one_operator_without_padding_or_masks():
    """Two blocks of 8,192 tokens and one of 8, in shapes only, because it needs a GPU."""
    starts = torch.empty(4, dtype=torch.int32, device="meta")
    rows = [
        torch.empty(3, 16_392, 20, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for _ in range(3)
    ]
    with LargestTensor() as seen:
        output = cuda_attention(
            *rows, starts, starts, longest=8192, rate=0.1, scale=None, window=65
        )
        output.sum().backward()
    assert output.shape == (16_392, 3, 20) and output.dtype == torch.bfloat16
    assert [row.grad.shape for row in rows] == [(3, 16_392, 20)] * 3
    assert [seen.names.count(f"aten::_flash_attention_{way}") for way in WAYS] == [1, 1]
    assert seen.size <= 3 * 16_392 * 24  # heads of 20 are filled to 24


@pytest.mark.parametrize("is_narrowed", [False, True])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_older_gpus_and_float32_have_kernels_that_need_no_ampere(
    monkeypatch, dtype, window, is_narrowed
):
    monkeypatch.setattr(packed_attention, "_has_flash", lambda: False)
    torch.manual_seed(0)
    starts = torch.tensor([0, 7, 7, 20], dtype=torch.int32)
    rows = [torch.randn(2, 20, 8, dtype=dtype) for _ in range(3)]
    of_queries = starts
    if is_narrowed and window is None:  # local layers keep all queries
        of_queries = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
        rows[0] = rows[0][:, :5]
    options: Any = {"longest": 13, "rate": 0.0, "scale": None, "window": window}
    found = cuda_attention(*rows, of_queries, starts, **options)
    expected = cpu_kernels.cpu_attention(*rows, of_queries, starts, **options)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("n_queries", [20, 5])
def test_dropout_without_flash_attention_has_one_mask_in_both_passes(monkeypatch, n_queries):
    """The output is linear in the values: <output, g> is <values, gradient of the values>."""
    monkeypatch.setattr(packed_attention, "_has_flash", lambda: False)
    torch.manual_seed(0)
    starts = torch.tensor([0, 7, 7, 20], dtype=torch.int32)
    of_queries = starts if n_queries == 20 else torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    query, key = torch.randn(2, n_queries, 8), torch.randn(2, 20, 8)
    value = torch.randn(2, 20, 8, requires_grad=True)
    options: Any = {"longest": 13, "scale": None, "window": None}
    plain = cuda_attention(query, key, value, of_queries, starts, rate=0.0, **options)
    output = cuda_attention(query, key, value, of_queries, starts, rate=0.5, **options)
    assert not torch.allclose(output, plain)
    weight = torch.randn_like(output)
    output.backward(weight)
    torch.testing.assert_close((output * weight).sum(), (value * value.grad).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ModernBERT"])
@pytest.mark.parametrize("shape", [SHAPE, None])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_flash_attention_has_the_losses_and_gradients_of_padded_batches(name, shape, is_compiled):
    model = make_model(name).float().cuda()
    batch = {name: column.cuda() for name, column in BACKBONES[name].batch(6, 40).items()}
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    packed = {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in pack({n: c.cpu() for n, c in batch.items()}, shape=shape).items()
    }
    assert_same(losses_and_gradients(model, packed), expected, 1e-3)  # float32
    if is_compiled:
        torch.compiler.reset()
        model.compile()
    with torch.autocast("cuda", torch.bfloat16):
        found = losses_and_gradients(model, packed)
    assert_same({"loss": found["loss"]}, {"loss": expected["loss"]}, 3e-2)
    flat, flat_expected = (
        torch.cat([v.flatten() for n, v in sorted(each.items()) if n not in LOSSES]).double()
        for each in (found, expected)
    )
    assert torch.cosine_similarity(flat, flat_expected, dim=0) > 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 9])
def test_flash_attention_drops_weights_at_its_rate_and_sees_its_window(window):
    torch.manual_seed(0)
    starts = torch.tensor([0, 300, 300, 700], dtype=torch.int32, device="cuda")
    rows = [torch.randn(2, 700, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    options: Any = {"longest": 512, "scale": None, "window": window}
    plain = cuda_attention(*rows, starts, starts, rate=0.0, **options).float()
    block = torch.repeat_interleave(torch.arange(3, device="cuda"), starts.diff())
    position = torch.arange(700, device="cuda")
    mask = block[:, None] == block
    if window is not None:
        mask &= (position[:, None] - position).abs() < window
    wide = (row.float() for row in rows)
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, mask).transpose(0, 1)
    torch.testing.assert_close(plain, expected, rtol=3e-2, atol=3e-2)
    dropped = [
        cuda_attention(*rows, starts, starts, rate=0.3, **options).float() for _ in range(200)
    ]
    assert not torch.equal(dropped[0], dropped[1])
    assert (torch.stack(dropped).mean(0) - expected).abs().mean() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ModernBERT"])
@pytest.mark.parametrize(("shape", "rate"), [(SHAPE, None), (None, None), (SHAPE, 0.5)])
def test_a_compiled_model_is_one_graph_which_meets_new_batches_without_another(name, shape, rate):
    settings: Any = {"n_head_layers": 1, "head_mlm_probability": rate}
    model, compiled = (make_model(name, **settings) for _ in range(2))
    use_packing(compiled)
    torch.compiler.reset()
    counters.clear()
    compiled.compile(backend="aot_eager")  # graphs are counted; kernels do not matter here
    n_graphs = []
    for sizes in ((6, 40), (5, 33), (8, 30), (3, 25), (7, 38)):  # blocks, longest
        batch = BACKBONES[name].batch(*sizes)
        if rate is not None:  # masked a second time
            ids, labels = batch["input_ids"], batch["labels"]
            batch["head_input_ids"] = ids.where(labels == -100, 4)
            batch["head_targets"] = labels.where(ids % 2 == 0, -100)
        found = losses_and_gradients(compiled, pack(batch, shape=shape))
        assert_same(found, losses_and_gradients(model, batch))
        n_graphs.append(counters["stats"]["unique_graphs"])
    torch.compiler.reset()
    assert not counters["graph_break"]
    # Of new shapes, the first ones have few sizes.
    assert n_graphs == [1] * 5 if shape else n_graphs[3] == n_graphs[4], n_graphs
