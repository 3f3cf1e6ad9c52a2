"""One exported repository, opened by transformers, by sentence-transformers, and by its script.

Whoever opens it gets the vectors that plain transformers gives: to 1e-6 where all take one text at
a time; and in padded batches, whose float32 sums go another way, to 1e-6 of values of size 1 (the
export's are up to some 4).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertModel,
    RobertaModel,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract, Similarity
from modeling_condenser.hub.export import export_encoder
from tests.hub.making import plain_vectors
from tests.hub.test_evaluate_retrieval import open_script

CLASSES: dict[str, Any] = {"bert": BertModel, "roberta": RobertaModel}
MAX_LENGTH = 32
# One batch of them is padded; the last but one is cut, and the last is empty.
TEXTS = [
    "The glacier visits Oslo.",
    "Why?",
    "A violin measures the naïve orchard near Kyoto.",
    "What? " * 4,
    "In 1987, the museum's poet cost $12.50; nobody knew why! " * 12,
    "",
]
Export = Callable[..., Path]


@pytest.fixture(scope="module", params=list(CLASSES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def export(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Export:
    """Exports a run with a similarity, each one once."""
    run: Path = request.getfixturevalue(f"{kind}_run")
    done: dict[str, Path] = {}

    def exported(similarity: Similarity = "dot") -> Path:
        if similarity not in done:
            contract = EncodingContract(MAX_LENGTH, MAX_LENGTH, similarity=similarity)
            folder = tmp_path_factory.mktemp(f"{kind}-{similarity}") / "encoder"
            done[similarity] = export_encoder(run, folder, contract=contract)
        return done[similarity]

    return exported


def one_at_a_time(folder: Path, similarity: str = "dot") -> np.ndarray:
    """What all others are compared with, (6, H)."""
    vectors = plain_vectors(folder, TEXTS, max_length=MAX_LENGTH)
    if similarity == "cosine":
        vectors = torch.nn.functional.normalize(vectors)
    return vectors.numpy()


def largest_difference(vectors: np.ndarray, expected: np.ndarray) -> float:
    """In proportion to the largest value, or to 1 if that is less."""
    assert vectors.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(vectors - expected).max()) / scale


def test_the_texts_are_padded_cut_and_empty(export: Export) -> None:
    tokenizer = AutoTokenizer.from_pretrained(export(), model_max_length=1000)
    lengths = [len(tokenizer(text)["input_ids"]) for text in TEXTS]
    assert len(set(lengths)) == len(TEXTS)
    assert lengths[4] > MAX_LENGTH > max(lengths[:4])
    assert lengths[5] == 2  # the special tokens alone


def test_a_pipeline_gives_the_vectors_of_transformers(export: Export) -> None:
    extract = pipeline("feature-extraction", model=str(export()))
    cut = {"truncation": True, "max_length": MAX_LENGTH}
    expected = one_at_a_time(export())
    for batch_size in (1, 4):
        found = extract(TEXTS, batch_size=batch_size, tokenize_kwargs=cut)
        vectors = np.array([text[0][0] for text in found], dtype=np.float32)
        assert largest_difference(vectors, expected) <= 1e-6


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_sentence_transformers_reads_pooling_and_similarity(
    export: Export, similarity: Similarity
) -> None:
    folder = export(similarity)
    model = SentenceTransformer(str(folder), trust_remote_code=False)
    expected = one_at_a_time(folder, similarity)
    assert isinstance(model[1], Pooling) and model[1].pooling_mode == "cls"
    assert [type(module) for module in model][2:] == [Normalize] * (similarity == "cosine")
    assert model.similarity_fn_name == similarity
    for encode in (model.encode, model.encode_query, model.encode_document):
        assert largest_difference(encode(TEXTS, batch_size=4), expected) <= 1e-6
    scores = model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)).numpy()
    assert largest_difference(scores, expected @ expected.T) <= 1e-6


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_this_package_and_the_script_give_the_vectors_of_transformers(
    export: Export, similarity: Similarity
) -> None:
    folder = export(similarity)
    expected = one_at_a_time(folder, similarity)
    retriever, script = Retriever(folder), open_script(folder).Encoder(folder)
    passages = Dataset.from_dict({"title": [""] * len(TEXTS), "text": TEXTS})
    ours = (retriever.encode_queries(TEXTS), retriever.encode_passages(passages))
    scripts = (script.encode_queries(TEXTS), script.encode_passages([None] * len(TEXTS), TEXTS))
    for vectors in (*ours, *scripts):
        assert largest_difference(vectors, expected) <= 1e-6


@pytest.fixture(scope="module")
def prompted(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    contract = EncodingContract(8, 32, query_prompt="query: ", passage_prompt="passage: ")
    folder = tmp_path_factory.mktemp("prompted") / "encoder"
    return export_encoder(bert_run, folder, contract=contract)


def test_all_put_the_prompts_and_cut_texts_alike(prompted: Path) -> None:
    expected = plain_vectors(prompted, ["query: " + t for t in TEXTS], max_length=8).numpy()
    for encode in (
        Retriever(prompted).encode_queries,
        open_script(prompted).Encoder(prompted).encode_queries,
        SentenceTransformer(str(prompted)).encode_query,
    ):
        assert largest_difference(encode(TEXTS), expected) <= 1e-6
    expected = plain_vectors(prompted, ["passage: " + t for t in TEXTS], max_length=32).numpy()
    titles = [""] * len(TEXTS)
    passages = Dataset.from_dict({"title": titles, "text": TEXTS})
    for vectors in (
        Retriever(prompted).encode_passages(passages),
        open_script(prompted).Encoder(prompted).encode_passages(titles, TEXTS),
        SentenceTransformer(str(prompted)).encode_document(TEXTS),
    ):
        assert largest_difference(vectors, expected) <= 1e-6


def test_a_classifier_is_fine_tuned_from_the_exports_weights(
    export: Export, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(export())
    backbone = AutoModel.from_pretrained(export())
    model = AutoModelForSequenceClassification.from_pretrained(export(), num_labels=2)
    loaded = dict(model.base_model.named_parameters())
    expected = dict(backbone.named_parameters())
    assert loaded.keys() <= expected.keys()
    assert {name for name in expected if name not in loaded} <= {
        "pooler.dense.weight",
        "pooler.dense.bias",
    }
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.items())
    columns = tokenizer(TEXTS[:4], truncation=True, max_length=MAX_LENGTH)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = Dataset.from_dict({**columns, "labels": [0, 1, 0, 1]})
    trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    result = trainer.train()
    assert result.global_step == 2
    assert np.isfinite(result.training_loss)
    moved = [name for name, weight in loaded.items() if not torch.equal(weight, expected[name])]
    assert "embeddings.word_embeddings.weight" in moved
    assert "encoder.layer.0.attention.self.query.weight" in moved
