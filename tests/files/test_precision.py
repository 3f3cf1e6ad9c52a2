"""Precision by the machine."""

import pytest
import torch
import transformers.utils

from modeling_condenser.files.settings import is_bfloat16_fast, read_recipe


@pytest.fixture
def machine(monkeypatch):
    """Pretends to be a machine."""

    def pretend(*units: str, accelerator: bool | None = None, kind: str = "xpu") -> None:
        def emulated(*, including_emulation: bool = True) -> bool | None:
            return including_emulation or accelerator

        actual = dict.fromkeys(("avx512_f", "avx512_bf16", "amx_bf16"), False)
        has_one = accelerator is not None
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_one)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **given: emulated(**given))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
        monkeypatch.setattr(transformers.utils, "is_torch_bf16_gpu_available", lambda: accelerator)
        units_of_cpu = actual | dict.fromkeys(units, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units_of_cpu, raising=False)
        is_bfloat16_fast.cache_clear()

    yield pretend
    is_bfloat16_fast.cache_clear()


@pytest.mark.parametrize(
    ("units", "accelerator", "kind", "is_fast"),
    [
        (["avx512_f"], None, "", False),
        (["avx512_bf16"], None, "", True),
        (["amx_bf16"], None, "", True),
        ([], True, "xpu", True),
        (["amx_bf16"], False, "xpu", False),
        ([], True, "cuda", True),
        ([], False, "cuda", False),  # a T4 or V100, which emulates it
        ([], True, "mps", False),
    ],
)
def test_bfloat16_is_chosen_where_there_are_units_for_it(
    machine, units, accelerator, kind, is_fast, caplog
):
    caplog.set_level("INFO", "modeling_condenser")
    machine(*units, accelerator=accelerator, kind=kind)
    assert read_recipe("pretrain/own-text")["bf16"] is is_fast
    assert caplog.text.count("units for bfloat16") == 1
    is_bfloat16_fast.cache_clear()
    assert read_recipe("pretrain/own-text", {"bf16": not is_fast})["bf16"] is not is_fast
    assert caplog.text.count("units for bfloat16") == 1
