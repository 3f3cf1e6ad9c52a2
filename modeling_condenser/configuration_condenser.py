"""Configuration of a Condenser: the encoder's own configuration, and how the head sits on it.

One of the two files that travel to the Hub with a pre-training checkpoint (the other is
`modeling_condenser.py`), so it imports nothing but transformers and the standard library.
"""

from difflib import get_close_matches
from typing import Any

from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, PreTrainedConfig

# The encoders that tests/backbones proves. No code here is for one of them alone; another one is
# added by its model type here and by a row in tests/backbones/encoders.py, if it offers this:
# - AutoModel and AutoModelForMaskedLM know it, and each of its tokens attends to both sides.
# - Its hidden states are the embeddings and the output of each layer, all of one width; the last is
#   what it returns, after its `final_norm` if it has one.
# - Its layers lie in a ModuleList (where these are nested, in the innermost). They are built from
#   the config, or from the config and their `layer_idx`; called with the hidden states first, and
#   with nothing else that depends on them; and return them, or a tuple that begins with them.
# - Its LM head reads hidden states alone, and `_tied_weights_keys` names its output layer.
SUPPORTED_ENCODERS = (
    "albert",
    "bert",
    "camembert",
    "deberta-v2",
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "roberta",
    "xlm-roberta",
)
GLOBAL_ATTENTION = "full_attention"  # transformers' word for a layer that sees the whole block
_CONDENSER_FIELDS = (
    "encoder_config",
    "n_head_layers",
    "skip_from",
    "late_mlm",
    "head_mlm_probability",
)
# Standard fields that transformers itself reads from a config.json without declaring them.
_UNDECLARED_FIELDS = (
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "tokenizer_class",
    "torch_dtype",
)


