"""The code on model cards runs as it stands, and does what the contract says."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from hub_scripts.main import main
from modeling_condenser.hub.card import PLACEHOLDER, write_card
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.hub.making import plain_vectors, run_isolated

pytestmark = pytest.mark.slow

QUERY, TITLE, TEXT = "what is the capital of Norway", "Oslo", "It is the capital of Norway."
CONTRACTS = {
    "dot": EncodingContract(24, 24),
    "cosine": EncodingContract(8, 16, similarity="cosine", title_separator=' "in" '),
    "mean": EncodingContract(16, 12, pooling="mean", query_prompt="the ", passage_prompt="a "),
    "max": EncodingContract(24, 32, pooling="max", similarity="euclidean", token_type_ids=True),
}
# Runs every block of Python that each card has, and says what each left in its variables.
RUN_CARDS = r"""
import contextlib, io, json, re, sys
from pathlib import Path
left = {}
for folder in map(Path, sys.argv[1:]):
    text = (folder / "README.md").read_text()
    left[folder.name] = []
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        names, printed = {}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block.replace("OWNER/NAME", str(folder)), names)
        values = {k: v.tolist() for k, v in names.items() if k in ("queries", "passages")}
        kinds = {k: type(v).__name__ for k, v in names.items() if k != "__builtins__"}
        left[folder.name].append({"values": values, "kinds": kinds, "printed": printed.getvalue()})
print("\n" + json.dumps(left))
"""


def numbers_in(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", printed)]


def expected_vectors(folder: Path, contract: EncodingContract) -> list[np.ndarray]:
    """One text at a time by the plain model, as the contract says."""
    rows = []
    for text, length in (
        (contract.query(QUERY), contract.query_max_length),
        (contract.passage(TITLE, TEXT), contract.passage_max_length),
    ):
        vectors = plain_vectors(folder, [text], max_length=length, pooling=contract.pooling).numpy()
        if contract.similarity == "cosine":
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        rows.append(vectors)
    return rows


@pytest.fixture(scope="module")
def exports(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("exports")
    return {
        name: export_encoder(bert_run, place / name, contract=contract)
        for name, contract in CONTRACTS.items()
    }


@pytest.fixture(scope="module")
def left_by_cards(exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    scratch = tmp_path_factory.mktemp("isolated")
    printed = run_isolated(RUN_CARDS, *exports.values(), scratch=scratch)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", CONTRACTS)
def test_an_encoders_snippets_encode_as_the_contract_says(
    name: str, exports: dict[str, Path], left_by_cards: dict
) -> None:
    contract = CONTRACTS[name]
    query, passage = expected_vectors(exports[name], contract)
    score = query @ passage.T
    if contract.similarity == "euclidean":
        score = -np.linalg.norm(query - passage, axis=1, keepdims=True)
    for left in left_by_cards[name][:2]:  # with sentence-transformers, and with transformers alone
        np.testing.assert_allclose(left["values"]["queries"], query, rtol=0, atol=3e-6)
        np.testing.assert_allclose(left["values"]["passages"], passage, rtol=0, atol=3e-6)
        np.testing.assert_allclose(numbers_in(left["printed"])[:1], score[0], rtol=1e-3)


def test_a_checkpoints_snippets_open_all_its_parts_by_its_own_code(
    bert_run: Path, tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(bert_run / "model", tmp_path / "my-checkpoint"))
    write_card(checkpoint)
    printed = run_isolated(RUN_CARDS, checkpoint, scratch=tmp_path / "isolated")
    [left] = json.loads(printed.splitlines()[-1])["my-checkpoint"]
    assert left["kinds"]["encoder"] == "CondenserModel"
    assert left["kinds"]["language_model"] == "CondenserForMaskedLM"
    assert left["kinds"]["condenser"] == "CondenserForPreTraining"


def test_a_tokenizer_for_pairs_of_sequences_is_restored(exports: dict[str, Path]) -> None:
    text = (exports["dot"] / "README.md").read_text()
    [block] = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "token_type" in b]
    names: dict = {}
    exec(block.replace(PLACEHOLDER, str(exports["dot"])), names)
    assert names["tokenizer"]("one", "two")["token_type_ids"][-1] == 1
    plain = AutoTokenizer.from_pretrained(exports["dot"])("one", "two")
    assert "token_type_ids" not in plain
    assert "token_type_ids" not in (exports["max"] / "README.md").read_text().split("## Eval")[0]


def test_an_encoders_commands_search_and_evaluate(
    exports: dict[str, Path], collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(exports["dot"], tmp_path / "encoder"))
    text = (folder / "README.md").read_text()
    [block] = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    block = block.replace(PLACEHOLDER, str(folder)).replace("COLLECTION", str(collection))
    search, evaluate, _, script = map(shlex.split, block.strip().splitlines())
    monkeypatch.chdir(tmp_path)
    assert main(search[1:]) == 0
    assert main(evaluate[1:]) == 0
    assert "MRR@10" in (folder / "README.md").read_text()
    assert (folder / script[1]).is_file()
