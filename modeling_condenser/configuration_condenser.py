"""Configuration of a Condenser: the encoder's own configuration, and that of the head.

Travels to the Hub with `modeling_condenser.py`.
"""

from difflib import get_close_matches
from operator import attrgetter
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, __version__
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

if not hasattr(PreTrainedConfig, "__post_init__"):  # else a KeyError would be the first sign
    raise ImportError(f"This is transformers {__version__}; a Condenser needs 5.4 or later.")

# The encoders that tests/backbones covers. CONTRIBUTING.md says how to add another, which must meet
# these conditions:
# - AutoModel and AutoModelForMaskedLM know it, and its tokens attend to both sides.
# - Its hidden states are the embeddings and the output of each layer, all of one width; the last is
#   its output, after its `final_norm` or `norm` if it has one.
# - Its layers are in a ModuleList (if nested, in the innermost). They are built from the config, or
#   from the config and their `layer_idx`; their first argument is the hidden states, on which no
#   other argument depends; they return hidden states, or a tuple that begins with them.
# - Its LM head reads only hidden states, and `_tied_weights_keys` names its output layer.
SUPPORTED_ENCODERS = tuple(
    "albert bert camembert deberta-v2 distilbert electra ernie eurobert gte jina_embeddings_v3 "
    "modernbert mpnet nomic_bert roberta xlm-roberta".split()
)

POOLINGS = ("cls", "mean")
SIMILARITIES = ("dot", "cosine")


class CondenserConfig(PreTrainedConfig):
    """How a Condenser is built on an encoder (Gao & Callan 2021, section 3.3).

    Args:
        encoder_config: configuration of the backbone, of any supported `model_type`, as an object
            or as the dictionary found in its `config.json`. Defaults to BERT base.
        n_head_layers: number of layers of the Condenser head, L^h in the paper; at least 1.
        skip_from: number of early layers, L^e: the head reads the output of this backbone layer.
            0 is the embeddings, `num_hidden_layers` means no skip. Defaults to half of the layers,
            the paper's split (6 of 12).
        late_mlm: whether the backbone's late output is trained with MLM as well (eq. 10).
        head_mlm_probability: None for a Condenser. A share of tokens makes the head a decoder in
            the style of RetroMAE (Xiao et al. 2022, section 3.2): beside the late CLS it reads the
            embeddings of the block masked a second time at this rate, and predicts those tokens.
            `skip_from` is then 0.
        pooling: what the dense vector of a text is: "cls", the late vector of its first token, as
            in the papers, or "mean", the mean of its late vectors, special tokens included.
        similarity: "dot" or "cosine", by which dense vectors are compared. A contrastive training
            sets it, and the export states it.

    Raises:
        ValueError: the encoder is not supported, or an argument is misspelt or out of range.

    Example:
        >>> from transformers import BertConfig
        >>> config = CondenserConfig(encoder_config=BertConfig(num_hidden_layers=4))
        >>> config.skip_from, config.n_head_layers, config.vocab_size
        (2, 2, 30522)
    """

    model_type = "condenser"
    sub_configs = {"encoder_config": AutoConfig}

    encoder_config: Any = None  # a dictionary or None until it is resolved, then a config
    n_head_layers: int = 2
    skip_from: int | None = None
    late_mlm: bool = True
    head_mlm_probability: float | None = None
    pooling: str = "cls"
    similarity: str = "dot"

    def __post_init__(self, **kwargs: Any) -> None:
        self.encoder_config = _as_config(self.encoder_config)
        check_encoder(self.encoder_config)
        n_layers, rate = self.encoder_config.num_hidden_layers, self.head_mlm_probability
        if self.skip_from is None:
            self.skip_from = n_layers // 2 if rate is None else 0
        for name in ("n_head_layers", "skip_from"):
            if type(value := getattr(self, name)) is not int:
                raise ValueError(f"{name} is {value!r}, expected a whole number.")
        if rate is not None and not (0.0 < rate < 1.0 and self.skip_from == 0):
            raise ValueError(
                f"head_mlm_probability is {rate} and skip_from is {self.skip_from}: the rate must "
                "lie between 0 and 1 (RetroMAE: 0.5), and the head then reads embeddings, so leave "
                "skip_from out."
            )
        for name, values in (("pooling", POOLINGS), ("similarity", SIMILARITIES)):
            if (value := getattr(self, name)) not in values:
                raise ValueError(f"{name} is {value!r}, expected {' or '.join(values)}.")
        if self.n_head_layers < 1:
            raise ValueError(
                f"n_head_layers is {self.n_head_layers}, but a Condenser head has at least one "
                "layer. For plain MLM without a head use CondenserForMaskedLM."
            )
        if not 0 <= self.skip_from <= n_layers:
            raise ValueError(
                f"skip_from is {self.skip_from}, but the backbone has {n_layers} layers: choose a "
                f"layer from 0 (the embeddings) to {n_layers} (no skip)."
            )
        fields = CondenserConfig.__annotations__
        for name in kwargs:  # transformers turns unknown ones into attributes
            is_misspelt = get_close_matches(name, fields, n=1, cutoff=0.8)
            if is_misspelt or isinstance(vars(CondenserConfig).get(name), property):
                raise ValueError(
                    f"CondenserConfig has no argument {name!r}. It has {', '.join(fields)}; the "
                    "backbone's arguments belong in encoder_config."
                )
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the content of a config.json.

        Raises:
            ValueError: it belongs to another kind of model, such as a plain encoder.
        """
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"This config.json belongs to a model of type {model_type!r}, not to a Condenser "
                "checkpoint. To start from an encoder use CondenserForPreTraining.from_encoder."
            )
        # Else the library would set these without a check.
        changes = {name: kwargs.pop(name) for name in cls.__annotations__.keys() & kwargs.keys()}
        if isinstance(part := changes.get("encoder_config"), dict):
            changes["encoder_config"] = {**(config_dict.get("encoder_config") or {}), **part}
        return super().from_dict({**config_dict, **changes}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json, without path and code of the original encoder."""
        content = super().to_dict()
        for name in ("_name_or_path", "auto_map"):
            content["encoder_config"].pop(name, None)
        return content

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """The backbone's configuration, in which transformers looks up the vocabulary size."""
        return self.encoder_config

    vocab_size = property(attrgetter("encoder_config.vocab_size"))
    hidden_size = property(attrgetter("encoder_config.hidden_size"))
    num_hidden_layers = property(attrgetter("encoder_config.num_hidden_layers"))
    tie_word_embeddings = property(attrgetter("encoder_config.tie_word_embeddings"))
    initializer_range = property(attrgetter("encoder_config.initializer_range"))


