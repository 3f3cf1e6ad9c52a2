"""The benchmark for a GPU, with tiny models on a CPU."""

import json
import sys

import pytest

from benchmarks import gpu


@pytest.mark.slow
def test_each_cell_is_measured_without_datasets_and_a_failure_loses_no_other(tmp_path, monkeypatch):
    for name in ("datasets", "faiss", "bm25s", "pretense"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_GROUPS", (*gpu._GROUPS[:1], ("BERT base", 128, 0.1)))
    monkeypatch.setattr(gpu, "_run_tests", lambda: "2 passed")
    monkeypatch.setattr(sys, "argv", ["gpu", str(tmp_path / "out.json"), "--tiny"])
    gpu.main()
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["tests"] == "2 passed"
    measured, late = report["cells"][:7], report["cells"][7:]
    for cell in measured:
        if cell["side"] == "pretense":
            assert cell["error"] == "ImportError: it is not installed"
        else:
            assert cell["tokens/s"] > 0 and "error" not in cell
    assert [cell["error"] for cell in late] == ["no time or a crash"] * 7
