"""The lines of docs/search.md that open a retriever in LangChain and LlamaIndex."""

import re
from pathlib import Path

import numpy as np
import pytest

from modeling_condenser import Retriever, export_encoder
from modeling_condenser.files.models import EncodingContract

PAGE = Path(__file__).parents[1] / "docs" / "search.md"


@pytest.mark.parametrize("module", ["langchain_huggingface", "llama_index.embeddings.huggingface"])
def test_a_framework_gives_the_vectors_of_the_retriever(module, bert_run, tmp_path, monkeypatch):
    pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLAMA_INDEX_CACHE_DIR", str(tmp_path / "cache"))
    contract = EncodingContract(32, 32, query_prompt="why ", passage_prompt="river ")
    export_encoder(bert_run, "my-retriever", contract=contract)
    names: dict = {}
    blocks = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    exec(next(block for block in blocks if f"from {module} " in block), names)
    ours = Retriever("my-retriever", device="cpu")
    texts = ["A river begins at a spring.", "In May the snow melts."]
    np.testing.assert_allclose(names["passages"], ours.encode_passages(texts), atol=1e-5)
    [query] = ours.encode_queries(["where do rivers begin?"])
    np.testing.assert_allclose(names["query"], query, atol=1e-5)
