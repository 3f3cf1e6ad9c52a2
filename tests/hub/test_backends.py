"""Exports in OpenVINO and ONNX Runtime: the vectors and hidden states that torch gives.

optimum needs an older transformers than this package, so each test runs the Python of another
environment, which an environment variable names; docs/hub.md says how to make it.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from modeling_condenser.hub.export import export_encoder
from tests.hub.making import BLOCKER, plain_vectors

TEXTS = ["The glacier visits Oslo.", "Why?", "In 1987, the poet cost $12.50! " * 12]
SCRIPTS = {
    "OPENVINO_PYTHON": """
from sentence_transformers import SentenceTransformer
precision = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
model = SentenceTransformer(sys.argv[1], backend="openvino", model_kwargs=precision)
vectors = model.encode(json.loads(sys.argv[2]))
""",
    "ONNX_PYTHON": """
from optimum.onnxruntime import ORTModelForFeatureExtraction
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = ORTModelForFeatureExtraction.from_pretrained(sys.argv[1], export=True)
cut = {"padding": True, "truncation": True, "max_length": 64, "return_tensors": "pt"}
vectors = model(**tokenizer(json.loads(sys.argv[2]), **cut)).last_hidden_state[:, 0]
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("variable", SCRIPTS)
@pytest.mark.parametrize("run", ["bert_run", "roberta_run"])
def test_an_export_gives_the_vectors_of_torch(variable, run, request, tmp_path):
    python = os.environ.get(variable)
    if python is None:
        pytest.skip(f"{variable} names no Python with optimum (docs/hub.md)")
    export = export_encoder(request.getfixturevalue(run), tmp_path / "export")
    script = f"{BLOCKER}import json\n{SCRIPTS[variable]}print(json.dumps(vectors.tolist()))"
    found = subprocess.run(
        [python, "-c", script, str(export), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert found.returncode == 0, found.stderr[-3000:]
    vectors = json.loads(found.stdout.splitlines()[-1])
    expected = plain_vectors(Path(export), TEXTS)
    assert vectors == [pytest.approx(row, abs=1e-5) for row in expected.tolist()]
    assert expected.abs().max() > 1
