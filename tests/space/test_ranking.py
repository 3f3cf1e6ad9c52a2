"""The page's lexical search in Node.js: its words and rankings are Python's."""

import json
import shutil
import subprocess
from pathlib import Path

import faiss
import numpy as np
import pytest

from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.words import split_words
from modeling_condenser.space import space
from tests.retrieval.test_bm25 import LANGUAGES, make_passages
from tests.retrieval.test_words import SPLIT

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="no Node.js")
IMPORT = "import { Bm25, markWords, splitWords } from './ranking.mjs'; import fs from 'fs';"


def run_script(folder: Path, script: str, given: object):
    """What a script prints as JSON; `given` is its input."""
    shutil.copy(space._PAGE / "ranking.js", folder / "ranking.mjs")
    (folder / "given.json").write_text(json.dumps(given))
    text = f"{IMPORT} const given = JSON.parse(fs.readFileSync('given.json')); {script}"
    command = ["node", "--input-type=module", "--eval", text]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)


def test_words_are_those_of_python(tmp_path):
    texts = [*SPLIT, "ΟΔΟΣ ΣΑΣ, İstanbul ǅ ŉ ẞ ½ ①", "ខ្ញុំចូលចិត្តត្រី", "がか\u3099々〇𠮷野家"]
    words = run_script(tmp_path, "console.log(JSON.stringify(given.map(splitWords)))", texts)
    assert words == [split_words(text) for text in texts]


def test_rankings_are_those_of_python(tmp_path):
    texts = [text for *passages, _ in LANGUAGES.values() for text in passages]
    passages = make_passages({f"p{7 * i % 31}": ("", f"The {t}") for i, t in enumerate(texts)})
    index = faiss.IndexScalarQuantizer(2, faiss.ScalarQuantizer.QT_8bit)
    vectors = np.random.default_rng(0).normal(size=(len(passages), 2)).astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    space.write_page_data(tmp_path / "data", passages, index, text_length=9)
    queries = [query for *_, query in LANGUAGES.values()] + ["the", "企鹅 ペンギン", "ＦＩＳＣＨＥ"]
    script = """
        const read = (name) => fs.readFileSync(`data/${name}`);
        const { ids } = JSON.parse(read("passages.json"));
        const numbers = new Uint8Array(read("bm25.bin")).buffer;
        const bm25 = new Bm25(JSON.parse(read("words.json")), numbers, ids.length);
        const search = (query) => bm25.search(query).map(({ row, score }) => [ids[row], score]);
        console.log(JSON.stringify(given.map(search)));
    """
    expected = Bm25(passages).search(dict(zip(queries, queries, strict=True)))
    found = run_script(tmp_path, script, queries)
    assert [[list(pair) for pair in run.items()] for run in expected.values()] == found


def test_found_words_are_marked_in_the_text(tmp_path):
    words = ["企鹅", "鹅吃", "glacier", "カギ"]
    texts = ["The GLACIER, glaciers.", "企鹅吃鱼 企鹅", "ｶｷﾞ カギ"]
    script = "console.log(JSON.stringify(given[1].map((t) => markWords(t, new Set(given[0])))))"
    assert run_script(tmp_path, script, [words, texts]) == [
        [["The ", False], ["GLACIER", True], [", glaciers.", False]],
        [["", False], ["企鹅吃", True], ["鱼 ", False], ["企鹅", True], ["", False]],
        [["ｶｷﾞ ", False], ["カギ", True], ["", False]],
    ]
