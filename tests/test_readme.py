"""The README's commands and its Python, as they stand, on files of the names that it uses."""

import re
import shlex
from pathlib import Path

import pytest
from transformers import BertConfig, BertForMaskedLM

from hub_scripts.main import COMMANDS, main
from tests.publishing.making import make_collection

README = Path(__file__).parent.parent / "README.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch, texts, corpus_file, wordpiece_tokenizer):
    """A folder in which the README's names mean small things."""
    encoder = tmp_path / "google-bert" / "bert-base-uncased"
    config = BertConfig(
        vocab_size=len(wordpiece_tokenizer),
        hidden_size=16,
        num_hidden_layers=12,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=512,
    )
    BertForMaskedLM(config).save_pretrained(encoder)
    wordpiece_tokenizer.save_pretrained(encoder)
    lines = Path(corpus_file).read_text().splitlines()[:30]
    (tmp_path / "my-documents.jsonl").write_text("\n".join(lines) + "\n")
    make_collection(tmp_path / "my-collection", list(texts))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_runs_and_ends_with_a_plain_encoder(workplace):
    (code,) = code_blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    shortened = code.replace("max_steps=1000", "max_steps=3")
    assert shortened != code
    names: dict = {}
    exec(compile(shortened, "README.md", "exec"), names)
    assert type(names["encoder"]).__name__ == "BertModel"
    assert (workplace / "my-encoder" / "encoding_contract.json").is_file()


def test_the_commands_run_one_after_another(workplace, capsys, loopback_hub):
    blocks = "".join(block for block in code_blocks("bash") if "condenser " in block)
    commands = blocks.replace("\\\n", " ").strip().splitlines()
    assert [shlex.split(command)[1] for command in commands] == [
        "pretrain",
        "export",
        "finetune",
        "evaluate",
        "search",
        "pretrain",
        "analyze",
        "analyze",
        "mine",
        "finetune",
        "evaluate",
        "encode",
        "search",
        "push",
        "push",
        "push",
        "evaluate",
    ]
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "condenser"
        assert main(words[1:]) == 0, (command, capsys.readouterr().err)
    printed = capsys.readouterr().out
    assert re.search(r"MRR@10 +0\.\d{4} +[+-]0\.\d{4} from bm25, p [=<] [01]\.\d{3}", printed)
    assert "1. " in printed


def test_every_command_and_file_that_the_readme_names_exists():
    text = README.read_text()
    named = set(re.findall(r"(?<![\w*-])condenser ([\w-]+)", text)) - {"makes"}
    assert named <= set(COMMANDS), named - set(COMMANDS)
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        makefile = (README.parent / "Makefile").read_text()
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    for file in re.findall(r"\]\((\w+\.md)\)", text) + re.findall(r"`(configuration/\S+)`", text):
        assert (README.parent / file).is_file(), file
