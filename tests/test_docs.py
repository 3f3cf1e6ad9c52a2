"""The commands and the Python of README.md and docs/, run as they stand."""

import csv
import re
import shlex
from pathlib import Path

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoModel

from benchmarks.figures import FIGURES_FILE, figures_of
from hub_scripts.main import COMMANDS, main
from modeling_condenser import collect
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_provenance
from tests.backbones.encoders import BACKBONES
from tests.encoding.making import save_modules

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
# In the order in which a reader would run them.
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("which-start", "pretraining", "finetuning", "evaluation", "hub")
    ),
]


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """The page's `condenser` commands, each on one line."""
    lines = "".join(code_blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("condenser ")]


def _mean_pooled(size: int) -> list[torch.nn.Module]:
    return [Pooling(size, pooling_mode="mean"), Normalize()]


@pytest.fixture
def workplace(tmp_path, monkeypatch, texts, corpus_file):
    """A folder in which the README's names mean small things."""
    encoder = tmp_path / "google-bert" / "bert-base-uncased"
    BACKBONES["BERT"].save(encoder, texts, positions=512)
    lines = corpus_file.read_text().splitlines(keepends=True)[:120]
    (tmp_path / "my-documents.jsonl").write_text("".join(lines))
    (tmp_path / "my-files").mkdir()
    labels = ["question,file"]
    for i, text in enumerate(texts[:90]):
        (tmp_path / f"my-files/{i}.txt").write_text(text)
        words = re.findall(r"\w+", text)[:8]
        labels.append(f"{' '.join(words)},{i}.txt")
    (tmp_path / "pairs.csv").write_text("\n".join(labels))
    minilm = tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"
    minilm.parent.mkdir()
    save_modules(minilm, encoder, _mean_pooled, similarity_fn_name="cosine")
    monkeypatch.chdir(tmp_path)
    collect(sources=["my-files"], out="my-collection", labels="pairs.csv")
    return tmp_path


def test_the_python_runs_and_ends_with_a_plain_encoder(workplace):
    code, _ = code_blocks(ROOT / "README.md", "python")
    shortened = code.replace("max_steps=1000", "max_steps=3")
    assert shortened != code
    exec(compile(shortened, "README.md", "exec"), {})
    assert type(AutoModel.from_pretrained("my-condenser")).__name__ == "BertModel"
    assert (workplace / "my-condenser" / "modules.json").is_file()
    exported = export_encoder("runs/python", "exported")  # from the last checkpoint of the run
    (stage,) = read_provenance(exported)
    assert stage.run["steps"] == stage.recipe["max_steps"] == 3
    assert "bow_weight: 1.0" in (exported / "README.md").read_text()


def test_the_page_about_own_documents_shows_what_collect_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my-files").mkdir()
    page = ROOT / "docs" / "collection.md"
    for name, text in zip(("my-files/faq.csv", "pairs.csv"), code_blocks(page, "csv"), strict=True):
        Path(name).write_text(text)
    Path("my-files/refunds.md").write_text(code_blocks(page, "markdown")[0])
    commands = commands_of(page)
    assert [main(shlex.split(command)[1:]) for command in commands] == [0] * len(commands)
    written = code_blocks(page, "jsonl") + code_blocks(page, "tsv")
    for name, shown in zip(("corpus.jsonl", "qrels/dev.tsv"), written, strict=True):
        assert shown in Path("my-collection", name).read_text()
    capsys.readouterr()
    exec(compile(code_blocks(page, "python")[0], page.name, "exec"), {})
    assert capsys.readouterr().out.split()[:2] == ["files", "2"]


@pytest.mark.slow
def test_the_page_about_a_new_language_makes_an_encoder_that_keeps_accents(workplace, capsys):
    page = ROOT / "docs" / "from-nothing.md"
    code, code_without_blanks = code_blocks(page, "python")
    Path("accents.jsonl").write_text('{"text": "où est la clé ? ici ou là"}\n' * 9)
    names: dict = {}
    exec(compile(code.replace("my-documents", "accents"), page.name, "exec"), names)
    assert names["tokenizer"].tokenize("OÙ ou")[:2] == ["où", "ou"]
    text = "がっこうで，パンをたべた！เป็นเมืองที่นับถือศาสนาพุทธทำ"
    names["texts"] = [{"text": text}] * 9
    exec(compile(code_without_blanks.replace("30000", "90"), page.name, "exec"), names)
    ids = names["tokenizer"](text)["input_ids"]
    assert names["tokenizer"].decode(ids, skip_special_tokens=True) == text
    exec(compile(code.replace("30000", "300"), page.name, "exec"), {})
    Path("small.json").write_text(code_blocks(page, "json")[0])
    for command in commands_of(page):
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert type(AutoModel.from_pretrained("first-steps")).__name__ == "ModernBertModel"
    card = Path("first-steps/README.md").read_text()
    assert "trained from random weights" in card


@pytest.mark.slow
def test_the_commands_run_one_after_another(workplace, capsys, loopback_hub, monkeypatch):
    # Each push opens its folder in a new process, which tests/publishing/test_push.py tests.
    monkeypatch.setattr("modeling_condenser.publishing.push.find_opening_error", lambda _: None)
    commands = list(dict.fromkeys(line for page in PAGES for line in commands_of(page)))
    verbs = {shlex.split(command)[1] for command in commands}
    assert verbs == set(COMMANDS)
    for command in commands:
        words = shlex.split(command)
        assert main(words[1:]) == 0, (command, capsys.readouterr().err)
    for page in PAGES:
        for code in code_blocks(page, "python"):
            if "CondenserForPreTraining.from_encoder" not in code:  # the test above runs it
                exec(compile(code, page.name, "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"MRR@10 +0\.\d{4} .* +-?0\.\d{4} +\d\.\d{4} +[▲▼○]", printed)
    assert "1. " in printed


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_csv_has_the_figures_of_the_result_pages():
    made = figures_of(RESULTS)
    assert made == (RESULTS / FIGURES_FILE).read_text()
    rows = list(csv.reader(made.splitlines()))
    assert len({tuple(row[:-1]) for row in rows}) == len(rows) > 1000


def test_every_link_to_a_heading_finds_it():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for name, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
            target = page.parent / name if name else page
            assert anchor in anchors(target), (page, name, anchor)


def test_all_that_the_readme_and_the_docs_name_exists():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        named = set(re.findall(r"(?:`|^)condenser ([a-z][\w-]+)", text, re.MULTILINE))
        assert named <= set(COMMANDS), (page, named - set(COMMANDS))
        links = re.findall(r"\]\(([\w./-]+)\)|(?:src|srcset)=\"([\w./-]+)\"", text)
        for link in ["".join(found) for found in links]:
            assert (page.parent / link).is_file(), (page, link)
        for module in re.findall(r"python -m (benchmarks\.\w+)", text):
            assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), (page, module)
        kinds = "pretrain|finetune|adapt|mine|evaluate|analyze"
        for recipe in re.findall(rf"`((?:{kinds})/[\w-]+)`", text):
            assert (ROOT / "configuration" / f"{recipe}.yaml").is_file(), (page, recipe)
