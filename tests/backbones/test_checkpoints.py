"""A Condenser on every backbone: started from an encoder, saved, opened, resized, exported."""

import json
import logging
from pathlib import Path

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
    ModernBertConfig,
    ModernBertModel,
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
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from tests.backbones.by_hand import KINDS
from tests.backbones.encoders import BACKBONES, VOCABULARY, Backbone
from tests.publishing.making import plain_vectors, run_isolated

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
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    return dict(batch)


def test_backbone_and_lm_head_are_the_encoders_own(folder: Path, backbone: Backbone) -> None:
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model = condenser_from_encoder(str(folder)).eval()
    batch = tokenized(folder)
    with torch.no_grad():
        expected = plain(**batch, output_hidden_states=True)
        late, early, output = model.encode(**batch)
        logits = model(**batch).logits
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-5)
    assert len(output.hidden_states) == plain.config.num_hidden_layers + 1
    torch.testing.assert_close(late, expected.hidden_states[-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(early, expected.hidden_states[2], rtol=0, atol=1e-5)


def test_the_head_is_drawn_as_the_encoder_draws_its_own_layers(backbone: Backbone) -> None:
    """Weight for weight the same spread, and the same biases and norms."""
    set_seed(0)
    config = backbone.config(hidden_size=64)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=config, n_head_layers=3))
    like = dict(model.condenser.global_layer.named_parameters())
    for layer in model.head:
        assert type(layer) is type(model.condenser.layers[-1])
        own = dict(layer.named_parameters())
        assert own.keys() == like.keys()
        for name, parameter in own.items():
            if parameter.std() == 0:
                assert torch.equal(parameter, like[name]), name
            else:
                ratio = parameter.std() / like[name].std()
                assert 0.9 < ratio < 1.1, name
                assert not torch.equal(parameter, like[name])
    # ALBERT's are apart from each other, unlike those of its backbone.
    assert len({p.data_ptr() for p in model.head.parameters()}) == 3 * len(like)


