"""Pre-training from Python: text in, no collator and no blocks made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, set_seed

from modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    ContrastiveTrainer,
)
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.run_folder import read_log

SETTINGS: dict[str, Any] = {
    "max_length": 32,
    "per_device_train_batch_size": 8,
    "max_steps": 3,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}


def arguments(folder: Path, **changes: Any) -> CondenserTrainingArguments:
    return CondenserTrainingArguments(str(folder), **{**SETTINGS, **changes})


def steps_of(trainer: CondenserTrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_a_trainer_that_is_given_text_takes_the_steps_of_the_command(
    tmp_path: Path, bert_folder: Path, corpus_file: Path
) -> None:
    pretrain(
        {
            **SETTINGS,
            "encoder": str(bert_folder),
            "corpus": str(corpus_file),
            "output_dir": str(tmp_path / "command"),
            "bow_weight": 1.0,
            "tokens_per_batch": 200,
        }
    )
    texts = [{"text": json.loads(line)["text"]} for line in corpus_file.read_text().splitlines()]
    set_seed(42)
    model = CondenserForPreTraining.from_encoder(str(bert_folder))
    settings = arguments(tmp_path / "python", bow_weight=1.0, tokens_per_batch=200)
    trainer = CondenserTrainer(model, settings, train_dataset=texts)
    trainer.train()
    assert trainer.data_collator.packed
    names = ("loss", "head_loss", "late_loss", "bow_loss", "num_input_tokens_seen")
    for ours, expected in zip(steps_of(trainer), read_log(tmp_path / "command"), strict=True):
        for name in names:
            assert ours[name] == pytest.approx(expected[name], rel=1e-6), name


def test_the_encoder_that_is_saved_opens_in_both_libraries_with_the_same_vectors(
    tmp_path: Path, bert_folder: Path
) -> None:
    model = CondenserForPreTraining.from_encoder(str(bert_folder)).eval()
    folder = model.save_encoder(tmp_path / "encoder")
    text = "The river left."
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        expected = model(**inputs).cls_late[0]
        found = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    encoded = SentenceTransformer(str(folder)).encode(text, convert_to_tensor=True)
    torch.testing.assert_close(encoded, expected, rtol=0, atol=1e-6)


def test_a_contrast_is_trained_from_text_by_its_trainer(
    tmp_path: Path, bert_folder: Path, texts: list[str]
) -> None:
    model = CondenserForPreTraining.from_encoder(str(bert_folder))
    settings = arguments(
        tmp_path, objective="cocondenser", similarity="cosine", temperature=0.2, cache_chunk_size=4
    )
    trainer = ContrastiveTrainer(model, settings, train_dataset=Dataset.from_dict({"text": texts}))
    trainer.train()
    assert (trainer.contrast.temperature, trainer.cache_chunk_size) == (0.2, 4)
    assert {"contrastive_loss", "head_loss"} <= steps_of(trainer)[0].keys()


def test_a_stream_of_text_is_trained_on(
    tmp_path: Path, bert_folder: Path, texts: list[str]
) -> None:
    stream = Dataset.from_dict({"text": texts}).to_iterable_dataset()
    model = CondenserForMaskedLM.from_encoder(str(bert_folder))
    trainer = CondenserTrainer(model, arguments(tmp_path, objective="mlm"), train_dataset=stream)
    trainer.train()
    assert len(steps_of(trainer)) == 3
    with pytest.raises(ValueError, match="tokens_per_batch is not for a streamed corpus"):
        CondenserTrainer(
            model,
            arguments(tmp_path, objective="mlm", tokens_per_batch=200),
            train_dataset=stream,
        )


def test_an_objective_that_is_not_the_models_or_the_trainers_is_refused(
    tmp_path: Path, bert_folder: Path, texts: list[str]
) -> None:
    data = [{"text": text} for text in texts]
    plain = CondenserForMaskedLM.from_encoder(str(bert_folder))
    with pytest.raises(ValueError, match="trains a CondenserForPreTraining, but the model is"):
        CondenserTrainer(plain, arguments(tmp_path), train_dataset=data)
    with pytest.raises(ValueError, match="use CondenserTrainer for condenser and mlm, Contrast"):
        CondenserTrainer(plain, arguments(tmp_path, objective="ict"), train_dataset=data)
    with pytest.raises(ValueError, match="bow_weight is -1"):
        arguments(tmp_path, bow_weight=-1.0)


def test_a_model_from_nowhere_needs_a_tokenizer(tmp_path: Path, texts: list[str]) -> None:
    from modeling_condenser import CondenserConfig
    from tests.backbones.encoders import BACKBONES

    model = CondenserForPreTraining(CondenserConfig(encoder_config=BACKBONES["BERT"].config()))
    with pytest.raises(ValueError, match="pass processing_class=tokenizer"):
        CondenserTrainer(model, arguments(tmp_path), train_dataset=[{"text": texts[0]}])
