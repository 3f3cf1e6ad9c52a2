r"""Make French text and a retrieval task from manuals of Debian, for docs/from-nothing.md.

    apt-get install mandoc
    apt-get download manpages-fr manpages-fr-dev debian-reference-fr debian-handbook \
        aptitude-doc-fr debian-faq-fr developers-reference-fr maint-guide-fr \
        installation-guide-amd64 libreoffice-help-fr gimp-help-fr lilypond-doc-html-fr \
        debian-edu-doc-fr kicad-doc-fr linuxcnc-doc-fr gnome-user-docs
    mkdir packages
    for file in *.deb; do dpkg-deb -x $file packages/${file%%_*}; done
    python -m benchmarks.make_french_manuals packages OUT

OUT/text.jsonl is the text of the manuals for training; OUT/collection is in BEIR's layout. A query
is the heading of a section, or what a manual page says of its command in one line; the passages of
the section, without heading and title, are relevant. So nobody judged anything. Whole manuals, and
a fifth of the manual pages, are held out for the split test, and are not in the text.

The page's tokenizer has 12,288 words and reads OUT/text.jsonl. Then, with OMP_NUM_THREADS=1:

    condenser pretrain pretrain/from-scratch --tokenizer my-tokenizer --corpus OUT/text.jsonl \
        --language fr --encoder_config "{model_type: bert, hidden_size: 256, num_hidden_layers: 4,
        num_attention_heads: 4, intermediate_size: 1024, hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0}" --max_length 128 --tokens_per_batch 4096 \
        --gradient_accumulation_steps 1 --learning_rate 1e-3 --warmup_steps 0.1 \
        --weight_decay 0.01 --adam_epsilon 1e-8 --max_steps 1600 --seed 42 --output_dir runs/french
    condenser pretrain pretrain/own-text --encoder runs/french --corpus OUT/text.jsonl \
        --max_steps 2400 --seed 42 --output_dir runs/french-ict
    condenser export runs/french-ict french-encoder
    condenser finetune finetune/own-text --encoder french-encoder --collection OUT/collection \
        --train_size 512 --learning_rate 1e-3 --num_train_epochs 5 --passage_max_length 128 \
        --load_best_model_at_end false --seed 42 --output_dir runs/french-retriever
    condenser evaluate french-encoder runs/french-retriever/model \
        hybrid:runs/french-retriever/model OUT/collection --baseline bm25

EPYC with bfloat16 units, torch 2.13.0; the other core was busy. Processor time: 21 minutes of MLM,
22 of pretrain/own-text, 2 of fine-tuning.
"""

import argparse
import gzip
import hashlib
import json
import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lxml import etree

from modeling_condenser import collect
from modeling_condenser.collection.load import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE

MANUALS = {  # part of the passage id -> files
    "kicad": "kicad-doc-fr/**/fr/*.html",
    "lilypond": "lilypond-doc-html-fr/**/*.fr.html",
    "installation": "installation-guide-amd64/**/fr/*.html",
    "developers": "developers-reference-fr/**/fr/*.html",
    "handbook": "debian-handbook/**/fr-FR/*.html",
    "aptitude": "aptitude-doc-fr/**/fr/*.html",
    "libreoffice": "libreoffice-help-fr/**/fr/**/*.html",
    "linuxcnc": "linuxcnc-doc-fr/**/*_fr.html",
    "reference": "debian-reference-fr/**/*.fr.html",
    "faq": "debian-faq-fr/**/*.fr.html",
    "maint": "maint-guide-fr/**/*.fr.html",
    "gimp": "gimp-help-fr/**/fr/*.html",
    "edu": "debian-edu-doc-fr/**/*.html",
    "gnome": "gnome-user-docs/**/fr/**/*.page",
    "man": "manpages-fr*/**/man/fr/**/*.gz",
}
HELD_OUT = {"gnome": "test", "handbook": "test", "faq": "test", "edu": "test", "aptitude": "dev"}
_FRENCH = set(
    "le la les des et est une un pour dans sur que qui avec vous du par ne pas en au aux ce cette "
    "il se sont".split()
)
_ENGLISH = set("the of and is to in for that with this you be are by or".split())
_NO_TEXT = re.compile(r"\||\s*[•·]\s*$|.*Report a bug in GIMP")  # of tables, lists and links
_NUMBER = re.compile(r"^(Chapitre |Annexe )?([\dA-Z]+\.)+(\d+)?\s*")  # before a heading
_MALLARD = "{http://projectmallard.org/1.0/}"
_TAGS = {"item": "li", "list": "ul", "steps": "ol", "page": "body", "links": "nav"}
_INLINE = "gui key guiseq keyseq em app link file cmd code sys input output var".split()


def write_html(packages: Path, out: Path) -> None:
    """Write each page of the manuals as HTML, which `collect` reads."""
    for name, pattern in MANUALS.items():
        (out / name).mkdir(parents=True)
        for file in sorted(packages.glob(pattern)):
            # Books on one page are copies; fdl and gpl are licences in English.
            if "big-page" in file.name or file.name.startswith(("fdl", "gpl")) or file.is_symlink():
                continue
            stem = re.sub(r"\.(gz|page|html)$", "", file.name)
            target = out / name / f"{stem}.html"
            if target.exists():
                target = target.with_name(f"{file.parent.name}-{target.name}")
            if name == "man":
                source = gzip.decompress(file.read_bytes())
                if not source[:200].lstrip().startswith(b".so "):  # a link to another page
                    command = "mandoc -T html -O fragment -K utf-8".split()
                    page = subprocess.run(command, input=source, capture_output=True, check=False)
                    target.write_bytes(b"<html><body>%s</body></html>" % page.stdout)
            elif name == "gnome":
                target.write_text(f"<html>{_read_mallard(file)}</html>", encoding="utf-8")
            else:
                target.write_bytes(file.read_bytes())


