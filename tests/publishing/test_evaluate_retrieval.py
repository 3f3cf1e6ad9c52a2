"""The script that is published with a model, where nothing else of this project is."""

import json
from pathlib import Path

from modeling_condenser.publishing.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.evaluate import evaluate_system
from tests.publishing.making import run_isolated

RUN_EACH = """
import runpy

collection, *folders = sys.argv[1:]
for folder in folders:
    sys.argv = ["evaluate_retrieval.py", collection, "--split", "test"]
    print("RESULT", flush=True)
    runpy.run_path(f"{folder}/evaluate_retrieval.py", run_name="__main__")
assert "modeling_condenser" not in sys.modules
"""


def test_the_published_script_reproduces_the_evaluation(
    bert_run: Path, collection: Path, tmp_path: Path
) -> None:
    folders, expected = [], []
    for similarity in ("dot", "cosine"):
        contract = EncodingContract(8, 24, similarity=similarity, title_separator=" : ")
        folder = export_encoder(bert_run, tmp_path / similarity, contract=contract)
        means = evaluate_system(folder, collection, tmp_path / "runs" / similarity, progress=False)
        expected.append({name: round(v, 4) for name, v in means.evaluation.means.items()})
        folders.append(folder)
    output = run_isolated(RUN_EACH, collection, *folders, scratch=tmp_path / "elsewhere")
    found = [json.loads(part) for part in output.split("RESULT")[1:]]
    assert found == expected
    assert found[0] != found[1]  # so the similarity was read from the contract
    assert 0 < found[0]["MRR@10"] < 1
