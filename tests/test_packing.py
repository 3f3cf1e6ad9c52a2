"""Packed batches against padded ones: the same losses and gradients, for all that can be packed."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    packed_attention,
)
from modeling_condenser.packing import ReadRows, use_packing, why_not_packed
from tests.backbones.encoders import BACKBONES

PADDED_ONLY = ("DeBERTa-v2", "DeBERTa-v3", "MPNet")
# ALBERT calls one layer again and again; ModernBERT projects keys and queries at once.
COMPUTE_ALL_ROWS = ("ALBERT", "ModernBERT")
PACKING = [name for name in BACKBONES if name not in PADDED_ONLY]

# Which torch says where nested tensors meet no kernel of their own, as on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.fixture(params=PACKING)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["_attend_runs", "_attend_padded", "_attend_nested"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for large blocks on a CPU, for small ones there, and for all on CUDA.

    Nested tensors are attended by another kernel here, but by the same call.
    """

    def choose(rows: Any, blocks: Any) -> Any:
        has_no_kernel = request.param == "_attend_nested" and blocks.window is not None
        return getattr(packed_attention, "_attend_padded" if has_no_kernel else request.param)

    monkeypatch.setattr(packed_attention, "_choose_way", choose)


def make_model(name: str, model_class: Any = CondenserForPreTraining, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = CondenserConfig(encoder_config=BACKBONES[name].config(positions=40), **settings)
    return model_class(config).double().eval()


def pack(batch: dict[str, torch.Tensor], *, filler: int = 0) -> dict[str, Any]:
    """The blocks of a padded batch end to end, and behind them one of padding alone."""
    is_token = batch["attention_mask"].bool()
    lengths = [int(n) for n in is_token.sum(1)] + [filler] * (filler > 0)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()

    def row(name: str, padding: int) -> torch.Tensor:
        return torch.cat([batch[name][is_token], torch.full((filler,), padding)])[None]

    return {
        "input_ids": row("input_ids", 0),
        "labels": row("labels", -100),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def losses_and_gradients(model: Any, batch: dict[str, Any]) -> tuple[list[float], dict]:
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    losses = [loss.item() for loss in (output.head_loss, output.late_loss) if loss is not None]
    return losses, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(found: tuple, expected: tuple, tolerance: float = 1e-9) -> None:
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert found[1].keys() == expected[1].keys()
    largest = max(gradient.abs().max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        difference = (found[1][name] - gradient).abs().max() / largest
        assert difference < tolerance, name


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("model_class", [CondenserForPreTraining, CondenserForMaskedLM])
def test_a_packed_batch_has_the_losses_and_gradients_of_the_padded_one(
    name: str, model_class: Any
) -> None:
    """In blocks of up to 40 tokens, wider than ModernBERT's local attention."""
    model = make_model(name, model_class)
    batch = BACKBONES[name].batch(6, 40)
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    assert (model.choose_rows is None) == (name in COMPUTE_ALL_ROWS)
    assert_same(losses_and_gradients(model, pack(batch)), expected)
    assert_same(losses_and_gradients(model, pack(batch, filler=7)), expected)
    assert_same(losses_and_gradients(model, batch), expected)  # still takes padded ones
    use_packing(model, narrow=False)
    assert model.choose_rows is None
    assert_same(losses_and_gradients(model, pack(batch)), expected)


@pytest.mark.usefixtures("attention")
def test_a_packed_batch_gives_the_late_vectors_of_the_padded_one(name: str) -> None:
    model = make_model(name)
    batch = BACKBONES[name].batch(6, 40)
    is_token = batch["attention_mask"].bool()
    expected, _, _ = model.encode(batch["input_ids"], batch["attention_mask"])
    use_packing(model)
    packed = pack(batch)
    del packed["labels"]
    found, _, _ = model.encode(**packed)
    torch.testing.assert_close(found[0], expected[is_token], rtol=0, atol=1e-10)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("model_class", [CondenserForPreTraining, CondenserForMaskedLM])
def test_the_blocks_dense_vectors_are_the_late_cls_alone_or_with_the_losses(
    name: str, model_class: Any
) -> None:
    model = make_model(name, model_class)
    batch = BACKBONES[name].batch(6, 40)
    late = model.condenser(batch["input_ids"], attention_mask=batch["attention_mask"])
    expected = late.last_hidden_state[:, 0]
    use_packing(model)
    for inputs, n_vectors in ((batch, 6), (pack(batch), 6), (pack(batch, filler=7), 7)):
        for vectors_only in (True, False):
            output = model(**inputs, vectors_only=vectors_only)
            assert len(output.cls_late) == n_vectors  # the last is the filler's, if there is any
            torch.testing.assert_close(output.cls_late[:6], expected, rtol=0, atol=1e-10)
            assert (output.loss is None) == vectors_only
            assert len(output) == 1 or not vectors_only


def test_lengths_that_are_not_said_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "_LARGE_CALL", math.inf)  # in one call
    model = make_model(name)
    batch = BACKBONES[name].batch(6, 40)
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    packed = pack(batch)
    del packed["max_length_q"], packed["max_length_k"]
    assert_same(losses_and_gradients(model, packed), expected)


@pytest.mark.parametrize(
    ("lengths", "width", "way"),
    [
        ((400, 500), 16, "_attend_runs"),
        ((4, 5), 16, "_attend_padded"),
        ((4,), 2048, "_attend_runs"),
    ],
)
def test_large_blocks_are_attended_one_by_one_and_small_ones_in_one_call(
    lengths: tuple[int, ...], width: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(1, 2, sum(lengths), width // 2)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    lines = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    expected, _ = packed_attention.attend(torch.nn.Identity(), rows, rows, rows, None, **lines)
    for other in {"_attend_runs", "_attend_padded"} - {way}:
        monkeypatch.delattr(packed_attention, other)
    found, _ = packed_attention.attend(torch.nn.Identity(), rows, rows, rows, None, **lines)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("n_queries", [None, 1], ids=["all queries", "one a block"])
def test_neighbours_of_equal_length_share_a_call_up_to_a_limit(
    n_queries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, heads, size = [5, 5, 5, 7, 7, 5], 2, 8
    queries = [n_queries or length for length in lengths]
    query = torch.randn(1, heads, sum(queries), size)
    key, value = torch.randn(2, 1, heads, sum(lengths), size)
    lines = {
        "cu_seq_lens_q": torch.tensor([0, *queries]).cumsum(0).int(),
        "cu_seq_lens_k": torch.tensor([0, *lengths]).cumsum(0).int(),
    }
    expected = [
        F.scaled_dot_product_attention(*block)[0].transpose(0, 1)
        for block in zip(
            query.split(queries, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
        )
    ]
    calls = []

    def count(*rows: Any, **kwargs: Any) -> torch.Tensor:
        calls.append((rows[0].shape[0], rows[1].shape[2]))
        return F.scaled_dot_product_attention(*rows[:3])

    monkeypatch.setattr(packed_attention, "_attention", count)
    monkeypatch.setattr(packed_attention, "_LARGE_CALL", 0)
    for limit, shapes in (
        (10**6, [(3, 5), (2, 7), (1, 5)]),
        (10 * heads * size, [(2, 5), (1, 5), (1, 7), (1, 7), (1, 5)]),
        (1, [(1, length) for length in lengths]),
    ):
        calls.clear()
        monkeypatch.setattr(packed_attention, "_LARGEST_CALL", limit)
        found, _ = packed_attention.attend(torch.nn.Identity(), query, key, value, None, **lines)
        torch.testing.assert_close(found[0], torch.cat(expected), rtol=0, atol=1e-6)
        assert calls == shapes


@pytest.mark.parametrize(
    ("device", "window", "way"),
    [("cuda", None, "nested"), ("cuda", 64, "padded"), ("xpu", None, "padded")],
)
def test_accelerators_attend_to_all_blocks_at_once(
    device: str, window: int | None, way: str
) -> None:
    key = SimpleNamespace(device=torch.device(device), numel=lambda: 10**9)
    starts = torch.tensor([0, 3, 7])
    blocks = packed_attention._Blocks(starts, starts, 4, 4, window)
    chosen = packed_attention._choose_way((None, key, None), blocks)
    assert chosen is getattr(packed_attention, f"_attend_{way}")


@pytest.mark.usefixtures("attention")
def test_a_block_sees_nothing_of_its_neighbours(name: str) -> None:
    model = make_model(name)
    use_packing(model)
    packed = pack(BACKBONES[name].batch(3, 12))
    before = model.encode(**{k: v for k, v in packed.items() if k != "labels"})[0]
    start, end = packed["cu_seq_lens_q"][1:3].tolist()
    packed["input_ids"][0, start:end] = 5
    after = model.encode(**{k: v for k, v in packed.items() if k != "labels"})[0]
    changed = (before != after).any(dim=-1)[0]
    assert changed[start:end].all()
    assert not changed[:start].any() and not changed[end:].any()


def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    if name == "ALBERT":
        pytest.skip("ALBERT has no gradient checkpointing in transformers")
    model = make_model(name).train()  # without dropout
    batch = BACKBONES[name].batch(6, 40)
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    model.gradient_checkpointing_enable()
    assert_same(losses_and_gradients(model, pack(batch)), expected)


def test_the_head_without_a_skip_reads_all_of_the_last_layer() -> None:
    model = make_model("BERT", skip_from=4)
    batch = BACKBONES["BERT"].batch(6, 40)
    expected = losses_and_gradients(model, batch)
    use_packing(model)
    assert model.choose_rows is None
    assert_same(losses_and_gradients(model, pack(batch)), expected)


@pytest.mark.parametrize("late_mlm", [True, False])
def test_the_last_layers_compute_only_cls_and_masked_tokens(late_mlm: bool) -> None:
    model = make_model("BERT", late_mlm=late_mlm)
    batch = pack(BACKBONES["BERT"].batch(64, 40))
    use_packing(model)
    seen: list[int] = []
    for layer in (*model.condenser.layers, *model.head):
        layer.intermediate.register_forward_hook(
            lambda module, given, output: seen.append(output.shape[1])
        )
    model(**batch)
    n_read = int((batch["labels"] != -100).sum()) + 64
    n_rounded = -(-n_read // 64) * 64
    n_all = batch["input_ids"].shape[1]
    assert n_rounded < n_all / 2
    assert seen == [n_all, n_all, n_all, n_rounded, n_all, n_rounded]
    seen.clear()
    model(**batch, output_hidden_states=True)  # which asks for all of them
    assert seen == [n_all] * 6


def test_the_rows_that_are_read_hold_every_cls_and_masked_token() -> None:
    labels = torch.full((1, 300), -100)
    labels[0, [3, 4, 120, 299]] = 7
    starts = torch.tensor([0, 100, 130, 300], dtype=torch.int32)
    read = ReadRows.of(labels, starts)
    assert len(read.columns) == 64
    assert {0, 3, 4, 100, 120, 130, 299} <= set(read.columns.tolist())
    assert read.columns.tolist() == sorted(set(read.columns.tolist()))
    bounds = read.starts.tolist()
    assert read.columns[bounds[:-1]].tolist() == [0, 100, 130]
    assert bounds[-1] == 64


@pytest.mark.parametrize("name", PADDED_ONLY)
def test_an_encoder_with_attention_of_its_own_is_refused(name: str) -> None:
    model = make_model(name)
    assert "padded batches only" in (why_not_packed(model.condenser.encoder) or "")
    with pytest.raises(ValueError, match="Batches cannot be packed.*packed: false"):
        use_packing(model)


def test_a_checkpoint_does_not_say_how_it_was_packed(tmp_path: Path) -> None:
    model = make_model("RoBERTa").float()
    use_packing(model)
    model.save_pretrained(tmp_path)
    assert "packed" not in (tmp_path / "config.json").read_text()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "condenser"
    opened = AutoModel.from_pretrained(tmp_path)
    assert opened.encoder.config._attn_implementation == "sdpa"
