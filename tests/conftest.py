"""What all tests share: texts, three kinds of tokenizers and tiny encoders, made without a network.

The fixtures are made once a session and shared by all tests, which must leave them as they are.
"""

import atexit
import gzip
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.publishing.loopback_hub import HUB, loopback_hub  # noqa: F401

_CACHE = tempfile.mkdtemp(prefix="condenser-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
# The libraries read these when they are imported, so they stand before the imports.
os.environ |= {
    "HF_ENDPOINT": HUB.url,
    "NO_PROXY": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HOME": _CACHE,
    "HF_HUB_CACHE": f"{_CACHE}/hub",
    "HF_DATASETS_CACHE": f"{_CACHE}/datasets",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # tiny models gain nothing from threads, and workers share the cores
}

import pytest  # noqa: E402
from transformers import PreTrainedTokenizerBase  # noqa: E402

from modeling_condenser.files.models import EncodingContract  # noqa: E402
from modeling_condenser.publishing.export import export_encoder  # noqa: E402
from tests import tokenizers  # noqa: E402
from tests.backbones.encoders import BACKBONES  # noqa: E402
from tests.publishing.making import make_collection, make_run  # noqa: E402

_WORDS = {
    kind: words.split()
    for kind, words in {
        "noun": "river museum engine poet harbour theorem orchard café naïveté railway glacier "
        "fjord library citizen parliament mother-in-law résumé telescope market 東京 大学 volcano",
        "place": "Oslo Zürich São-Paulo Łódź Kyoto Reykjavík Málaga Leeds Córdoba Gdańsk",
        "verb": "describes repairs outlives measures paints re-reads can't-stop visits hides",
    }.items()
}
_TEMPLATES = (
    "The {noun} {verb} the old {other} near {place}.",
    "In {year}, {place}'s {noun} cost ${number}.50; nobody knew why!",
    "Dr. Ng didn't see the {noun} (or the {other}), did she?",
    "It {verb} about {number} % of every {noun}, e.g. in {place}.",
    '"Don\'t {verb}," said the {noun} - and the {other} left.',
    "{place} has {number} well-known {other}s: the {noun} is one of them.",
    "Why?",
)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """About 300 short English documents of several sentences; the same each time."""
    rng = random.Random(0)
    written = [" ".join(_sentence(rng) for _ in range(rng.randint(2, 9))) for _ in range(270)]
    docstrings = [
        " ".join(text.split())
        for module in (json, os, random, shutil, tempfile)
        for name in sorted(vars(module))
        if len(text := getattr(vars(module)[name], "__doc__", None) or "") > 200
    ]
    return written + docstrings[:30]


def _sentence(rng: random.Random) -> str:
    drawn = {kind: rng.choice(words) for kind, words in _WORDS.items()}
    return rng.choice(_TEMPLATES).format(
        **drawn,
        other=rng.choice(_WORDS["noun"]),
        year=rng.randint(1500, 2024),
        number=rng.randint(2, 9999),
    )


@pytest.fixture(scope="session")
def wordpiece_tokenizer(texts: list[str]) -> PreTrainedTokenizerBase:
    return tokenizers.bert_tokenizer(texts)


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(texts: list[str]) -> PreTrainedTokenizerBase:
    tokenizer = tokenizers.sentencepiece_tokenizer(texts)
    tokenizer.model_max_length = 64
    return tokenizer


# Larger than the tests of all encoders need, and with dropout.
_TINY = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.02}
_TINY |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


@pytest.fixture(scope="session")
def bert_folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with its MLM head and tokenizer, for sequences of up to 64 tokens."""
    return BACKBONES["BERT"].save(tmp_path_factory.mktemp("bert"), texts, **_TINY)


@pytest.fixture(scope="session")
def roberta_folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a RoBERTa."""
    return BACKBONES["RoBERTa"].save(tmp_path_factory.mktemp("roberta"), texts, **_TINY)


@pytest.fixture(scope="session")
def corpus_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts as JSON lines, with the one column `text`."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    file.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return file


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as JSON lines, compressed if the name ends so."""

    def write(rows: Sequence[Mapping[str, Any]], name: str = "data.jsonl") -> Path:
        file = tmp_path / name
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return file

    return write


@pytest.fixture
def write_text(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file as it stands."""

    def write(content: str, name: str) -> Path:
        file = tmp_path / name
        file.write_bytes(content.encode())
        return file

    return write


@pytest.fixture(scope="session")
def bert_run(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pre-training run of a Condenser on the tiny BERT."""
    return make_run(bert_folder, tmp_path_factory.mktemp("runs") / "bert-run")


@pytest.fixture(scope="session")
def exported(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of it with short texts, which no test changes."""
    place = tmp_path_factory.mktemp("exports") / "encoder"
    return export_encoder(bert_run, place, contract=EncodingContract(8, 24))


@pytest.fixture(scope="module")
def retriever(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with a separator and prompts of its own, on whose card tests put results."""
    texts = {"title_separator": " : ", "query_prompt": "why ", "passage_prompt": "river "}
    folder = tmp_path_factory.mktemp("retrievers") / "retriever"
    return export_encoder(bert_run, folder, contract=EncodingContract(8, 24, **texts))


@pytest.fixture(scope="session")
def roberta_run(roberta_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(roberta_folder, tmp_path_factory.mktemp("runs") / "roberta-run")


@pytest.fixture(scope="session")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder of 60 passages."""
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)
