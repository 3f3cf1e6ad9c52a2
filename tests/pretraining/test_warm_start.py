"""What a model starts from: raw encoders, checkpoints, and retrievers only on request."""

from pathlib import Path

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoModel, AutoModelForMaskedLM

from modeling_condenser import CondenserConfig, CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain
from modeling_condenser.publishing.export import export_encoder
from tests.backbones.encoders import BACKBONES
from tests.encoding.making import save_modules
from tests.models import assert_same


@pytest.fixture
def retriever_folder(bert_folder, tmp_path) -> Path:
    """A sentence-transformers model with mean pooling and prompts."""
    modules = [Pooling(32, pooling_mode="mean"), Normalize()]
    prompts = {"query": "query: ", "document": "passage: "}
    return save_modules(tmp_path / "start", bert_folder, lambda _: modules, prompts=prompts)


def test_a_retriever_is_a_start_only_on_request(settings, retriever_folder, bert_folder, tmp_path):
    settings |= {"encoder": str(retriever_folder), "encoder_changes": {}}
    with pytest.raises(ValueError, match="is an export, .* set from_retriever: true"):
        pretrain(**settings)
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
    model = CondenserForPreTraining.from_encoder(retriever_folder, from_retriever=True)
    assert model.config.pooling == "cls"
    expected = AutoModel.from_pretrained(bert_folder).state_dict()
    for name, weight in model.condenser.encoder.state_dict().items():
        assert "pooler" in name or torch.equal(weight, expected[name])
    pretrain(**settings, from_retriever=True, pooling="mean")
    export = export_encoder(tmp_path / "run", tmp_path / "export")
    opened = SentenceTransformer(str(export), device="cpu")
    assert opened[1].pooling_mode == "mean" and set(opened.prompts.values()) == {""}


def test_the_pooling_is_that_of_a_checkpoint_or_cls_unless_it_is_named(bert_folder, tmp_path):
    CondenserForPreTraining.from_encoder(bert_folder, pooling="mean").save_pretrained(tmp_path)
    for encoder, pooling, expected in (
        (bert_folder, None, "cls"),
        (bert_folder, "mean", "mean"),
        (tmp_path, None, "mean"),
    ):
        for objective in ("condenser", "ict"):
            settings = {"objective": objective, "pooling": pooling}
            recipe = PretrainingRecipe(encoder=str(encoder), corpus="", **settings)
            assert open_model(recipe).config.pooling == expected
    assert CondenserForMaskedLM.from_encoder(tmp_path, pooling="cls").config.pooling == "cls"
    with pytest.raises(ValueError, match="pooling: cls, but the checkpoint .* has mean"):
        open_model(PretrainingRecipe(encoder=str(tmp_path), corpus="", pooling="cls"))
    recipe = PretrainingRecipe(encoder=str(tmp_path), corpus="", pooling="cls", new_head=True)
    assert open_model(recipe).config.pooling == "cls"
    with pytest.raises(ValueError, match="pooling is 'max', expected cls or mean"):
        CondenserConfig(pooling="max")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_an_export_states_the_similarity_of_the_contrast(settings, tmp_path, similarity):
    settings |= {"objective": "ict", "max_steps": 1, "similarity": similarity}
    pretrain(**settings)
    # A later training without a contrast keeps it.
    mlm = {**settings, "objective": "mlm", "encoder": str(tmp_path / "run")}
    del mlm["similarity"]
    pretrain(**mlm | {"output_dir": str(tmp_path / "mlm")})
    for run in ("run", "mlm"):
        export = export_encoder(tmp_path / run, tmp_path / f"{run}-export")
        opened = SentenceTransformer(str(export), device="cpu")
        assert opened.similarity_fn_name == similarity
        assert isinstance(opened[-1], Normalize) == (similarity == "cosine")


@pytest.mark.parametrize(
    ("name", "model_class"),
    [
        ("BERT", AutoModelForMaskedLM),
        ("BERT", transformers.BertForPreTraining),
        ("ALBERT", AutoModelForMaskedLM),
        ("ALBERT", transformers.AlbertForPreTraining),
        ("ModernBERT", AutoModelForMaskedLM),
        ("DistilBERT", AutoModelForMaskedLM),
    ],
)
def test_a_model_in_memory_gives_the_start_of_its_folder_and_stays_as_it_is(
    name, model_class, texts, tmp_path
):
    folder = BACKBONES[name].save(tmp_path, texts)
    in_memory = model_class.from_pretrained(folder)
    before = {key: value.clone() for key, value in in_memory.state_dict().items()}
    found, expected = (
        {
            name: weights
            for name, weights in CondenserForPreTraining.from_encoder(start).state_dict().items()
            if not name.startswith("head")  # which is random
        }
        for start in (in_memory, folder)
    )
    assert_same(found, expected, 0)
    assert_same(in_memory.state_dict(), before, 0)


@pytest.mark.parametrize(
    ("title", "model_class"),
    [
        ("BERT", transformers.BertModel),
        ("ELECTRA", transformers.ElectraForPreTraining),
        ("DistilBERT", transformers.DistilBertForSequenceClassification),
    ],
)
def test_a_model_in_memory_without_an_lm_head_gets_a_new_one_and_says_so(
    title, model_class, caplog
):
    plain = model_class(BACKBONES[title].config())
    model = CondenserForPreTraining.from_encoder(plain)
    assert f"{model_class.__name__} has no LM head, so a new one is started" in caplog.text
    expected = plain.base_model.state_dict()
    for name, weight in model.condenser.encoder.state_dict().items():
        assert "pooler" in name or torch.equal(weight, expected[name])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_an_untrained_pooler_is_that_of_the_saved_checkpoint(tmp_path):
    model = CondenserForMaskedLM.from_encoder(transformers.BertModel(BACKBONES["BERT"].config()))
    model.save_pretrained(tmp_path)
    opened = CondenserForMaskedLM.from_pretrained(tmp_path)
    assert_same(model.state_dict(), opened.state_dict(), 0)


def test_only_a_model_of_transformers_is_a_start_in_memory(retriever_folder):
    retriever = SentenceTransformer(str(retriever_folder), device="cpu")
    with pytest.raises(ValueError, match="a SentenceTransformer, expected a Hub name, a folder or"):
        CondenserForPreTraining.from_encoder(retriever)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument n_head_layer"):
        CondenserForPreTraining.from_encoder(retriever, n_head_layer=3)  # type: ignore[arg-type]


def test_a_model_in_memory_is_trained_in_float32(bert_folder):
    half = AutoModelForMaskedLM.from_pretrained(bert_folder, dtype=torch.bfloat16)
    made = CondenserForPreTraining.from_encoder(half)
    assert {weight.dtype for weight in made.parameters()} == {torch.float32}
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
