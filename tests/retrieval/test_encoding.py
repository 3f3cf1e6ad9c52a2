"""Vectors of queries and passages against transformers alone."""

from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.publishing.contract import EncodingContract
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.encoding import Retriever
from tests.publishing.making import make_run, plain_vectors

TEXTS = ["Why?", "The glacier visits Oslo, and the violin measures the orchard near Kyoto. " * 3]
TITLES = ["", "Museums of Leeds"]


@pytest.fixture(scope="module")
def run(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(bert_folder, tmp_path_factory.mktemp("runs") / "run")


def open_retriever(run: Path, folder: Path, *, similarity: str = "dot") -> Retriever:
    contract = EncodingContract(8, 20, title_separator=" | ", similarity=similarity)
    return Retriever(export_encoder(run, folder, contract=contract))


def test_queries_and_passages_are_cut_at_their_own_lengths(run: Path, tmp_path: Path) -> None:
    retriever = open_retriever(run, tmp_path / "encoder")
    passages = Dataset.from_dict({"title": TITLES, "text": TEXTS})
    titled = [TEXTS[0], f"{TITLES[1]} | {TEXTS[1]}"]
    # Twice, since the one must not leave its length to the other.
    for _ in range(2):
        queries = retriever.encode_queries(TEXTS)
        documents = retriever.encode_passages(passages)
        assert queries.dtype == documents.dtype == np.float32
        np.testing.assert_allclose(queries, plain_vectors(retriever.folder, TEXTS, 8), atol=2e-6)
        np.testing.assert_allclose(
            documents, plain_vectors(retriever.folder, titled, 20), atol=2e-6
        )
    for other in (7, 9, 20):
        difference = queries[1] - plain_vectors(retriever.folder, TEXTS[1:], other)[0].numpy()
        assert np.abs(difference).max() > 1e-3


def test_cosine_gives_unit_vectors(run: Path, tmp_path: Path) -> None:
    retriever = open_retriever(run, tmp_path / "encoder", similarity="cosine")
    expected = plain_vectors(retriever.folder, TEXTS, 8).numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(retriever.encode_queries(TEXTS), expected, rtol=0, atol=1e-6)


def test_a_folder_without_a_contract_is_refused(bert_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no encoding_contract.json"):
        Retriever(bert_folder)