def test_a_new_lm_head_is_drawn_as_the_encoders_own_class_draws_it(backbone: Backbone) -> None:
    set_seed(0)
    config = backbone.config(hidden_size=64)
    model = CondenserForMaskedLM(CondenserConfig(encoder_config=config))
    theirs, ours = KINDS[config.model_type].lm_head_names
    named = dict(AutoModelForMaskedLM.from_config(config).named_parameters(remove_duplicate=False))
    for name, parameter in model.lm_head.named_parameters(remove_duplicate=False):
        expected = named[f"lm_head.{name}".replace(ours, theirs, 1)]
        if parameter.dim() == 1:
            assert torch.equal(parameter, expected), name
        else:
            assert 0.9 < parameter.std() / expected.std() < 1.1, name
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_saving_and_opening_keeps_every_weight_and_every_tie(folder: Path, tmp_path: Path) -> None:
    set_seed(1)
    model = condenser_from_encoder(str(folder), n_head_layers=3, skip_from=1).eval()
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
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
    batch = tokenized(folder)
    assert torch.isfinite(model(**batch).head_logits).all()
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
    for name in ("head_logits", "logits"):
        assert after[name].shape[-1] == size
        torch.testing.assert_close(
            after[name][..., : VOCABULARY - 8], before[name][..., : VOCABULARY - 8]
        )
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    names = [name for name in model.state_dict() if name.endswith("bias")]
    sizes = {len(model.state_dict()[name]) for name in names}
    assert VOCABULARY not in sizes and size in sizes


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
    with torch.no_grad():
        late, _, output = trained.encode(**batch)
        found = plain.eval()(**batch, output_hidden_states=True)
    assert torch.equal(found.last_hidden_state, late)
    pairs = zip(found.hidden_states, output.hidden_states, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_every_way_to_encode_with_the_export_gives_its_cls_vectors(exported: Path) -> None:
    longest = EncodingContract.load(exported).passage_max_length
    assert longest == 64
    expected = plain_vectors(exported, SENTENCES).numpy()
    model = SentenceTransformer(str(exported), device="cpu")
    np.testing.assert_allclose(model.encode(SENTENCES), expected, rtol=0, atol=1e-5)
    retriever = Retriever(str(exported), device="cpu")
    np.testing.assert_allclose(retriever.encode_queries(SENTENCES), expected, rtol=0, atol=1e-5)
    passages = Dataset.from_dict({"title": [""] * 3, "text": SENTENCES})
    np.testing.assert_allclose(retriever.encode_passages(passages), expected, rtol=0, atol=1e-5)


def test_an_untrained_pooler_is_the_identity_and_none_is_added(
    backbone: Backbone, exported: Path
) -> None:
    output = AutoModel.from_pretrained(exported).eval()(**tokenized(exported))
    with_pooler = {"ALBERT", "BERT", "CamemBERT", "MPNet", "RoBERTa", "XLM-RoBERTa"}
    assert ("pooler_output" in output) == (backbone.title in with_pooler)
    if backbone.title in with_pooler:
        expected = torch.tanh(output.last_hidden_state[:, 0])
        torch.testing.assert_close(output.pooler_output, expected, rtol=0, atol=1e-6)


def test_an_electra_discriminator_gets_an_lm_head_tied_to_its_embeddings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = ElectraForPreTraining(BACKBONES["ELECTRA"].config())
    check_new_lm_head(plain, plain.electra, tmp_path, caplog)


def test_a_deberta_v3_discriminator_gets_an_lm_head_tied_to_its_embeddings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As published: an untrained LM head of another shape, which the configuration hides."""
    plain = DebertaV2ForMaskedLM(BACKBONES["DeBERTa-v3"].config(legacy=False))
    plain.config.legacy = True
    check_new_lm_head(plain, plain.deberta, tmp_path, caplog)


def check_new_lm_head(plain, encoder, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain.save_pretrained(folder)
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)
    try:
        model = condenser_from_encoder(str(folder))
    finally:
        library.removeHandler(caplog.handler)
    assert "has no LM head, so a new one is started, tied to its embeddings" in caplog.text
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(p.eq(0).all() for n, p in model.lm_head.named_parameters() if n.endswith("bias"))
    state = model.condenser.encoder.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in encoder.state_dict().items())


OPEN = """
import json, torch
from transformers import (
    AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
)
found = []
for folder in sys.argv[2:]:
    batch = AutoTokenizer.from_pretrained(folder)(
        json.loads(sys.argv[1]), padding=True, return_tensors="pt", return_token_type_ids=False
    )
    labels = batch["input_ids"].clone()
    labels[:, ::2] = -100
    kwargs = {"trust_remote_code": True}
    AutoConfig.from_pretrained(folder, **kwargs)
    whole = AutoModelForPreTraining.from_pretrained(folder, **kwargs).eval()
    output = whole(**batch, labels=labels)
    output.loss.backward()
    model = AutoModel.from_pretrained(folder, **kwargs).eval()
    masked_lm = AutoModelForMaskedLM.from_pretrained(folder, **kwargs).eval()
    assert type(whole).__module__.split(".")[0] == "transformers_modules"
    found.append({
        "losses": [output.head_loss.item(), output.late_loss.item()],
        "cls": model(**batch).last_hidden_state[:, 0].tolist(),
        "logits": masked_lm(**batch).logits[0, 1].tolist(),
    })
assert "modeling_condenser" not in sys.modules
print("RESULT" + json.dumps(found))
"""


def test_every_checkpoint_opens_where_this_package_is_unknown(
    texts: list[str], tmp_path: Path
) -> None:
    """All backbones in one process, whose start takes longer than the rest."""
    folders, expected = [], []
    for backbone in BACKBONES.values():
        folder = backbone.save(tmp_path / "encoder" / backbone.title, texts)
        set_seed(0)
        model = condenser_from_encoder(str(folder), n_head_layers=2, skip_from=1)
        saved = tmp_path / backbone.title.replace("-", "_")
        model.eval().save_pretrained(saved)
        AutoTokenizer.from_pretrained(folder).save_pretrained(saved)
        folders.append(saved)
        batch = tokenized(saved)
        labels = batch["input_ids"].clone()
        labels[:, ::2] = -100
        output = model(**batch, labels=labels)
        expected.append(
            {
                "losses": [output.head_loss.item(), output.late_loss.item()],
                "cls": model.condenser(**batch).last_hidden_state[:, 0].tolist(),
                "logits": model(**batch).logits[0, 1].tolist(),
            }
        )
    printed = run_isolated(OPEN, json.dumps(SENTENCES), *folders, scratch=tmp_path / "elsewhere")
    found = json.loads(printed.partition("RESULT")[2])
    for title, one, other in zip(BACKBONES, found, expected, strict=True):
        for name, values in other.items():
            np.testing.assert_allclose(
                np.array(one[name]), np.array(values), rtol=0, atol=1e-5, err_msg=title
            )


def test_a_modernbert_head_is_initialised_as_the_library_initialises_its_layers() -> None:
    """Checked with transformers 5.23, which skips modules without own weights in custom code."""
    small = {"num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 99}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}
    config = ModernBertConfig(**small, **special, sep_token_id=2, num_attention_heads=4)
    torch.manual_seed(0)
    library = ModernBertModel(config)
    ours = CondenserForPreTraining(
        CondenserConfig(encoder_config=config, n_head_layers=1, skip_from=2)
    )
    theirs, own = (layer.attn.Wo.weight.std().item() for layer in (library.layers[3], ours.head[0]))
    assert theirs < 0.02 / (2 * 8) ** 0.5  # the depth of the encoder counts
    assert own == pytest.approx(theirs, rel=0.05)