def check_encoder(config: PreTrainedConfig) -> None:
    """Raise ValueError if the configuration says that no Condenser fits an encoder."""
    kind = config.model_type
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        reason = (
            "it is a decoder, whose tokens attend only to those before them, but a Condenser needs "
            "an encoder that was trained by masking, such as BERT"
        )
    elif kind not in SUPPORTED_ENCODERS:
        reason = (
            f"it is not supported; supported: {', '.join(SUPPORTED_ENCODERS)}. To add it, see "
            "SUPPORTED_ENCODERS in configuration_condenser.py"
        )
    elif getattr(config, "is_decoder", False):
        reason = "is_decoder=True, but a Condenser attends to both sides: set is_decoder=False"
    elif not getattr(config, "legacy", True):
        reason = (
            "its LM head with legacy=False reads the encoder's embeddings: set legacy=True "
            "(config_changes={'legacy': True}), which starts a new LM head"
        )
    else:
        return
    raise ValueError(f"Cannot build a Condenser on a model of model_type {kind!r}: {reason}.")


def _as_config(encoder_config: dict | PreTrainedConfig | None) -> PreTrainedConfig:
    if isinstance(encoder_config, PreTrainedConfig):
        return encoder_config
    fields = {"model_type": "bert"} if encoder_config is None else dict(encoder_config)
    if "model_type" not in fields:
        raise ValueError(
            "encoder_config has no model_type: pass the whole content of the encoder's config.json "
            f"(it has the keys {sorted(fields)[:8]})."
        )
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


__all__ = ["POOLINGS", "SUPPORTED_ENCODERS", "CondenserConfig"]
