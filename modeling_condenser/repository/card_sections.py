"""A card's sections: what the folder says in, Markdown by section out."""

from collections.abc import Mapping
from typing import Any

from .card_facts import CardFacts
from .citations import cite
from .contract import CONTRACT_FILE, EncodingContract
from .markdown import code, code_block, escape, listed, table
from .provenance import FINETUNING
from .readiness_section import readiness_section
from .results_section import headline, results_section
from .snippets import (
    PLACEHOLDER,
    checkpoint_snippet,
    command_snippet,
    continue_snippet,
    package_snippet,
    sentence_transformers_snippet,
    transformers_snippet,
)
from .training_section import training_section

_POOLINGS = {
    "cls": "CLS (position 0) of the last hidden state",
    "mean": "mean of the last hidden state over the text's tokens",
    "max": "maximum of the last hidden state over the text's tokens",
}


def make_sections(facts: CardFacts) -> dict[str, str]:
    """Name of section -> its Markdown, in the card's order."""
    is_checkpoint = facts.contract is None
    use = _checkpoint_use(facts) if facts.contract is None else _encoder_use(facts, facts.contract)
    readiness = readiness_section(facts.stages)
    return {
        "about": f"# {escape(facts.title)}\n\n{_about(facts)}",
        **use,
        "results": results_section(facts.results, is_checkpoint=is_checkpoint),
        **({"readiness": readiness} if readiness else {}),
        "training": training_section(facts.stages),
        "revision": _checkpoint_code(facts) if is_checkpoint else _NO_CODE,
        "limits": _limits(facts),
        "citation": f"## Citation\n\n{code_block(cite(facts.stages), 'bibtex')}",
    }


_HEAD = (
    "A pre-training checkpoint of a Condenser (Gao & Callan 2021): an encoder with its masked-LM "
    "head, and a short head on top that must predict masked words from the encoder's CLS vector "
    "and early tokens, so that the vector learns to carry the text."
)
_NO_HEAD = (
    "A checkpoint of plain masked language modelling: an encoder with its masked-LM head, and no "
    "Condenser head."
)
_NEXT = "It is no retriever yet: go on with pre-training, or export the encoder and fine-tune it."


# What most decides how an encoder was made, first.
_ORIGINS = {
    "cocondenser": "condensed for dense retrieval and contrasted over its corpus: spans of one "
    "document have similar CLS vectors, each of which carries what a masked-LM head needs (Gao & "
    "Callan 2021, 2022)",
    "condenser": "condensed for dense retrieval: its CLS vector was trained to carry what a "
    "masked-LM head needs (Gao & Callan 2021)",
    "ict": "trained with the Inverse Cloze Task: a sentence finds the passage that it was taken "
    "from (Lee et al. 2019)",
    "tsdae": "trained with TSDAE: a decoder reconstructs a text from the CLS vector of a copy that "
    "lacks most of its words (Wang et al. 2021)",
    "mlm": "trained with plain masked language modelling",
}


def _about(facts: CardFacts) -> str:
    if facts.contract is None:
        return f"{_HEAD if facts.has_head else _NO_HEAD} {_NEXT}"
    said = _encoder_summary(facts)
    return f"{said}\n\n{headline(facts.results[0])}" if facts.results else said


def _encoder_summary(facts: CardFacts) -> str:
    stages = facts.stages
    if not stages:
        return "A plain encoder; how it was trained is not recorded."
    objectives = {stage.run.get("objective") for stage in stages}
    origin = next(said for objective, said in _ORIGINS.items() if objective in {*objectives, "mlm"})
    if all(stage.name != FINETUNING for stage in stages):
        return f"A plain encoder, {origin}. Fine-tune it into a retriever."
    # Graded pairs train no ranking.
    is_graded = stages[-1].run.get("objective") == "mse_cosine"
    kind = "A sentence encoder" if is_graded else "A dense retriever"
    if all(stage.name == FINETUNING for stage in stages):
        return f"{kind}, fine-tuned from an encoder whose pre-training is not recorded here."
    return f"{kind}, fine-tuned from an encoder that was {origin}."


def _encoder_use(facts: CardFacts, contract: EncodingContract) -> dict[str, str]:
    rows = [
        ("vector", _POOLINGS[contract.pooling]),
        ("similarity", contract.similarity),
        ("dimension", _first(facts.config, "hidden_size", "dim")),
        ("longest query", f"{contract.query_max_length} tokens"),
        ("longest passage", f"{contract.passage_max_length} tokens"),
        ("title", f"put before the text with {code(repr(contract.title_separator))} between"),
        ("segment ids", "passed" if contract.token_type_ids else "not passed"),
        ("before a query", code(repr(contract.query_prompt)) if contract.query_prompt else ""),
        (
            "before a passage",
            code(repr(contract.passage_prompt)) if contract.passage_prompt else "",
        ),
    ]
    contract_text = (
        f"## How it encodes\n\nThe contract that every figure here was made with, also in "
        f"[{CONTRACT_FILE}]({CONTRACT_FILE}):\n\n"
        + table(["", ""], [row for row in rows if row[1]], numbers_from=2)
    )
    use = [
        "## How to use",
        "With sentence-transformers:",
        code_block(sentence_transformers_snippet(contract), "python"),
        "With transformers alone:",
        code_block(transformers_snippet(contract), "python"),
        "With the package that made it (condenser), for whole collections:",
        code_block(package_snippet(contract), "python"),
        "Its commands; `COLLECTION` is a folder or a data set on the Hub, in BEIR's layout:",
        code_block(command_snippet(facts.has_script), "bash"),
    ]
    return {"contract": contract_text, "use": "\n\n".join(use)}


