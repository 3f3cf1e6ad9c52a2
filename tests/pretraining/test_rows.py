"""What a trainer is given: text, rows, data sets and streams of every kind."""

from functools import partial
from itertools import chain, islice
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset, load_dataset

from modeling_condenser.pretraining.data import (
    fingerprint_blocks,
)
from tests.pretraining.short_runs import losses_of


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("my-documents.jsonl", "is a str, expected a list of strings"),
        (
            DatasetDict({name: Dataset.from_dict({"text": ["a"]}) for name in ("en", "fr")}),
            r"has the splits en, fr: choose one, such as train_dataset\['en'\]",
        ),
        (iter([{"text": "a"}]), "stream of other kinds by IterableDataset.from_generator"),
        ([], "train_dataset is empty"),
        ([{"body": "a"}], r"its columns are body.*rename_column\(COLUMN, .text"),
        (["a", ["b"]], r"A text is \['b'\], expected one string a row"),
    ],
)
def test_other_data_are_refused(make_trainer, data, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(data)


@pytest.mark.parametrize(("seed", "is_warned"), [(None, True), (7, False)])
def test_a_stream_that_is_shuffled_without_a_seed_is_named(
    make_trainer, texts, caplog, seed, is_warned
):
    stream = Dataset.from_dict({"text": texts}).to_iterable_dataset()
    make_trainer(stream.shuffle(seed=seed, buffer_size=9).map(lambda row: row))
    assert ("train_dataset is shuffled without a seed" in caplog.text) is is_warned


class Lines(torch.utils.data.Dataset):
    """A data set of torch that holds strings."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


def test_stored_data_of_every_kind_give_the_training_of_the_texts(make_trainer, texts):
    texts = texts[:20]
    rows = Dataset.from_dict({"text": texts, "id": [*range(20)]})
    halves = [torch.utils.data.Subset(Lines(texts), range(a, a + 10)) for a in (0, 10)]
    expected = losses_of(make_trainer(texts, name="0"))
    for number, data in enumerate(
        [
            DatasetDict(train=rows, test=rows.select([0])),
            rows.with_format("arrow"),
            tuple(rows),
            rows["text"],
            Lines(texts),
            torch.utils.data.ConcatDataset(halves),
            torch.utils.data.ConcatDataset([rows.select(range(9)), rows.select(range(9, 20))]),
        ],
        start=1,
    ):
        assert losses_of(make_trainer(data, name=str(number))) == expected


def test_streams_of_every_kind_give_one_training(make_trainer, texts, tmp_path, caplog):
    rows = Dataset.from_dict({"text": texts[:50], "id": [*range(50)]})
    rows.to_json(tmp_path / "rows.jsonl")
    trainings = []
    for number, stream in enumerate(
        [
            rows.to_iterable_dataset(),
            rows.to_iterable_dataset().with_format("torch"),
            rows.with_format("arrow").to_iterable_dataset(),
            load_dataset("json", data_files=f"{tmp_path}/rows.jsonl", streaming=True),
            IterableDataset.from_generator(lambda: iter(rows)),
        ]
    ):
        trainings.append(losses_of(make_trainer(stream, name=str(number))))
    assert trainings == [trainings[0]] * 5 and len(trainings[0]) == 3
    assert "again until max_steps" not in caplog.text  # three batches are a part of the texts


def test_a_row_of_another_type_does_not_end_a_stream_and_half_a_character_no_training(
    make_trainer, texts, caplog
):
    odd = [{"text": ["a", "b"]}, {"text": {"a": 1}}, {"text": 7}]
    rows = [*({"text": text} for text in texts[:20]), *odd, {"text": "so \ud83d many"}] * 3
    stream = IterableDataset.from_generator(partial(iter, rows))
    assert len(losses_of(make_trainer(stream, name="a", max_steps=9))) == 9
    for kind in ("list", "dict"):
        assert caplog.text.count(f"rows whose text is a {kind}: such rows are left out") == 1
    make_trainer([*texts[:20], "so \ud83d many"], name="b").train()


def test_rows_without_text_are_left_out(make_trainer, texts):
    rows: list[Any] = []
    for text in texts[:50]:
        rows += [{"text": text}, {"text": ""}, {"id": 3}, {"text": float("nan")}]
    trainings = []
    for name, data in {"a": rows, "b": rows[::4]}.items():
        stream = IterableDataset.from_generator(partial(iter, data))
        trainings.append(losses_of(make_trainer(stream, name=name)))
    assert trainings[0] == trainings[1]
    strings = [row.get("text") for row in rows if row.get("text") != ""] + [None]
    blocks = [
        make_trainer(data).train_dataset.blocks["input_ids"] for data in (rows, strings, texts[:50])
    ]
    found, of_strings, expected = ([*chain(*(ids.tolist() for ids in part))] for part in blocks)
    assert found == of_strings == expected


def test_documents_that_were_tokenized_before_are_cut_into_blocks_of_all_of_them(
    make_trainer, tokenizer, texts
):
    long = [" ".join(texts[:20]), texts[20]]
    encoded = tokenizer(long, padding=True, verbose=False)
    bare = tokenizer(long, add_special_tokens=False, verbose=False)["input_ids"]
    rows = Dataset.from_dict({name: encoded[name] for name in ("input_ids", "attention_mask")})
    blocks = make_trainer(rows).train_dataset.blocks
    assert [*chain(*(ids.tolist() for ids in blocks["input_ids"]))] == [*chain(*bare)]
    lengths = [len(ids) for ids in blocks["input_ids"]]
    assert max(lengths) <= 30 and min(lengths[:-3]) > 25
    stream = make_trainer(rows.to_iterable_dataset(), name="b", stream_lanes=1).train_dataset
    read = [tuple(e["input_ids"].tolist()) for batch in islice(stream, 9) for e in batch]
    assert {*read} == {tuple(ids.tolist()) for ids in blocks["input_ids"]}
    without_mask = rows.remove_columns("attention_mask")
    with pytest.raises(ValueError, match="keep this column of the tokenizer"):
        make_trainer(without_mask)


def test_a_stream_that_cannot_be_trained_on_is_refused(make_trainer, texts):
    stream = IterableDataset.from_generator(lambda: ({"text": text} for text in texts))
    with pytest.raises(ValueError, match="max_steps has to be specified"):  # of transformers
        make_trainer(stream, max_steps=-1)
    with pytest.raises(ValueError, match="its columns are body.*rename_column"):
        make_trainer(stream.rename_column("text", "body"))
    with pytest.raises(ValueError, match="train_dataset is empty"):
        make_trainer(stream.take(0))


def test_a_stream_is_evaluated_to_its_end(make_trainer, texts):
    rows = Dataset.from_dict({"text": texts[:20]})
    trainer = make_trainer()
    expected = trainer.evaluate(rows)["eval_loss"]
    assert trainer.evaluate(rows.to_iterable_dataset())["eval_loss"] == expected


def test_rows_of_a_list_may_differ_in_columns_that_are_not_read(make_trainer, texts):
    rows = [{"text": text, "score": i if i < 1000 else 0.5} for i, text in enumerate(texts * 12)]
    rows.insert(1000, {"score": 1})  # rows are read by the thousand
    of_texts = make_trainer([row.get("text") for row in rows], name="b").train_dataset
    of_rows = make_trainer(rows).train_dataset
    assert fingerprint_blocks(of_rows.blocks) == fingerprint_blocks(of_texts.blocks)


def test_a_stream_of_the_hub_gives_the_training_of_its_files(
    loopback_hub, make_trainer, texts, tmp_path
):
    folder = tmp_path / "set"
    folder.mkdir()
    for part in range(2):
        rows = Dataset.from_dict({"text": texts[part * 25 : part * 25 + 25], "id": [*range(25)]})
        rows.to_parquet(folder / f"train-{part}.parquet")
    loopback_hub.put(folder, "owner/texts", kind="datasets")
    hub = load_dataset("owner/texts", split="train", streaming=True)
    local = load_dataset("parquet", data_files=f"{folder}/*", split="train", streaming=True)
    assert hub.num_shards == 2
    trained = losses_of(make_trainer(hub, name="hub", dataloader_num_workers=1))
    assert trained == losses_of(make_trainer(local, dataloader_num_workers=1))
