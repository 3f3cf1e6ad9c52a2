"""Bags of words and second maskings in batches, their weights over a run, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_condenser import CondenserDataCollator, CondenserForPreTraining
from modeling_condenser.pretraining.packed_batches import count_bags, pack, take_blocks, unpack
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.recipe import PretrainingRecipe
from modeling_condenser.repository.curves import draw_curves
from modeling_condenser.runs.run_folder import read_log


@pytest.fixture
def tokenizer(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)


def blocks_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"][:29] for text in texts[:12]]


def collate(tokenizer: PreTrainedTokenizerBase, blocks: list[list[int]], **settings: Any) -> dict:
    collator = CondenserDataCollator(tokenizer, max_length=32, **settings)
    return collator([{"input_ids": ids, "mask_key": key} for key, ids in enumerate(blocks)])


def bags(targets: torch.Tensor) -> list[list[int]]:
    return [sorted(row[row != -100].tolist()) for row in targets]


def test_a_bag_holds_each_token_of_the_unmasked_block_once_and_no_special_one(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    blocks = blocks_of(tokenizer, texts)
    blocks[3] = [50, tokenizer.unk_token_id, 50, 51, tokenizer.sep_token_id]
    blocks[4] = [tokenizer.unk_token_id]
    batch = collate(tokenizer, blocks, mlm_probability=0.9, bag_of_words=True)
    special = set(tokenizer.all_special_ids)
    assert bags(batch["bow_targets"]) == [sorted(set(ids) - special) for ids in blocks]
    assert bags(batch["bow_targets"])[3:5] == [[50, 51], []]
    assert int(count_bags(batch)) == len(blocks) - 1
    packed = pack(batch, pad_token_id=0)
    assert packed["bow_targets"].shape == packed["input_ids"].shape
    assert int(count_bags(packed)) == len(blocks) - 1
    restored = unpack(packed, pad_token_id=0)
    assert bags(restored["bow_targets"]) == bags(batch["bow_targets"])
    some = take_blocks(packed, torch.tensor([4, 7, 3]), pad_token_id=0)
    assert int(count_bags(some)) == 2


def test_the_second_masking_is_another_one_of_its_own_rate_and_leaves_the_first_as_it_was(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    blocks = [tokenizer(t, add_special_tokens=False)["input_ids"][:29] for t in texts]
    once = collate(tokenizer, blocks, mlm_probability=0.3)
    twice = collate(tokenizer, blocks, mlm_probability=0.3, head_mlm_probability=0.5)
    for name, column in once.items():
        assert torch.equal(twice[name], column)
    is_text = torch.zeros_like(once["input_ids"], dtype=torch.bool)
    for row, ids in enumerate(blocks):
        is_text[row, 1 : len(ids) + 1] = True
    first, second = (twice[name] != -100 for name in ("labels", "head_targets"))
    assert second[is_text].float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert not second[~is_text].any()
    # Independent: of what the first masks, the second masks its own rate.
    assert second[first].float().mean().item() == pytest.approx(0.5, abs=0.03)
    whole = twice["head_input_ids"].where(~second, twice["head_targets"])
    assert torch.equal(whole, once["input_ids"].where(~first, once["labels"]))


@pytest.fixture
def settings(tmp_path: Path, bert_folder: Path, corpus_file: Path) -> dict[str, Any]:
    return {
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 32,
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def test_the_weight_goes_from_first_to_last_on_a_cosine_and_the_loss_is_the_weighted_sum(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    pretrain({**settings, "objective": "mlm", "bow_weight": 1.0, "bow_weight_end": 0.2})
    log = read_log(tmp_path / "run")
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert [entry["bow_weight"] for entry in log] == pytest.approx(expected)
    for entry in log:
        total = entry["late_loss"] + entry["bow_weight"] * entry["bow_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    picture = draw_curves({"run": log}, kind=".svg").decode()
    assert "bag-of-words loss" in picture
    assert "bag-of-words" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_run_with_a_second_masking_is_continued_with_its_head(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    stated = {"objective": "condenser", "n_head_layers": 1, "head_mlm_probability": 0.5}
    folder = pretrain({**settings, **stated})
    config = CondenserForPreTraining.from_pretrained(folder).config
    assert (config.head_mlm_probability, config.skip_from) == (0.5, 0)
    again = {**settings, "encoder": str(folder), "output_dir": str(tmp_path / "again")}
    pretrain(again)
    before, after = read_log(tmp_path / "run"), read_log(tmp_path / "again")
    assert after[0]["head_loss"] < before[0]["head_loss"]
    assert all("swap_cost" in entry for entry in after)
    with pytest.raises(ValueError, match="head_mlm_probability: 0.3, but the checkpoint"):
        pretrain({**again, "head_mlm_probability": 0.3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bow_weight": -0.1}, "bow_weight is -0.1, but must not be negative"),
        ({"bow_weight": 1.0, "bow_weight_end": -1}, "bow_weight_end is -1"),
        ({"bow_weight_end": 0.1}, "bow_weight is 0, so there is no bag-of-words"),
        ({"head_mlm_probability": 1.0}, "head_mlm_probability is 1.0"),
        ({"head_mlm_probability": 0.0}, "head_mlm_probability is 0.0"),
        ({"head_mlm_probability": 0.5, "objective": "mlm"}, "head_mlm_probability is only for"),
        ({"head_mlm_probability": 0.5, "skip_from": 1}, "skip_from is 1, but with head_mlm"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        pretrain({**settings, **changes})
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_does_not_list_its_special_tokens_is_refused() -> None:
    vocabulary = {"[PAD]": 0, "[MASK]": 1, "[U]": 2, "<a>": 3, "b": 4}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[U]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="<a> $A", special_tokens=[("<a>", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", mask_token="[MASK]"
    )
    CondenserDataCollator(tokenizer)
    with pytest.raises(ValueError, match=r"puts \['<a>'\] around a text but does not list"):
        CondenserDataCollator(tokenizer, bag_of_words=True)


def test_bag_of_words_is_off_unless_a_recipe_asks_for_it() -> None:
    assert PretrainingRecipe("", "").bow_weight == 0
