"""Model cards: made from what lies in a repository's folder, and nothing else.

In: a folder with an encoder and its contract, or with a pre-training checkpoint; its provenance and
its results, where they are there. Out: README.md with metadata for the Hub, and beside it the
pictures of its training. What a person wrote on an earlier card stays.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import validate_repo_id, yaml_dump

from modeling_condenser.runs.whole_files import whole_file

from .card_facts import CURVES_FILE, CardFacts, read_facts
from .card_sections import make_sections
from .curves import draw_curves, has_curves
from .markers import find_repository, merge_sections, repository_comment, split_sections
from .metadata import make_metadata, merge_metadata
from .readiness_section import draw_pictures
from .snippets import PLACEHOLDER
from .training_section import label_stages

__all__ = ["CARD_FILE", "PLACEHOLDER", "read_card", "write_card"]

CARD_FILE = "README.md"
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_NOTE = (
    "<!-- What stands between comments named condenser:… is written anew with every evaluation and "
    "upload. Your own text is kept anywhere else. -->"
)


def write_card(folder: Path, *, name: str | None = None, license: str | None = None) -> None:
    """Write a repository's README.md, and the pictures of its training.

    The sections that are made here stand between comments (`markers.py`). On a card that has them
    they are replaced in their places; a card without them, which somebody wrote, is kept as it
    is and the sections follow it. Metadata are joined with those that the card has
    (`merge_metadata`).

    Args:
        folder: with an encoding contract, or a Condenser checkpoint.
        name: `owner/name` of the repository on the Hub, for the snippets; it is remembered. Until
            it is known, `OWNER/NAME` stands in its place.
        license: identifier as the Hub knows it, such as "apache-2.0"; by default the one that the
            card has.

    Raises:
        ValueError: the folder holds no model of ours, the metadata or comments of its card are
            broken, or no repository can have the name; the card is then as it was.
    """
    metadata, text = read_card(folder / CARD_FILE)
    name = name or find_repository(text)
    if name:
        validate_repo_id(name)
    facts = read_facts(folder)
    if name:
        facts = replace(facts, title=name.rpartition("/")[2])
    made = make_metadata(
        facts.stages,
        facts.results,
        model_name=facts.title,
        is_checkpoint=facts.contract is None,
    )
    metadata = merge_metadata(metadata, made)
    if license:
        metadata["license"] = license
    facts = replace(facts, license=_license(metadata))
    body = merge_sections(text, _sections(facts, name, text, folder), file=folder / CARD_FILE)
    card = f"---\n{yaml_dump(metadata, sort_keys=False).strip()}\n---\n\n{body}"
    ModelCard(card)  # as the Hub's client reads it: raises ValueError
    for picture, content in _pictures(facts).items():
        with whole_file(folder / picture) as file:
            file.write(content)
    with whole_file(folder / CARD_FILE) as file:
        file.write(card.encode())


class _HubLoader(yaml.SafeLoader):
    """Reads YAML as the Hub does (version 1.2): `language: no` is Norwegian, and not false."""


_HubLoader.yaml_implicit_resolvers = {
    first: [pair for pair in resolvers if pair[0] != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_HubLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_card(file: Path) -> tuple[dict[str, Any], str]:
    """A card's metadata and text; both empty if there is none.

    Raises:
        ValueError: the metadata are no YAML, or not what the Hub's client reads.
    """
    if not file.is_file():
        return {}, ""
    content = file.read_text(encoding="utf-8-sig")
    match = REGEX_YAML_BLOCK.search(content)
    if match is None:
        return {}, content
    try:
        metadata = yaml.load(match[2], _HubLoader) or {}
    except yaml.YAMLError as error:
        raise ValueError(
            f"the metadata at the top of {file} are no YAML ({error}): mend them."
        ) from error
    if not isinstance(metadata, dict):
        raise ValueError(
            f"the metadata at the top of {file} are a {type(metadata).__name__}, expected lines "
            "of the form `key: value`: mend them."
        )
    try:
        ModelCardData(**metadata)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the Hub's client cannot read the metadata at the top of {file} ({error}): mend them."
        ) from error
    return metadata, content[match.end() :]


def _sections(facts: CardFacts, name: str | None, text: str, folder: Path) -> dict[str, str]:
    sections = make_sections(facts)
    parts = split_sections(text, file=folder / CARD_FILE)
    foreign = "\n".join(content for section, content in parts if section is None)
    if re.search(r"^# ", _FENCED.sub("", foreign), re.MULTILINE):  # it has a title already
        sections["about"] = sections["about"].partition("\n\n")[2]
    sections["about"] = f"{_NOTE}\n\n{sections['about']}"
    if name:
        sections = {key: value.replace(PLACEHOLDER, name) for key, value in sections.items()}
        sections["about"] = f"{repository_comment(name)}\n{sections['about']}"
    return sections


def _license(metadata: Mapping[str, Any]) -> str | None:
    stated = metadata.get("license")
    if isinstance(stated, list):
        return ", ".join(map(str, stated))
    known = metadata.get("license_name") if stated == "other" else None
    return str(known or stated) if stated else None


def _pictures(facts: CardFacts) -> dict[str, bytes]:
    """The curves of all pre-training stages whose logs hold their losses, and their readiness."""
    runs = {
        label: stage.log
        for label, stage in label_stages(facts.stages).items()
        if has_curves(stage.log)
    }
    curves = {CURVES_FILE: draw_curves(runs)} if runs else {}
    return {**curves, **draw_pictures(facts.stages)}