def _checkpoint_use(facts: CardFacts) -> dict[str, str]:
    encoder: Mapping[str, Any] = facts.config.get("encoder_config") or {}
    n_layers, skip_from = (
        _first(encoder, "num_hidden_layers", "n_layers"),
        facts.config.get("skip_from"),
    )
    rows = [
        ("backbone", f"{_first(encoder, 'model_type')}, {n_layers} layers"),
        ("dimension", _first(encoder, "hidden_size", "dim")),
    ]
    if facts.has_head:
        n_head_layers = facts.config.get("n_head_layers")
        late = facts.config.get("late_mlm", True)
        rows += [
            ("split", f"the head reads the tokens that leave layer {skip_from}, and the last CLS"),
            ("head", f"{n_head_layers} layer{'' if n_head_layers == 1 else 's'}"),
            ("masked LM", "on head and late output" if late else "on the head's output only"),
        ]
    auto_class = "AutoModelForPreTraining" if facts.has_head else "AutoModelForMaskedLM"
    use = [
        "## How to use",
        "With transformers and the code in this repository:",
        code_block(checkpoint_snippet(auto_class), "python"),
        "With the package that made it (condenser):",
        code_block(continue_snippet(), "bash"),
    ]
    return {
        "architecture": f"## Architecture\n\n{table(['', ''], rows, numbers_from=2)}",
        "use": "\n\n".join(use),
    }


def _first(config: Mapping[str, Any], *names: str) -> str:
    """The first of these settings that a config has: DistilBERT has other names than BERT."""
    return next((escape(config[name]) for name in names if name in config), "")


_NO_CODE = f"""## Revision and code

Opening this model executes no code from this repository: it is weights and settings that
transformers and sentence-transformers know, and it needs no `trust_remote_code`. To get the same
tomorrow, name a commit of the repository's history:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{PLACEHOLDER}", revision="COMMIT")
```"""


def _checkpoint_code(facts: CardFacts) -> str:
    rows = [
        [f"[{escape(file.name)}]({file.name})", ", ".join(code(name) for name in file.imports)]
        for file in facts.code
    ]
    auto_class = "AutoModelForPreTraining" if facts.has_head else "AutoModelForMaskedLM"
    parts = [
        "## Revision and code",
        f"transformers does not know this architecture, so opening the checkpoint executes "
        f"{_counted_files(len(facts.code))} of this repository, which `trust_remote_code=True` "
        "allows. Read them, then name the commit that you have read, so that no later one runs "
        "unseen:",
    ]
    parts += [table(["file", "imports"], rows, numbers_from=2)] if rows else []
    snippet = f"""from transformers import {auto_class}

model = {auto_class}.from_pretrained(
    "{PLACEHOLDER}", trust_remote_code=True, revision="COMMIT"
)"""
    parts += [
        code_block(snippet, "python"),
        "The package itself opens the checkpoint with its own code, and an exported encoder needs "
        "none.",
    ]
    return "\n\n".join(parts)


def _counted_files(n: int) -> str:
    words = {1: "one file", 2: "two files"}
    return words.get(n, f"{n} files" if n else "the code files")


def _limits(facts: CardFacts) -> str:
    points = []
    contract = facts.contract
    if contract is not None:
        points += [
            f"What is beyond {contract.query_max_length} tokens of a query or "
            f"{contract.passage_max_length} of a passage is not read.",
            "Vectors made in another way than the contract says (another pooling, separator or "
            "length) cannot be compared with its own, and the figures here do not hold for them.",
        ]
        if facts.stages and all(stage.name != FINETUNING for stage in facts.stages):
            points.append("It was not trained to rank: without fine-tuning it finds little.")
    if facts.results:
        names = list(dict.fromkeys(escape(result.collection) for result in facts.results))
        points.append(f"It was measured on {listed(names)}; other text may give other figures.")
    elif contract is not None:
        points.append("How well it ranks is not known, since it was not evaluated.")
    points.append(
        "It knows the languages and subjects of its training text, with that text's errors and "
        "prejudices."
    )
    terms = (
        f"Licence: {code(facts.license)}."
        if facts.license
        else "No licence is stated, so none is given: ask its owner."
    )
    listing = "\n".join(f"- {point}" for point in points)
    return (
        f"## Limits and licence\n\n{listing}\n\n{terms} The terms of the model that it was started "
        "from and of the training data apply beside it."
    )
