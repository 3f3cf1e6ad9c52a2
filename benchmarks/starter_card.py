"""The model card of the encoder that comes with the package: facts in, README.md out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from modeling_condenser.hub.model_folder import STARTER
from modeling_condenser.repository.card import CARD_FILE
from modeling_condenser.repository.citations import cite
from modeling_condenser.repository.curves import draw_curves
from modeling_condenser.repository.markdown import code_block, table
from modeling_condenser.repository.provenance import Stage, label_stages
from modeling_condenser.repository.training_log import spread
from modeling_condenser.repository.training_section import (
    CURVES_FILE,
    training_section,
)

_LICENSE = "cc-by-sa-3.0"
_SOURCES = {"elehman16/boolq": "1f8c3d95", "JohanMadsen/02807_Project": "acb54d6b"}  # at a commit
_MOST_ROWS = 25


@dataclass(frozen=True)
class Facts:
    """What the card says.

    Attributes:
        config: of the encoder.
        n_parameters: of the encoder and its LM head.
        stages: that trained it.
        n_articles: of the training text.
        n_words: of the training text.
        validation: settings of the validation, as in its file.
        losses: tokens seen and validation loss, in order.
    """

    config: Mapping[str, Any]
    n_parameters: int
    stages: Sequence[Stage]
    n_articles: int
    n_words: int
    validation: Mapping[str, Any]
    losses: Sequence[tuple[int, float]]


def write_starter_card(folder: Path, facts: Facts) -> None:
    """Write README.md, and the picture of the training that it shows."""
    data = ModelCardData(
        license=_LICENSE,
        language="en",
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["condenser", "bert", "masked-lm"],
    )
    sections = [
        _about(facts),
        _architecture(facts),
        _USE,
        _results(facts),
        _text(facts),
        training_section(facts.stages),
        _limits(facts),
        f"## Citation\n\n{code_block(cite(facts.stages), 'bibtex')}",
    ]
    content = "\n\n".join(sections)
    (folder / CARD_FILE).write_text(str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{content}\n")))
    logs = {label: stage.log for label, stage in label_stages(facts.stages).items()}
    (folder / CURVES_FILE).write_bytes(draw_curves(logs))


def _about(facts: Facts) -> str:
    tokens, loss = facts.losses[-1]
    return f"""# {STARTER}

A small start for trying the package condenser, for tests and for demonstrations: a BERT of \
{facts.config["num_hidden_layers"]} layers of {facts.config["hidden_size"]}, with its masked-LM \
head, trained from random weights by plain masked language modelling on English Wikipedia. It saw \
{_millions(tokens)} million tokens; its validation loss is {loss:.3f} nats a masked token. It is \
not a general-purpose encoder, and not a retriever until it is fine-tuned."""


def _architecture(facts: Facts) -> str:
    config = facts.config
    rows = [
        ("model type", config["model_type"]),
        ("layers", str(config["num_hidden_layers"])),
        ("dimension", str(config["hidden_size"])),
        ("attention heads", str(config["num_attention_heads"])),
        ("inner dimension", f"{config['intermediate_size']:,}"),
        ("word pieces", f"{config['vocab_size']:,}, lower-cased"),
        ("positions", str(config["max_position_embeddings"])),
        ("parameters", f"{facts.n_parameters:,}, with the masked-LM head"),
        ("weights", "stored in float16, opened in float32; no pooler"),
    ]
    return f"## Architecture\n\n{table(['', ''], rows, numbers_from=2)}"


_USE = f"""## How to use

By its name, wherever condenser takes an encoder; CLS is the vector:

```bash
condenser pretrain pretrain/own-text --encoder {STARTER} --corpus my-documents.jsonl \\
    --output_dir runs/mine
condenser finetune finetune/contrastive --encoder {STARTER} --pooling cls \\
    --collection my-collection --output_dir runs/retriever
condenser evaluate {STARTER},pooling=cls my-collection --baseline bm25
```

```python
from modeling_condenser import condenser_from_encoder
from modeling_condenser.encoding.retriever import Retriever

model = condenser_from_encoder("{STARTER}")
vectors = Retriever("{STARTER}", pooling="cls").encode_queries(["what is the capital of Norway"])
```

With transformers, from its folder:

```python
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from modeling_condenser.hub.model_folder import resolve_encoder_name

folder = resolve_encoder_name("{STARTER}")
tokenizer = AutoTokenizer.from_pretrained(folder)
encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
language_model = AutoModelForMaskedLM.from_pretrained(folder)
```

With sentence-transformers, which would take the mean of the tokens if CLS were not named:

```python
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from modeling_condenser.hub.model_folder import resolve_encoder_name

folder = resolve_encoder_name("{STARTER}")
encoder = Transformer(folder, model_kwargs={{"add_pooling_layer": False}})
pooling = Pooling(encoder.get_embedding_dimension(), pooling_mode="cls")
model = SentenceTransformer(modules=[encoder, pooling], similarity_fn_name="dot")
```"""


def _results(facts: Facts) -> str:
    said = facts.validation
    rows = [
        (_millions(tokens), f"{loss:.3f}")
        for tokens, loss in spread(facts.losses, at_most=_MOST_ROWS)
    ]
    header = ["tokens seen (millions)", "validation loss (nats a masked token)"]
    return f"""## Evaluation results

Masked-LM loss on text that it was never trained on: {said["n_blocks"]:,} blocks of at most \
{said["max_length"]} tokens, drawn from {said["n_documents"]:,} articles; {said["n_masked"]:,} \
masked tokens, {said["mlm_probability"]:.0%} of each block in whole words; the same blocks and \
masks for each figure. The weights were in float32. How well it ranks was not measured.

{table(header, rows, numbers_from=0)}"""


def _text(facts: Facts) -> str:
    sources = " and ".join(
        f"[{name}](https://github.com/{name}/tree/{commit}) (commit {commit})"
        for name, commit in _SOURCES.items()
    )
    return f"""## Training text

English Wikipedia, {facts.n_articles:,} articles, {_millions(facts.n_words)} million words, from \
the repositories {sources}. The text is by Wikipedia's contributors, under CC BY-SA 3.0."""


def _limits(facts: Facts) -> str:
    return f"""## Limits and licence

- It is small and has seen little text: an encoder of usual size does better at everything.
- It knows English only, lower-cased, and at most {facts.config["max_position_embeddings"]} tokens.
- It was not trained to rank: without further training it finds little.
- It has the errors and prejudices of its training text.

Licence of the weights: CC BY-SA 3.0 (`{_LICENSE}`), as of the text that they were trained on."""


def _millions(n: int) -> str:
    return f"{n / 1e6:,.1f}"
