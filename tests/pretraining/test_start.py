"""Published models as starts: what is kept, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import AutoTokenizer, GPT2Config, GPT2Model, TrainerCallback

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    condenser_from_encoder,
    masked_lm_from_encoder,
)
from modeling_condenser.analysis.readiness import exported
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.files.run_folder import read_log
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain
from modeling_condenser.publishing.export import export_encoder
from tests.backbones.encoders import BACKBONES
from tests.encoding.making import LONG, change_json, save_modules
from tests.mining.test_miner import make_cross_encoder

TEXTS = [LONG * 9, "Why?", "", LONG, "東京大学 café naïveté"]
E5_PROMPTS = {"query": "query: ", "passage": "passage: "}
KINDS: dict[str, dict[str, Any]] = {
    "MiniLM": {"pooling": "mean", "length": 24, "similarity_fn_name": None, "dtype": "float16"},
    "e5": {"pooling": "mean", "prompts": E5_PROMPTS, "default_prompt_name": "query"},
    "bge": {"pooling": "cls", "prompts": {"query": "the river museum: "}, "dtype": "bfloat16"},
    "multilingual e5": {"pooling": "mean", "prompts": E5_PROMPTS},
}


def save_published(folder: Path, encoder: Path, dtype: str = "float32", **settings: Any) -> Path:
    """A normalised sentence-transformers model with weights of a precision."""
    pooling, settings = settings.pop("pooling", "mean"), {"similarity_fn_name": "cosine"} | settings
    modules = [Pooling(32, pooling_mode=pooling), Normalize()]
    save_modules(folder, encoder, lambda _: modules, **settings)
    if dtype != "float32":
        model = SentenceTransformer(str(folder), device="cpu").to(getattr(torch, dtype))
        model.save_pretrained(str(folder), create_model_card=False)
    return folder


def kinds_of(model: SentenceTransformer) -> list[type]:
    return [type(module) for module in model]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_exported_untrained_encodes_bit_for_bit_as_before(
    kind, bert_folder, texts, tmp_path
):
    encoder = bert_folder
    if kind == "multilingual e5":
        encoder = BACKBONES["XLM-RoBERTa"].save(tmp_path / "encoder", texts, hidden_size=32)
    start = save_published(tmp_path / "start", encoder, **KINDS[kind])
    model = condenser_from_encoder(str(start))
    assert model.dtype == torch.float32 and model.config.pooling == KINDS[kind]["pooling"]
    model.save_encoder(tmp_path / "saved")
    model.save_pretrained(tmp_path / "checkpoint")
    AutoTokenizer.from_pretrained(start).save_pretrained(tmp_path / "checkpoint")
    # A second start from the checkpoint keeps the contract, too.
    again = masked_lm_from_encoder(str(tmp_path / "checkpoint"))
    again.save_pretrained(tmp_path / "again")
    AutoTokenizer.from_pretrained(start).save_pretrained(tmp_path / "again")
    exported = export_encoder(tmp_path / "again", tmp_path / "exported")
    before = SentenceTransformer(str(start), device="cpu")
    checkpoints = [] if "dtype" in KINDS[kind] else [tmp_path / "again"]  # which are in float32
    for folder in (tmp_path / "saved", exported, *checkpoints):
        after = SentenceTransformer(str(folder), device="cpu")
        assert kinds_of(after) == kinds_of(before) == [Transformer, Pooling, Normalize]
        assert after[1].pooling_mode == before[1].pooling_mode
        assert after.max_seq_length == before.max_seq_length
        assert after.similarity_fn_name == before.similarity_fn_name
        assert after.default_prompt_name == before.default_prompt_name
        for name, prompt in before.prompts.items():
            is_e5 = "e5" in kind and name == "document"
            expected = "passage: " if is_e5 else prompt
            assert after.prompts[name] == expected
            vectors, own = (m.encode(TEXTS, prompt=prompt) for m in (before, after))
            assert vectors.dtype == own.dtype and np.array_equal(vectors, own)
        assert np.array_equal(before.encode(TEXTS), after.encode(TEXTS))
    for folder in (tmp_path / "saved", exported):
        assert Retriever(folder).contract == Retriever(start).contract


def test_an_export_as_a_start_keeps_all_of_its_contract(bert_run, tmp_path):
    fields = {"similarity": "euclidean", "title_separator": " : ", "passage_prompt": "a "}
    contract = EncodingContract(8, 24, "mean", **fields)
    start = export_encoder(bert_run, tmp_path / "start", contract=contract)
    masked_lm_from_encoder(str(start)).save_encoder(tmp_path / "out")
    assert EncodingContract.load(tmp_path / "out") == contract
    modules = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert kinds_of(modules) == [Transformer, Pooling]
    masked_lm_from_encoder(str(start)).save_encoder(tmp_path / "b", contract={"pooling": "cls"})
    assert EncodingContract.load(tmp_path / "b") == replace(contract, pooling="cls")


def test_a_stated_pooling_replaces_that_of_the_start_and_cls_is_the_default(
    bert_folder, tmp_path, caplog
):
    caplog.set_level("INFO", "modeling_condenser")
    start = save_published(tmp_path / "start", bert_folder, pooling="mean")
    for encoder, stated, expected in (
        (start, None, "mean"),
        (start, "cls", "cls"),
        (bert_folder, None, "cls"),
        (bert_folder, "mean", "mean"),
    ):
        for objective in ("condenser", "ict"):
            recipe = PretrainingRecipe(str(encoder), "", objective, pooling=stated)
            assert open_model(recipe).config.pooling == expected
    assert f"{start}: mean pooling, cosine similarity" in caplog.text
    assert f"{start} already makes vectors. Further pre-training made" in caplog.text
    assert f"{bert_folder} already makes vectors" not in caplog.text
    assert f"{bert_folder} states no pooling" in caplog.text
    condenser_from_encoder(str(start)).save_pretrained(tmp_path / "checkpoint")
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="pooling: cls, but the checkpoint .* has mean"):
        open_model(PretrainingRecipe(checkpoint, "", pooling="cls"))
    recipe = PretrainingRecipe(checkpoint, "", pooling="cls", new_head=True)
    assert open_model(recipe).config.pooling == "cls"
    with pytest.raises(ValueError, match="pooling is 'max', expected cls or mean"):
        CondenserConfig(pooling="max")


def test_contrasts_compare_as_the_start_does_where_nothing_is_stated(
    settings, bert_folder, tmp_path
):
    """The temperature follows; a stated similarity is that of the export."""
    start = save_published(tmp_path / "start", bert_folder)
    ict = {**settings, "objective": "ict", "max_steps": 1, "encoder": str(start)}
    losses = {}
    for name, stated in {
        "start": {},
        "cosine": {"similarity": "cosine", "temperature": 0.05},
        "dot": {"similarity": "dot"},
    }.items():
        run = tmp_path / f"{name}-run"
        pretrain({**ict, **stated, "output_dir": str(run)})
        losses[name] = read_log(run)[0]["loss"]
        exported = export_encoder(run, tmp_path / f"{name}-exported")
        expected = "dot" if name == "dot" else "cosine"
        assert EncodingContract.load(exported).similarity == expected
        is_normal = Normalize in kinds_of(SentenceTransformer(str(exported), device="cpu"))
        assert is_normal == (name != "dot")
    assert losses["start"] == losses["cosine"] != losses["dot"]
    change_json(start / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    modules = json.loads((start / "modules.json").read_text())
    (start / "modules.json").write_text(json.dumps(modules[:2]))
    with pytest.raises(ValueError, match="compares by euclidean similarity: state the similarity"):
        pretrain({**ict, "output_dir": str(tmp_path / "run")})


@pytest.mark.parametrize("objective", ["condenser", "cocondenser", "ict"])
def test_prompts_of_the_start_stand_before_what_is_trained(
    settings, bert_folder, tmp_path, objective, monkeypatch
):
    start = save_published(tmp_path / "start", bert_folder, **KINDS["e5"])
    tokenizer = AutoTokenizer.from_pretrained(start)
    seen: list[list[int]] = []

    def see(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.extend(kwargs["input_ids"].tolist())

    def watch(trainer: Any) -> Any:
        trainer.model.condenser.register_forward_pre_hook(see, with_kwargs=True)
        return TrainerCallback()

    own = {"objective": objective, "encoder": str(start), "packed": False, "max_steps": 1}
    own |= {"logging_steps": 9}  # an entry has measures of a batch
    pretrain({**settings, **own}, callbacks=[watch])
    begins = {
        name: tuple(tokenizer(prompt.rstrip())["input_ids"][:-1])
        for name, prompt in E5_PROMPTS.items()
    }
    found = [next(n for n, ids in begins.items() if tuple(row[: len(ids)]) == ids) for row in seen]
    assert found.count("query") == (8 if objective == "ict" else 0)
    assert found.count("passage") == (16 if objective == "cocondenser" else 8)
    assert max(map(len, seen)) <= settings["max_length"]


def test_readiness_encodes_a_checkpoint_as_its_export_does(bert_folder, tmp_path):
    start = save_published(tmp_path / "start", bert_folder, **KINDS["e5"])
    model = CondenserForPreTraining.from_encoder(str(start)).eval()
    retriever = Retriever(model.save_encoder(tmp_path / "out"))
    with exported(model, AutoTokenizer.from_pretrained(start), 64) as measured:
        for name in ("encode_queries", "encode_passages"):
            found, expected = (getattr(one, name)(TEXTS) for one in (measured, retriever))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def save_decoder(folder: Path, encoder: Path) -> Path:
    GPT2Model(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=99)).save_pretrained(folder)
    return folder


def with_json(file: str, **fields: Any) -> Any:
    def save(folder: Path, encoder: Path) -> Path:
        save_published(folder, encoder)
        change_json(folder / file, **fields)
        return folder

    return save


def with_modules(modules: Any) -> Any:
    return lambda folder, encoder: save_modules(folder, encoder, modules)


REFUSED = {
    "modules Transformer, Pooling, Dense": with_modules(
        lambda size: [Pooling(size, pooling_mode="mean"), Dense(size, 8)]
    ),
    "pooling max": with_modules(lambda size: [Pooling(size, pooling_mode="max")]),
    "pooling mean without prompt": with_json("1_Pooling/config.json", include_prompt=False),
    "modules BertForSequenceClassification": make_cross_encoder,
    "'gpt2': it is a decoder": save_decoder,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name_before_anything_is_written(
    message, settings, bert_folder, tmp_path
):
    REFUSED[message](tmp_path / "start", bert_folder)
    with pytest.raises(ValueError, match=message):
        pretrain({**settings, "encoder_changes": {}, "encoder": str(tmp_path / "start")})
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


@pytest.mark.parametrize("objective", ["ict", "cocondenser"])
def test_a_published_model_without_an_lm_head_is_trained_by_the_contrast_only(
    settings, bert_folder, tmp_path, objective, caplog
):
    start = save_published(tmp_path / "start", bert_folder)  # sentence-transformers saves no head
    own = {**settings, "encoder": str(start), "objective": objective, "cache_chunk_size": 6}
    model = pretrain({**own, "bow_weight": 1.0})
    assert f"no LM head, so objective {objective} trains its contrast only" in caplog.text
    for entry in read_log(tmp_path / "run"):
        assert entry["loss"] == pytest.approx(entry["contrastive_loss"])
        assert not entry.keys() & {"bow_loss", "head_loss", "late_loss", "swap_cost"}
    after = CondenserForMaskedLM.from_pretrained(model)
    assert after.config.lm_head_is_new
    before = masked_lm_from_encoder(str(start)).condenser.state_dict()
    changed = [not after.condenser.state_dict()[name].equal(before[name]) for name in before]
    assert sum(changed) > 0.8 * len(changed)
    # Plain MLM trains the head, which later contrasts then use.
    mlm = {**settings, "encoder": str(model), "objective": "mlm", "max_steps": 1}
    again = pretrain({**mlm, "output_dir": str(tmp_path / "mlm")})
    assert not CondenserForMaskedLM.from_pretrained(again).config.lm_head_is_new
