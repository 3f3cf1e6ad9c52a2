"""Blocks that are cut once and stored: by whom, where, and for whom."""

import os
from dataclasses import replace

import pytest
from datasets import Dataset, load_from_disk

from modeling_condenser.files.run_folder import read_run
from modeling_condenser.pretraining import prepared
from modeling_condenser.pretraining.data import BlockBuilder, build_blocks, fingerprint_blocks
from modeling_condenser.pretraining.prepared import prepare
from modeling_condenser.pretraining.pretrain import pretrain


@pytest.fixture
def builder(wordpiece_tokenizer):
    return BlockBuilder(wordpiece_tokenizer, max_length=32, seed=11)


@pytest.fixture
def rows(texts, tmp_path):
    """Rows of a file, with copies, blank texts and texts of one part."""
    data = [*texts[:60:4], "", texts[4], "Why?", None]
    Dataset.from_dict({"text": data}).save_to_disk(tmp_path / "rows")
    return load_from_disk(str(tmp_path / "rows"))


@pytest.mark.parametrize("kind", ["blocks", "passages"])
def test_stored_blocks_are_those_of_memory_whoever_cuts_them_and_are_cut_once(
    builder, rows, kind, tmp_path, monkeypatch, caplog
):
    builder = replace(builder, kind=kind)
    in_memory = Dataset.from_dict({"text": rows["text"][:]})
    expected = prepare(in_memory, builder)
    assert expected.folder is None
    assert expected.counts["blocks_sha256"] == fingerprint_blocks(expected.blocks)
    found = [prepare(rows, builder, folder=tmp_path / str(n), num_proc=n) for n in (1, 2)]
    monkeypatch.setattr(BlockBuilder, "cut", lambda *arguments: 1 / 0)
    monkeypatch.setattr(prepared, "find_copies", lambda *arguments: 1 / 0)
    caplog.clear()
    found.append(prepare(rows, replace(builder), folder=tmp_path / "1"))
    if kind == "passages":  # what is left out is said again
        assert "1 of 19 documents are copies" in caplog.text
        assert "documents cannot be cut in two and are left out" in caplog.text
    for each in found:
        assert each.blocks["input_ids"][:] == expected.blocks["input_ids"][:]
        assert each.counts == expected.counts and each.blocks.cache_files
    with pytest.raises(ZeroDivisionError):
        prepare(rows, replace(builder, seed=4), folder=tmp_path / "1")


def test_many_documents_in_files_are_cut_by_several_processes(builder, rows, tmp_path, monkeypatch):
    asked = []

    def note(*arguments, num_proc, **options):
        asked.append(num_proc)
        return build_blocks(*arguments, **options)

    monkeypatch.setattr(prepared, "build_blocks", note)
    monkeypatch.setattr(prepared, "_MANY_DOCUMENTS", len(rows))
    prepare(rows, builder, folder=tmp_path / "a")
    prepare(Dataset.from_dict({"text": rows["text"][:]}), builder)  # in memory, of each process
    monkeypatch.setattr(prepared.multiprocessing, "get_start_method", lambda **_: "spawn")
    prepare(rows, builder, folder=tmp_path / "b")
    assert asked == [min(os.cpu_count() or 1, 8), None, None]


def test_a_text_that_the_tokenizer_does_not_know_gives_a_warning_with_the_share(builder, caplog):
    for text, is_known in (("Why? " * 12 + "ქართული ენა", True), ("Why? ქართული ენა " * 9, False)):
        prepare(Dataset.from_dict({"text": [text]}), builder)
        assert ("50 % of the tokens (texts: " not in caplog.text) == is_known


def test_a_recipe_prepares_its_text_only_and_its_run_uses_the_blocks(
    settings, tmp_path, monkeypatch
):
    place = {"blocks_folder": str(tmp_path / "blocks")}
    folder = pretrain(**settings, **place, prepare_only=True, tf32=True)  # of a GPU
    assert folder.parent == tmp_path / "blocks" and not (tmp_path / "run").exists()
    monkeypatch.setattr(BlockBuilder, "cut", lambda *arguments: 1 / 0)
    pretrain(**settings, **place)
    assert read_run(tmp_path / "run")["n_documents"] == 51
