"""The script that is published with a model, where nothing else of this project is."""

import json
from pathlib import Path
from typing import Any

from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
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

CONTRACTS: tuple[dict[str, Any], ...] = (
    {"similarity": "dot"},
    {"similarity": "cosine"},
    {"similarity": "cosine", "pooling": "mean"},
    {"similarity": "dot", "pooling": "max", "query_prompt": "the ", "passage_prompt": "a "},
)


def test_the_published_script_reproduces_the_evaluation(
    bert_run: Path, collection: Path, tmp_path: Path
) -> None:
    folders, expected = [], []
    for changes in CONTRACTS:
        contract = EncodingContract(8, 24, title_separator=" : ", **changes)
        name = "-".join(changes.values()).replace(" ", "")
        folder = export_encoder(bert_run, tmp_path / name, contract=contract)
        means = evaluate_system(folder, collection, tmp_path / "runs" / name, progress=False)
        expected.append({name: round(v, 4) for name, v in means.evaluation.means.items()})
        folders.append(folder)
    output = run_isolated(RUN_EACH, collection, *folders, scratch=tmp_path / "elsewhere")
    found = [json.loads(part) for part in output.split("RESULT")[1:]]
    assert found == expected
    # So similarity, pooling and prompts were read from the contract.
    assert len({json.dumps(measures) for measures in found}) == len(CONTRACTS)
    assert 0 < found[0]["MRR@10"] < 1