class CondenserConfig(PreTrainedConfig):
    """How a Condenser is built on an encoder (Gao & Callan 2021, section 3.3).

    Args:
        encoder_config: configuration of the backbone, of any supported `model_type`, as an object
            or as the dictionary found in its `config.json`. Defaults to BERT base.
        n_head_layers: number of layers of the Condenser head, L^h in the paper; at least 1.
        skip_from: number L^e of early layers: the head reads the token representations that leave
            backbone layer `skip_from`. 0 is the embeddings, `num_hidden_layers` means no skip.
            Defaults to half of the backbone's layers, the paper's split (6 of 12).
        late_mlm: whether the backbone's late output is trained with MLM as well (eq. 10).
        head_mlm_probability: None for a Condenser. A share of tokens makes the head a decoder in
            the style of RetroMAE (Xiao et al. 2022, section 3.2): it reads, beside the late CLS,
            the embeddings of the block masked a second time at this rate, and predicts those
            tokens. `skip_from` is then 0.

    Raises:
        ValueError: an encoder that does not fit, head depth below 1, `skip_from` outside the
            backbone, `head_mlm_probability` outside (0, 1), or an unknown argument.

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

    def __post_init__(self, **kwargs: Any) -> None:
        self.encoder_config = _as_config(self.encoder_config)
        check_encoder(self.encoder_config)
        n_layers = self.encoder_config.num_hidden_layers
        if self.skip_from is None:
            self.skip_from = n_layers // 2 if self.head_mlm_probability is None else 0
        if self.head_mlm_probability is not None:
            self._check_second_masking(self.head_mlm_probability)
        if self.n_head_layers < 1:
            raise ValueError(
                f"n_head_layers is {self.n_head_layers}, but a Condenser head needs at least one "
                "layer. For plain MLM without a head use CondenserForMaskedLM."
            )
        if not 0 <= self.skip_from <= n_layers:
            raise ValueError(
                f"skip_from is {self.skip_from}, but the backbone has {n_layers} layers: choose a "
                f"layer from 0 (the embeddings) to {n_layers} (no skip)."
            )
        _refuse_unknown(kwargs)
        super().__post_init__(**kwargs)

    def _check_second_masking(self, rate: float) -> None:
        if not 0.0 < rate < 1.0:
            raise ValueError(
                f"head_mlm_probability is {rate}, but must lie between 0 and 1 (RetroMAE: 0.5), or "
                "be None for a Condenser head."
            )
        if self.skip_from != 0:
            raise ValueError(
                f"skip_from is {self.skip_from}, but with head_mlm_probability the head reads "
                "embeddings, not an early layer: leave skip_from out."
            )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the content of a config.json.

        Raises:
            ValueError: it belongs to another kind of model, such as the plain encoder itself.
        """
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"This config.json belongs to a model of type {model_type!r}, not to a Condenser "
                "checkpoint. To start from a plain encoder use "
                "condenser_from_encoder(name_or_path)."
            )
        # Libraries leave attributes of theirs in a saved config (use_cache, for one): kept as such.
        foreign = {name: value for name, value in config_dict.items() if not _is_known(name)}
        for name in foreign:
            if get_close_matches(name, _CONDENSER_FIELDS, n=1, cutoff=0.8):
                _refuse_unknown({name: foreign[name]})
        own = {name: value for name, value in config_dict.items() if name not in foreign}
        loaded = super().from_dict(own, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name, value in foreign.items():
            setattr(config, name, value)
        return loaded

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json: without the place that the encoder was loaded from."""
        content = super().to_dict()
        content["encoder_config"].pop("_name_or_path", None)
        return content

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """The backbone's configuration, where transformers keeps the vocabulary size."""
        return self.encoder_config

    @property
    def vocab_size(self) -> int:
        return self.encoder_config.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.encoder_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.encoder_config.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        return self.encoder_config.num_attention_heads

    @property
    def tie_word_embeddings(self) -> bool:
        return self.encoder_config.tie_word_embeddings

    @property
    def initializer_range(self) -> float:
        return self.encoder_config.initializer_range


def check_encoder(config: PreTrainedConfig) -> None:
    """Check that a Condenser can be built on an encoder, as far as its configuration says.

    Raises:
        ValueError: it cannot; the message says why.
    """
    reason = _why_not(config)
    if reason:
        raise ValueError(
            f"Cannot build a Condenser on an encoder of model_type {config.model_type!r}: {reason}."
        )


def _why_not(config: Any) -> str | None:
    if getattr(config, "vocab_size", None) is None:
        return "it has no vocabulary; a Condenser reads and predicts text"
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, whose encoder predicts no masked tokens by itself"
    if getattr(config, "is_decoder", False):
        return "is_decoder=True, but a Condenser attends to both sides: set is_decoder=False"
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return "it has no masked-LM class; decoders, whose tokens see only those before, have none"
    if config.model_type not in SUPPORTED_ENCODERS:
        return (
            f"it is not among the encoders that were proven, {', '.join(SUPPORTED_ENCODERS)}; "
            "what another one must offer stands at SUPPORTED_ENCODERS in configuration_condenser.py"
        )
    if config.num_hidden_layers < 1:
        return f"it has no layers to split (num_hidden_layers is {config.num_hidden_layers})"
    if getattr(config, "inner_group_num", 1) != 1:
        return (
            f"each of its layers is {config.inner_group_num} (inner_group_num), so that skip_from "
            "would not count layers; it must be 1"
        )
    if GLOBAL_ATTENTION not in (getattr(config, "layer_types", None) or [GLOBAL_ATTENTION]):
        return "none of its layers (layer_types) attends to a whole block, as the head must"
    if not getattr(config, "legacy", True):
        return (
            "its LM head with legacy=False is no layer, but reads the encoder's embeddings: set "
            "legacy=True (config_changes={'legacy': True}), with which a new LM head is started"
        )
    return None


def _as_config(encoder_config: dict | PreTrainedConfig | None) -> PreTrainedConfig:
    if encoder_config is None:
        return AutoConfig.for_model("bert")
    if isinstance(encoder_config, PreTrainedConfig):
        return encoder_config
    if "model_type" not in encoder_config:
        raise ValueError(
            "encoder_config has no model_type, so its kind is unknown: pass the whole content of "
            f"the encoder's config.json (came with the keys {sorted(encoder_config)[:8]})."
        )
    fields = dict(encoder_config)
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def _is_known(name: str) -> bool:
    standard = hasattr(PreTrainedConfig, name) or name in PreTrainedConfig().to_dict()
    return standard or name.startswith("_") or name in (*_CONDENSER_FIELDS, *_UNDECLARED_FIELDS)


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Raise on what transformers would silently turn into an attribute."""
    for name in kwargs:
        if _is_known(name):
            continue
        nearest = get_close_matches(name, _CONDENSER_FIELDS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"CondenserConfig has no argument {name!r}.{hint} Its own are "
            f"{', '.join(_CONDENSER_FIELDS)}; the backbone's belong in encoder_config."
        )


__all__ = ["SUPPORTED_ENCODERS", "CondenserConfig"]
