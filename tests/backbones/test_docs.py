"""The table of encoders in docs/pretraining.md, made from the encoders that these tests prove."""

import re
from pathlib import Path

from tokenizers import models

from modeling_condenser import CondenserConfig, CondenserForPreTraining
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from tests.backbones.encoders import BACKBONES, Backbone

PAGE = Path(__file__).parents[2] / "docs" / "pretraining.md"
TOKENS = {
    models.WordPiece: "WordPiece",
    models.BPE: "byte-level BPE",
    models.Unigram: "SentencePiece",
}
MARKED = re.compile(r"<!-- encoders -->\n(.*?)\n<!-- /encoders -->", re.DOTALL)


def make_table(texts: list[str]) -> str:
    header = "| encoder | `model_type` | tokens | positions | sdpa | gradient checkpointing |"
    rows = [header, "| --- | --- | --- | --- | --- | --- |"]
    rows += [describe(backbone, texts) for backbone in BACKBONES.values()]
    return "\n".join(rows)


def describe(backbone: Backbone, texts: list[str]) -> str:
    """A row, from what the model is found to be made of."""
    model = CondenserForPreTraining(CondenserConfig(encoder_config=backbone.config()))
    encoder = model.condenser.encoder
    names = {name.rpartition(".")[2] for name, _ in encoder.named_modules()}
    kinds = {
        "position_embeddings": "absolute",
        "relative_attention_bias": "relative",
        "rel_embeddings": "relative",
        "rotary_emb": "rotary",
    }
    positions = " and ".join(dict.fromkeys(kind for name, kind in kinds.items() if name in names))
    cells = [
        backbone.title,
        f"`{encoder.config.model_type}`",
        TOKENS[type(backbone.tokenizer(texts).backend_tokenizer.model)],
        positions,
        "yes" if encoder._supports_sdpa else "no",
        "yes" if encoder.supports_gradient_checkpointing else "no",
    ]
    return f"| {' | '.join(cells)} |"


def test_the_proven_encoders_are_those_that_are_accepted() -> None:
    proven = {backbone.config_class.model_type for backbone in BACKBONES.values()}
    assert sorted(proven) == list(SUPPORTED_ENCODERS)


def test_the_docs_list_the_encoders_that_were_proven(texts: list[str]) -> None:
    found = MARKED.search(PAGE.read_text(encoding="utf-8"))
    assert found, "docs/pretraining.md has no <!-- encoders --> ... <!-- /encoders -->"
    assert found[1].strip() == make_table(texts), f"expected:\n{make_table(texts)}"
