"""The Inverse Cloze Task: pseudo-queries, their contexts, and a run of it."""

import json
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser import CondenserDataCollator, CondenserForMaskedLM
from modeling_condenser.pretraining.blocks import BlockBuilder
from modeling_condenser.pretraining.ict import ClozeCollator, ClozePairs, PassageBuilder
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.sentences import sentence_starts
from modeling_condenser.pretraining.spans import build_cut_texts
from modeling_condenser.publishing.export import export_encoder

DOCUMENT = "The river left. Why? Dr. Ng repairs an engine. It paints the museum near Oslo."


@pytest.fixture
def tokenizer(bert_folder):
    return AutoTokenizer.from_pretrained(bert_folder)


def cut(tokenizer, texts, *, max_length=64):
    blocks = BlockBuilder(tokenizer, max_length=max_length, short_block_probability=0.0)
    return build_cut_texts(Dataset.from_dict({"text": list(texts)}), PassageBuilder(blocks))


def sentences_of(tokenizer, text: str) -> list[list[int]]:
    bounds = [*sentence_starts(text), len(text)]
    return [
        tokenizer(text[a:b], add_special_tokens=False)["input_ids"] for a, b in pairwise(bounds)
    ]


def test_a_passage_is_cut_at_its_sentences(tokenizer):
    rows, facts = cut(tokenizer, [DOCUMENT, "One sentence only."])
    row = rows[0]
    parts = np.split(np.array(row["input_ids"]), row["starts"][1:])
    assert [part.tolist() for part in parts] == sentences_of(tokenizer, DOCUMENT)
    assert len(parts) == 4
    assert (facts["n_documents"], facts["n_documents_left_out"]) == (2, 1)


def test_passages_are_the_blocks_of_two_sentences_or_more(tokenizer, texts):
    blocks = BlockBuilder(tokenizer, max_length=32, short_block_probability=0.0)
    expected = [
        block.tolist()
        for number, text in enumerate(texts)
        for block in blocks.build([text], [number])
    ]
    rows, _ = cut(tokenizer, texts, max_length=32)
    passages = rows["input_ids"][:]
    assert all(passage in expected for passage in passages)
    assert all(len(starts) > 1 for starts in rows["starts"])
    assert 100 < len(passages) < len(expected)


def test_nine_queries_of_ten_are_removed_from_their_context(tokenizer):
    rows, _ = cut(tokenizer, [DOCUMENT])
    sentences = sentences_of(tokenizer, DOCUMENT)
    whole = [*chain(*sentences)]
    pairs = ClozePairs(rows, seed=0, query_room=62)
    chosen, removed = np.zeros(4), 0
    for epoch in range(2000):
        pairs.set_epoch(epoch)
        query, context = (text.tolist() for text in pairs[0]["texts"])
        number = sentences.index(query)
        chosen[number] += 1
        if context != whole:
            assert context == [*chain(*sentences[:number], *sentences[number + 1 :])]
            removed += 1
    # Binomial: standard deviations of 13 and 19.
    assert removed == pytest.approx(1800, abs=60)
    assert abs(chosen - 500).max() < 90


@pytest.mark.parametrize(("share", "expected"), [(0.0, {True}), (1.0, {False})])
def test_the_share_of_removed_queries_can_be_set(tokenizer, share, expected):
    rows, _ = cut(tokenizer, [DOCUMENT])
    pairs = ClozePairs(rows, seed=0, query_room=62, removal_probability=share)
    kept = set()
    for epoch in range(50):
        pairs.set_epoch(epoch)
        kept.add(len(pairs[0]["texts"][1]) == len(rows[0]["input_ids"]))
    assert kept == expected


def test_a_batch_frames_queries_and_contexts_and_masks_nothing(tokenizer, texts):
    rows, _ = cut(tokenizer, texts)
    collator = ClozeCollator(CondenserDataCollator(tokenizer, max_length=64), query_length=8)
    examples = ClozePairs(rows, seed=0, query_room=collator.query_room).__getitems__([5, 6, 7])
    batch = collator(examples)
    assert batch["labels"].unique().tolist() == [-100]
    flat = [text for example in examples for text in example["texts"]]
    for row, mask, text in zip(batch["input_ids"], batch["attention_mask"], flat, strict=True):
        expected = [tokenizer.cls_token_id, *text.tolist(), tokenizer.sep_token_id]
        assert row[mask.bool()].tolist() == expected
        assert row[~mask.bool()].unique().tolist() in ([], [tokenizer.pad_token_id])
    assert all(len(query) <= 6 for query in flat[::2])


@pytest.mark.parametrize("length", [2, 65])
def test_a_query_length_out_of_range_is_refused(tokenizer, length):
    collator = CondenserDataCollator(tokenizer, max_length=64)
    with pytest.raises(ValueError, match=f"query_length is {length}.*within max_length, 64"):
        ClozeCollator(collator, query_length=length)


@pytest.fixture
def topical_corpus(write_jsonl):
    """Documents whose every sentence names the document's own things."""
    things = ["river", "museum", "engine", "poet", "harbour", "theorem", "orchard", "railway"]
    rows = [
        f"The {a} visits the {b}. Why did the {a} hide a {b}? It measures the {b} near the {a}."
        for a in things
        for b in things
    ]
    return write_jsonl([{"text": row} for row in rows])


def test_a_run_trains_the_backbone_and_leaves_the_rest_of_the_lm_head(
    tmp_path, bert_folder, topical_corpus
):
    settings = {
        "objective": "ict",
        "encoder": str(bert_folder),
        "corpus": str(topical_corpus),
        "output_dir": str(tmp_path / "run"),
        "max_length": 64,
        "similarity": "cosine",
        "per_device_train_batch_size": 16,
        "cache_chunk_size": 8,
        "max_steps": 40,
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "learning_rate": 5e-3,
        "weight_decay": 0.01,
        "logging_steps": 10,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    model = pretrain(settings)
    log = [e for e in json.loads((tmp_path / "run" / "log.json").read_text()) if "loss" in e]
    for entry in log:
        assert entry["loss"] == pytest.approx(entry["contrastive_loss"], rel=1e-5)
        assert not {"late_loss", "head_loss", "late_accuracy", "swap_cost"} & entry.keys()
    assert log[-1]["contrastive_loss"] < 0.6 * log[0]["contrastive_loss"]
    assert log[-1]["contrastive_accuracy"] > log[0]["contrastive_accuracy"]

    before = AutoModelForMaskedLM.from_pretrained(bert_folder).state_dict()
    after = CondenserForMaskedLM.from_pretrained(model)
    name = "predictions.transform.dense.weight"
    assert torch.equal(after.lm_head.state_dict()[name], before[f"cls.{name}"])
    words = after.get_input_embeddings().weight
    assert not torch.equal(words, before["bert.embeddings.word_embeddings.weight"])
    exported = export_encoder(model, tmp_path / "encoder")
    trained = AutoModel.from_pretrained(exported).state_dict()
    assert all(
        torch.equal(trained[name], value)
        for name, value in after.condenser.encoder.state_dict().items()
        if not name.startswith("pooler.")
    )
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["objective"] == "ict" and run["n_passages"] == 64
    assert "head.0.attention.self.query.weight" not in load_file(model / "model.safetensors")
