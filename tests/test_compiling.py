"""torch.compile: the same losses, and after a few batches no graph for another batch's shape."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from modeling_condenser.packing import use_packing
from tests.backbones.encoders import BACKBONES
from tests.test_packing import losses_and_gradients, make_model, pack

SHAPES = ((6, 40), (5, 33), (8, 30), (3, 25), (7, 38), (4, 22), (9, 31))  # blocks, longest


@pytest.fixture
def graphs() -> Iterator[dict[str, int]]:
    """Counts of this test alone, among them `unique_graphs`."""
    torch.compiler.reset()
    counters.clear()
    yield counters["stats"]
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_packed"), [("BERT", True), ("ModernBERT", False)])
def test_a_compiled_model_meets_new_shapes_without_new_graphs(
    name: str, is_packed: bool, graphs: dict[str, int]
) -> None:
    model, compiled = make_model(name), make_model(name)
    if is_packed:
        use_packing(compiled)
    compiled.compile(backend="eager")  # graphs are counted; kernels do not matter here
    numbers = []
    for shape in SHAPES:
        batch = BACKBONES[name].batch(*shape)
        expected, _ = losses_and_gradients(model, batch)
        found, _ = losses_and_gradients(compiled, pack(batch, filler=3) if is_packed else batch)
        assert found == pytest.approx(expected, rel=1e-9)
        numbers.append(graphs["unique_graphs"])
    assert numbers[0] > 0
    assert len(set(numbers[3:])) == 1, numbers
