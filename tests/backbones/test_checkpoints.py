"""A Condenser on every encoder: started from it, saved, opened, resized, exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DebertaV2ForMaskedLM,
    ElectraForPreTraining,
    set_seed,
)

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    condenser_from_encoder,
    masked_lm_from_encoder,
)
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.export import export_encoder
from tests.backbones.encoders import BACKBONES, VOCABULARY, Backbone
from tests.backbones.two_encoders import LM_HEADS
from tests.hub.making import plain_vectors

SENTENCES = ["The glacier visits Oslo.", "Why?", "A violin measures the old orchard near Kyoto."]


@pytest.fixture(scope="session")
def checkpoint(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-training checkpoint with noisy weights and its tokenizer."""
    set_seed(0)
    model = condenser_from_encoder(str(folder), n_head_layers=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pooler" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    out = tmp_path_factory.mktemp("checkpoints") / folder.name
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_encoder(checkpoint, tmp_path_factory.mktemp("exports") / checkpoint.name)


def tokenized(folder: Path) -> dict[str, torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return dict(
        tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    )


@torch.no_grad()
def test_backbone_and_lm_head_are_the_encoders_own(folder: Path) -> None:
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model = condenser_from_encoder(str(folder)).eval()
    batch = tokenized(folder)
    expected = plain(**batch, output_hidden_states=True)
    late, early, output = model.encode(**batch)
    torch.testing.assert_close(model(**batch).logits, expected.logits, rtol=0, atol=1e-5)
    assert len(output.hidden_states) == plain.config.num_hidden_layers + 1
    torch.testing.assert_close(late, expected.hidden_states[-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(early, expected.hidden_states[2], rtol=0, atol=1e-5)


def test_new_heads_are_drawn_as_the_encoders_own_classes_draw_them(backbone: Backbone) -> None:
    """The same biases and norms, and weights of the same spread.

    transformers 5.23 skips modules without own weights in custom code, such as ModernBERT's MLP.
    """
    set_seed(0)
    config = backbone.config(hidden_size=64)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=config, n_head_layers=3))
    like = dict(model.condenser.global_layer.named_parameters())
    for layer in model.head:
        assert type(layer) is type(model.condenser.layers[-1])
        assert_drawn_alike(dict(layer.named_parameters()), like)
    # ALBERT's are apart from each other, unlike those of its backbone.
    assert len({p.data_ptr() for p in model.head.parameters()}) == 3 * len(like)

    theirs, ours = LM_HEADS[config.model_type]
    plain = dict(AutoModelForMaskedLM.from_config(config).named_parameters(remove_duplicate=False))
    own = {
        f"lm_head.{name}".replace(ours, theirs, 1): parameter
        for name, parameter in model.lm_head.named_parameters(remove_duplicate=False)
    }
    assert_drawn_alike(own, {name: plain[name] for name in own})


def assert_drawn_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        if parameter.std() == 0:
            assert torch.equal(found[name], parameter), name
        else:
            assert 0.9 < found[name].std() / parameter.std() < 1.1, name
            assert not torch.equal(found[name], parameter), name


def test_saving_and_opening_keeps_every_weight_and_every_tie(folder: Path, tmp_path: Path) -> None:
    set_seed(1)
    model = condenser_from_encoder(str(folder), n_head_layers=3, skip_from=1).eval()
    model.save_pretrained(tmp_path)
    opened, info = CondenserForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    state = opened.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[n]) for n, tensor in model.state_dict().items())
    assert opened.get_output_embeddings().weight is opened.get_input_embeddings().weight
    batch = tokenized(folder)
    expected = model(**batch)
    assert torch.equal(opened.eval()(**batch).head_logits, expected.head_logits)
    masked_lm = CondenserForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(masked_lm(**batch).logits, expected.logits)