def _read_mallard(file: Path) -> str:
    """A page of GNOME's help with HTML's tags."""
    root = etree.parse(file, etree.XMLParser(recover=True, resolve_entities=False)).getroot()
    for info in list(root.iter(f"{_MALLARD}info")):
        info.getparent().remove(info)
    headings = {f"{_MALLARD}page": "h1", f"{_MALLARD}section": "h2"}
    for title in root.iter(f"{_MALLARD}title"):
        title.set("heading", headings.get(title.getparent().tag, "p"))
    for element in root.iter(etree.Element):
        tag = element.tag.removeprefix(_MALLARD)
        kept = tag if tag in ("p", "table", "tr", "td") else "span" if tag in _INLINE else "div"
        element.tag = element.get("heading") or _TAGS.get(tag, kept)
        element.attrib.clear()
    etree.cleanup_namespaces(root)
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", etree.tostring(root, encoding="unicode"))


def choose_split(file: str) -> str:
    """The split of a passage's file: train, dev or test."""
    manual = file.split("/")[1]
    if manual != "man":
        return HELD_OUT.get(manual, "train")
    name = re.sub(r"\.\w+\.html$", "", Path(file).name)
    part = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20
    return "test" if part < 4 else "dev" if part == 4 else "train"


def is_french(text: str, least: float) -> bool:
    """Whether a share of the words are frequent ones of French, and few are of English."""
    words = re.findall(r"[a-zà-ÿ]+", text.lower())
    french = sum(word in _FRENCH for word in words)
    english = sum(word in _ENGLISH for word in words)
    return french > 2 * english and french >= least * len(words)


def make_task(rows: Iterable[dict[str, str]], out: Path) -> dict[str, int]:
    """Write the text and the collection; the number of documents, passages and queries."""
    documents: dict[str, list[str]] = defaultdict(list)
    passages, sections, lines_of = [], defaultdict(list), {}  # sections: (file, heading) -> ids
    last_heading = ""
    for row in rows:
        lines = [line for line in row["text"].split("\n") if not _NO_TEXT.match(line)]
        text = re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()
        file, headings, is_page = row["file"], row["headings"], "/man/" in row["file"]
        heading = _NUMBER.sub("", (headings or row["title"]).split(" > ")[-1])
        heading = " ".join(heading.split()).strip(" .:")
        if is_page and headings.startswith(("NOM", "TRADUCTION", "VOIR AUSSI")):
            if headings == "NOM" and " - " in text and is_french(text, 0.1):
                lines_of[file] = " ".join(text.split(" - ", 1)[1].split())
            continue
        n_words = len(text.split())
        if n_words < 5 or not is_french(text, 0.08):
            continue
        if choose_split(file) == "train":
            here = f"{file} {headings}"
            documents[file] += [text] if here == last_heading else [heading, text]
            last_heading = here
        if n_words >= 15 and n_words >= 6 * len(text.split("\n")):  # no list of links
            passages.append({"_id": row["_id"], "title": "", "text": text})
            if not is_page:
                sections[file, heading].append(row["_id"])
            elif headings == "DESCRIPTION":
                sections[file, ""].append(row["_id"])
    asked: dict[str, list[Any]] = defaultdict(list)
    for (file, heading), ids in sections.items():
        query = heading or lines_of.get(file, "")
        if 3 <= len(query.split()) <= 25 and len(ids) <= 6:
            asked[query.casefold()].append((query, choose_split(file), ids))
    queries = [found[0] for found in asked.values() if len(found) == 1]  # no heading of several
    random.Random(0).shuffle(queries)
    folder = out / "collection"
    (folder / QRELS_FOLDER).mkdir(parents=True)
    texts = [{"text": "\n".join(parts)} for parts in documents.values()]
    named = [{"_id": f"q{i}", "text": query} for i, (query, _, _) in enumerate(queries)]
    for path, part in (
        (out / "text.jsonl", texts),
        (folder / CORPUS_FILE, passages),
        (folder / QUERIES_FILE, named),
    ):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
        path.write_text(content, encoding="utf-8")
    counts = {"documents": len(texts), "passages": len(passages)}
    for split in ("train", "dev", "test"):
        chosen = [(i, ids) for i, (_, of, ids) in enumerate(queries) if of == split]
        judged = [f"q{i}\t{passage}\t1" for i, ids in chosen for passage in ids]
        file = folder / QRELS_FOLDER / f"{split}.tsv"
        file.write_text("\n".join(["\t".join(QRELS_HEADER), *judged]) + "\n", encoding="utf-8")
        counts[split] = len(chosen)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", type=Path, help="folder of the unpacked packages")
    parser.add_argument("out", type=Path, help="folder to write")
    options = parser.parse_args()
    write_html(options.packages, options.out / "html")
    collect(sources=[options.out / "html"], out=options.out / "collected")
    with (options.out / "collected" / CORPUS_FILE).open(encoding="utf-8") as stream:
        print(make_task(map(json.loads, stream), options.out))
