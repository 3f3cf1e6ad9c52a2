"""Settings as they may be published."""

from pathlib import Path

import pytest

from modeling_condenser.hub import model_folder
from modeling_condenser.repository.publishable import hub_name, publishable


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ("owner/name", "owner/name"),
        ("owner/name@refs/pr/1", "owner/name@refs/pr/1"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("hf://datasets/owner/name", "hf://datasets/owner/name"),
        ("", ""),
        ("condenser", "condenser"),
        (3, 3),
        (0.5, 0.5),
        (True, True),
        (None, None),
        ("/home/me/secret/encoder", "local: encoder"),
        ("data/here.txt", "local: here.txt"),  # exists
        ("~/secret/corpus.txt", "local: corpus.txt"),
        ("../secret/corpus.txt", "local: corpus.txt"),
        ("secret/plans/corpus.txt", "local: corpus.txt"),  # moved away since
        ("secret/*.txt", "local: *.txt"),
        ("runs/mine", "local: mine"),
        (Path("/home/me/x"), "local: x"),
        (r"C:\Users\me\encoder", "local: encoder"),
        (r"\\server\share\encoder", "local: encoder"),
        ("file:///home/me/x.txt", "local: x.txt"),
        ("https://me:pass@example.org/a.txt?sig=1", "https://example.org/a.txt"),
        ("https://huggingface.co/datasets/a/b", "https://huggingface.co/datasets/a/b"),
        ("a: b", "a: b"),
        ("x" * 5000, "x" * 5000),
    ],
)
def test_a_setting_says_nothing_of_this_machine(
    given: object, published: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    recipe = {"encoder": given, "corpus": [{"path": given, "split": "train"}], "data": (given,)}
    assert publishable(recipe) == {
        "encoder": published,
        "corpus": [{"path": published, "split": "train"}],
        "data": [published],
    }


def test_the_bundled_encoder_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starter").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_folder.importlib.metadata, "version", {"condenser": "1.2"}.get)
    for given in ("starter", str(model_folder.STARTER_FOLDER)):
        assert publishable({"encoder": given}) == {"encoder": "starter of condenser 1.2"}
    assert publishable({"encoder": "./starter"}) == {"encoder": "local: starter"}
    assert publishable({"corpus": "starter"}) == {"corpus": "local: starter"}


def test_a_relative_path_is_known_from_where_its_run_lies(tmp_path: Path) -> None:
    (tmp_path / "me" / "start").mkdir(parents=True)
    recipe = {"encoder": "me/start"}
    assert publishable(recipe) == recipe
    assert publishable(recipe, near=tmp_path / "runs" / "x") == {"encoder": "local: start"}


@pytest.mark.parametrize(
    "name", ["hub_token", "push_to_hub_token", "token", "api_key", "WANDB_API_KEY", "password"]
)
def test_a_secret_is_left_out_at_any_depth(name: str) -> None:
    settings = {name: "not-a-real-one", "inner": {name: "not-a-real-one", "kept": 1}}
    assert publishable(settings) == {"inner": {"kept": 1}}


def test_a_token_within_a_text_is_blotted_out() -> None:
    told = publishable({"command": "run --key hf_" + "A" * 34})
    assert told == {"command": "run --key …"}


def test_prompts_are_no_paths() -> None:
    settings = {"query_prompt": "and/or/not: ", "passage_prompt": "./", "title_separator": " / / "}
    assert publishable(settings) == settings


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/name", "owner/name"),
        ("owner/name_1.2@v1", "owner/name_1.2"),
        ("name", None),
        ("local: name", None),
        ("data/train.jsonl", None),
        ("data/train.tsv.gz", None),
        ("a/b/c", None),
        ("a/..", None),
        ("/a/b", None),
        (None, None),
        (3, None),
        ({"a": 1}, None),
    ],
)
def test_a_hub_name_has_an_owner_and_is_no_file(text: object, name: str | None) -> None:
    assert hub_name(text) == name