def test_a_checkpoint_without_a_head_is_refused_unless_a_new_one_is_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    masked_lm_from_encoder(str(folder)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no Condenser head.*new_head=True"):
        CondenserForPreTraining.from_pretrained(tmp_path)
    model = CondenserForPreTraining.from_pretrained(tmp_path, new_head=True)
    assert torch.isfinite(model(**tokenized(folder)).head_logits).all()
    for name, parameter in model.named_parameters():
        if name.startswith("head") and parameter.dim() == 1:
            assert parameter.eq(1.0 if name.endswith("weight") else 0.0).all(), name


@pytest.mark.parametrize("size", [VOCABULARY + 8, VOCABULARY - 8])
def test_resizing_the_vocabulary_keeps_ties_and_old_predictions(
    backbone: Backbone, size: int
) -> None:
    set_seed(0)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=backbone.config())).eval()
    batch = backbone.batch()
    batch["input_ids"] = batch["input_ids"].clamp(max=VOCABULARY - 9)
    del batch["labels"]
    before = model(**batch)
    model.resize_token_embeddings(size)
    after = model(**batch)
    assert model.config.vocab_size == model.config.encoder_config.vocab_size == size
    kept = VOCABULARY - 8
    for name in ("head_logits", "logits"):
        assert after[name].shape[-1] == size
        torch.testing.assert_close(after[name][..., :kept], before[name][..., :kept])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    sizes = {len(p) for name, p in model.state_dict().items() if name.endswith("bias")}
    assert VOCABULARY not in sizes and size in sizes


@torch.no_grad()
def test_the_export_is_the_plain_encoder_bit_for_bit(
    backbone: Backbone, checkpoint: Path, exported: Path
) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == backbone.config_class.model_type
    assert "auto_map" not in config
    plain, info = AutoModel.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    trained = CondenserForPreTraining.from_pretrained(checkpoint).eval()
    batch = tokenized(exported)
    late, _, output = trained.encode(**batch)
    found = plain.eval()(**batch, output_hidden_states=True)
    assert torch.equal(found.last_hidden_state, late)
    pairs = zip(found.hidden_states, output.hidden_states, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    # An untrained pooler is the identity, and none is added.
    has_pooler = getattr(AutoModel.from_config(plain.config), "pooler", None) is not None
    assert ("pooler_output" in found) == has_pooler
    if has_pooler:
        torch.testing.assert_close(found.pooler_output, torch.tanh(late[:, 0]), rtol=0, atol=1e-6)


def test_every_way_to_encode_with_the_export_gives_its_cls_vectors(exported: Path) -> None:
    expected = plain_vectors(exported, SENTENCES).numpy()
    model = SentenceTransformer(str(exported), device="cpu")
    np.testing.assert_allclose(model.encode(SENTENCES), expected, rtol=0, atol=1e-5)
    retriever = Retriever(str(exported), device="cpu")
    np.testing.assert_allclose(retriever.encode_queries(SENTENCES), expected, rtol=0, atol=1e-5)
    passages = Dataset.from_dict({"title": [""] * 3, "text": SENTENCES})
    np.testing.assert_allclose(retriever.encode_passages(passages), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("title", ["ELECTRA", "DeBERTa-v3"])
def test_a_discriminator_gets_an_lm_head_tied_to_its_embeddings(title: str, tmp_path: Path) -> None:
    """DeBERTa-v3 as published has an untrained LM head of another shape, which its config hides."""
    plain: Any
    if title == "ELECTRA":
        plain = ElectraForPreTraining(BACKBONES[title].config())
    else:
        plain = DebertaV2ForMaskedLM(BACKBONES[title].config(legacy=False))
        plain.config.legacy = True
    plain.save_pretrained(tmp_path)
    model = condenser_from_encoder(str(tmp_path))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(p.eq(0).all() for n, p in model.lm_head.named_parameters() if n.endswith("bias"))
    state = model.condenser.encoder.state_dict()
    own = plain.base_model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in own.items())
