"""The Condenser: an encoder, its masked-LM head, and a short head that reads the late CLS vector.

One of the two files that travel to the Hub with a pre-training checkpoint (the other is
`configuration_condenser.py`), so it imports nothing but torch and transformers.

    [cls_early ; early] = early layers ( embed(x) )                        eq. (6)
    [cls_late  ; late ] = late layers  ( [cls_early ; early] )             eq. (7)
    [cls_cd    ; cd   ] = head layers  ( [cls_late  ; early] )             eq. (8)
    loss = MLM(cd) + MLM(late)                                             eqs. (9)-(11)

Equations are those of Gao & Callan (2021), "Condenser: a Pre-training Architecture for Dense
Retrieval". Shapes: B blocks in a batch, T tokens in a block, H hidden size, V vocabulary size,
M masked tokens in the batch.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, can_return_tuple, logging

from .configuration_condenser import GLOBAL_ATTENTION, CondenserConfig, check_encoder

logger = logging.get_logger(__name__)

IGNORE_INDEX = -100
# Which class each Auto class opens a checkpoint with.
AUTO_MAP = {
    "AutoConfig": "configuration_condenser.CondenserConfig",
    "AutoModel": "modeling_condenser.CondenserModel",
    "AutoModelForMaskedLM": "modeling_condenser.CondenserForMaskedLM",
    "AutoModelForPreTraining": "modeling_condenser.CondenserForPreTraining",
}


@dataclass
class CondenserMaskedLMOutput(ModelOutput):
    """Output of `CondenserForMaskedLM`.

    Attributes:
        loss: () MLM loss of the backbone's late output, eq. (10); with `labels` only.
        late_loss: () the same, under the name it has in a Condenser's output.
        logits: (B, T, V) late predictions; without `labels` only, because training projects
            masked positions alone.
        hidden_states: the backbone's, each (B, T, H), where asked for.
        attentions: the backbone's, each (B, heads, T, T), where asked for.
    """

    loss: torch.Tensor | None = None
    late_loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class CondenserForPreTrainingOutput(ModelOutput):
    """Output of `CondenserForPreTraining`.

    Attributes:
        loss: () the sum of the two losses, eq. (11); with `labels` only.
        head_loss: () MLM loss of the Condenser head, eq. (9).
        late_loss: () MLM loss of the backbone's late output, eq. (10); None without `late_mlm`.
        head_logits: (B, T, V) predictions of the Condenser head; without `labels` only.
        logits: (B, T, V) late predictions of the backbone; without `labels` only.
        hidden_states: the backbone's, each (B, T, H), where asked for.
        attentions: the backbone's, each (B, heads, T, T), where asked for.
    """

    loss: torch.Tensor | None = None
    head_loss: torch.Tensor | None = None
    late_loss: torch.Tensor | None = None
    head_logits: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class CondenserPreTrainedModel(PreTrainedModel):
    """What the Condenser's models share: one checkpoint, the encoder's initialisation."""

    config_class = CondenserConfig
    base_model_prefix = "condenser"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the modules beside the encoder as the encoder initialises its own."""
        backbone: Any = self.base_model
        backbone.encoder._init_weights(module)

    @classmethod
    def is_custom_code(cls) -> bool:
        """No: of custom code the library leaves out modules without weights of their own.

        Some encoders initialise what such modules hold (ModernBERT). The answer matters to nothing
        else that happens here: `_init_weights` spares what is loaded, and no module is shared.
        """
        return False

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save with the two code files, so that every Auto class opens the folder anywhere."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)


class CondenserModel(CondenserPreTrainedModel):
    """The encoder's view of a checkpoint: what fine-tuning and retrieval use.

    Takes and returns just what the encoder itself takes and returns; the CLS vector of
    `last_hidden_state` is the dense representation.
    """

    # The LM head and the Condenser head of the same checkpoint are no part of this view.
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^head[._]"]

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        check_encoder(config.encoder_config)
        self.encoder = AutoModel.from_config(config.encoder_config)
        # One object, so that a later change (attention back-end, vocabulary size) reaches both.
        self.encoder.config = config.encoder_config
        self.post_init()

    @property
    def layers(self) -> list[nn.Module]:
        """The backbone's layers in order; fewer than `num_hidden_layers` where they are shared."""
        lists = [m for m in self.encoder.modules() if isinstance(m, nn.ModuleList)]
        members = [member for modules in lists for member in modules]
        return [m for m in members if not any(inner in lists for inner in m.modules())]

    @property
    def global_layer(self) -> nn.Module:
        """The last layer that attends to the whole block, which the head's layers are like.

        The last of all, but where local attention alternates with global: a layer that sees a
        window only could not carry the CLS vector to the tokens far from it.
        """
        return [
            layer
            for layer in self.layers
            if getattr(layer, "attention_type", GLOBAL_ATTENTION) == GLOBAL_ATTENTION
        ][-1]

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def forward(self, *args: Any, **kwargs: Any) -> ModelOutput:
        """The encoder's forward pass, with its arguments and its output."""
        return self.encoder(*args, **kwargs)


class CondenserForMaskedLM(CondenserPreTrainedModel):
    """The backbone with its own LM head: a plain masked language model.

    Trains plain MLM, the control that a Condenser is compared with, and reads the late predictions
    of a Condenser checkpoint. Unlike the library's masked-LM classes it projects masked positions
    only, and normalises by `num_items_in_batch`, so that gradient accumulation is exact.
    """

    _keys_to_ignore_on_load_unexpected = [r"^head[._]"]

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        self.condenser = CondenserModel(config)
        self.lm_head, self._tied_weights_keys = _build_lm_head(config.encoder_config)
        self.post_init()
        self._freeze_pooler()

    def _freeze_pooler(self) -> None:
        """Take the encoder's pooler out of training: it is in no loss, and DDP must know that."""
        pooler = getattr(self.condenser.encoder, "pooler", None)
        if pooler is not None:
            pooler.requires_grad_(False)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a Condenser checkpoint: as `PreTrainedModel.from_pretrained`."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model._freeze_pooler()
        return loaded

    @classmethod
    def from_encoder(
        cls, name_or_path: str, *, config_changes: dict[str, Any] | None = None, **kwargs: Any
    ) -> "CondenserForMaskedLM":
        """Warm-start backbone and LM head from an encoder (section 3.4).

        Args:
            name_or_path: Hub name or folder of a supported encoder, or of a Condenser checkpoint,
                whose backbone and LM head are taken.
            config_changes: attributes of the encoder's configuration to set before it is loaded,
                such as dropout probabilities.
            **kwargs: for the `from_pretrained` calls (`revision`, `token`, `cache_dir`, ...).

        Raises:
            ValueError: the encoder is of no supported kind, or its weights are incomplete.
        """
        parts = _load_encoder(name_or_path, config_changes or {}, **kwargs)
        return cls._from_parts(parts, CondenserConfig(encoder_config=parts.encoder.config))

    @classmethod
    def _from_parts(cls, parts: "_EncoderParts", config: CondenserConfig) -> Any:
        model = cls(config)
        model.condenser.encoder.load_state_dict(parts.encoder.state_dict())
        if parts.lm_head is not None:
            model.lm_head.load_state_dict(parts.lm_head.state_dict())
        model.tie_weights()
        return model

    def get_output_embeddings(self) -> nn.Module:
        return self.get_submodule(self._output_embeddings_name)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        name = self._output_embeddings_name
        self.set_submodule(name, new_embeddings)
        bias = self._tied_weights_keys.get(f"{name}.bias")
        if bias is not None:
            owner, _, attribute = bias.rpartition(".")
            setattr(self.get_submodule(owner), attribute, new_embeddings.bias)

    @property
    def _output_embeddings_name(self) -> str:
        tied = [key for key in self._tied_weights_keys if key.endswith(".weight")]
        return tied[0].removesuffix(".weight")

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> CondenserMaskedLMOutput:
        """Predict masked tokens from the backbone's late output.

        Args:
            input_ids: (B, T) int64.
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            labels: (B, T) int64, the original token at masked positions and -100 elsewhere.
            num_items_in_batch: masked tokens of the whole batch that one optimiser step sees,
                across micro-batches and devices; those of this call when not given.
            **kwargs: for the encoder.
        """
        late = self.condenser(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        loss = late_loss = logits = None
        if labels is None:
            logits = self.lm_head(late.last_hidden_state)  # (B, T, V)
        else:
            masked = _MaskedPositions.of(labels, num_items_in_batch)
            late_loss = masked.mlm_loss(self.lm_head, late.last_hidden_state)
            loss = late_loss.clone()  # the Trainer scales it in place
        return CondenserMaskedLMOutput(
            loss=loss,
            late_loss=late_loss,
            logits=logits,
            hidden_states=late.hidden_states if kwargs.get("output_hidden_states") else None,
            attentions=late.attentions,
        )


class CondenserForPreTraining(CondenserForMaskedLM):
    """The whole Condenser: backbone, LM head and Condenser head, in one checkpoint."""

    _keys_to_ignore_on_load_unexpected = []

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        like: Any = self.condenser.global_layer
        built_from = [config.encoder_config, getattr(like, "layer_idx", None)]
        self.head = nn.ModuleList(
            type(like)(*(argument for argument in built_from if argument is not None))
            for _ in range(config.n_head_layers)
        )
        # The LM head of such an encoder was trained behind a norm, and must find one here too.
        norm: Any = getattr(self.condenser.encoder, "final_norm", None)
        self.head_norm = nn.Identity() if norm is None else _new_norm(norm)
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        name_or_path: str,
        *,
        n_head_layers: int = 2,
        skip_from: int | None = None,
        late_mlm: bool = True,
        config_changes: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "CondenserForPreTraining":
        """Warm-start backbone and LM head from an encoder, with a new Condenser head (section 3.4).

        The head's weights are drawn from torch's generator: call `transformers.set_seed` first.

        Args:
            name_or_path: Hub name or folder of a supported encoder, or of a Condenser checkpoint,
                whose backbone and LM head are taken and whose head, if any, is left behind.
            n_head_layers: layers of the Condenser head.
            skip_from: backbone layer whose tokens the head reads; half of the layers by default.
            late_mlm: whether to train the backbone's late output with MLM too, eq. (10).
            config_changes: attributes of the encoder's configuration to set before it is loaded.
            **kwargs: for the `from_pretrained` calls (`revision`, `token`, `cache_dir`, ...).

        Raises:
            ValueError: the encoder is of no supported kind, its weights are incomplete, or
                `n_head_layers` or `skip_from` is out of range.
        """
        parts = _load_encoder(name_or_path, config_changes or {}, **kwargs)
        config = CondenserConfig(
            encoder_config=parts.encoder.config,
            n_head_layers=n_head_layers,
            skip_from=skip_from,
            late_mlm=late_mlm,
        )
        return cls._from_parts(parts, config)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, new_head: bool = False, **kwargs: Any
    ) -> Any:
        """Open a pre-training checkpoint, whole.

        Args:
            pretrained_model_name_or_path: Hub name or folder of a Condenser checkpoint.
            *args: as for `PreTrainedModel.from_pretrained`.
            new_head: accept a checkpoint without a Condenser head and start a new one.
            **kwargs: as for `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: weights are missing, or there are weights that the model has no place for.
                A random head can corrupt the backbone (section 3.4), so none is made silently.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        with _without_load_reports():
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        missing = {key for key in info["missing_keys"] if not (new_head and _is_of_head(key))}
        _refuse_incomplete(pretrained_model_name_or_path, missing, set(info["unexpected_keys"]))
        return (model, info) if wants_info else model

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Run the backbone, eqs. (6) and (7).

        Returns:
            [cls_late ; late] and [cls_early ; early], each (B, T, H), and the encoder's output,
            with the `layer_call` that `run_head` repeats.
        """
        # All of them: what a single index means differs between versions of the library. They are
        # kept for the backward pass anyway.
        kwargs["output_hidden_states"] = True
        with _recorded_calls(self.condenser.global_layer) as calls:
            output = self.condenser(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        output.layer_call = calls[-1]
        return output.last_hidden_state, output.hidden_states[self.config.skip_from], output

    def run_head(
        self,
        cls_late: torch.Tensor,
        early: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        layer_call: "LayerCall | None" = None,
    ) -> torch.Tensor:
        """Run the Condenser head on a short circuit from the early layers, eq. (8).

        Args:
            cls_late: (B, 1, H) late CLS vectors.
            early: (B, T, H) [cls_early ; early]; its first position is replaced.
            attention_mask: (B, T), 1 for tokens and 0 for padding; read without `layer_call` only.
            layer_call: of the output of the `encode` that gave `early`. Without it the backbone
                is run once more, to see how it calls its layers for such a mask.

        Returns:
            [cls_cd ; cd], (B, T, H).
        """
        if layer_call is None:
            embeddings: Any = self.get_input_embeddings()
            blank = early.new_zeros(*early.shape[:2], embeddings.embedding_dim)
            with _recorded_calls(self.condenser.global_layer) as calls:
                self.condenser(inputs_embeds=blank, attention_mask=attention_mask)
            layer_call = calls[-1]
        hidden = torch.cat([cls_late, early[:, 1:]], dim=1)  # (B, T, H)
        for layer in self.head:
            hidden = layer_call.repeat(layer, hidden)
        return self.head_norm(hidden)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> CondenserForPreTrainingOutput:
        """Predict masked tokens from the Condenser head, and from the backbone's late output.

        Args:
            input_ids: (B, T) int64, with CLS at position 0.
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            labels: (B, T) int64, the original token at masked positions and -100 elsewhere.
            num_items_in_batch: masked tokens of the whole batch that one optimiser step sees,
                across micro-batches and devices; those of this call when not given. Both losses
                are divided by it.
            **kwargs: for the encoder.
        """
        late, early, output = self.encode(input_ids, attention_mask, **kwargs)  # eqs. (6), (7)
        cd = self.run_head(late[:, :1], early, layer_call=output.layer_call)  # eq. (8)

        loss = head_loss = late_loss = head_logits = logits = None
        if labels is None:
            head_logits, logits = self.lm_head(cd), self.lm_head(late)  # (B, T, V)
        else:
            masked = _MaskedPositions.of(labels, num_items_in_batch)
            head_loss = masked.mlm_loss(self.lm_head, cd)  # eq. (9)
            loss = head_loss.clone()  # the Trainer scales it in place
            if self.config.late_mlm:
                late_loss = masked.mlm_loss(self.lm_head, late)  # eq. (10)
                loss = head_loss + late_loss  # eq. (11)

        return CondenserForPreTrainingOutput(
            loss=loss,
            head_loss=head_loss,
            late_loss=late_loss,
            head_logits=head_logits,
            logits=logits,
            hidden_states=output.hidden_states if kwargs.get("output_hidden_states") else None,
            attentions=output.attentions,
        )


@dataclass(frozen=True)
class LayerCall:
    """What a backbone layer was called with beside hidden states: masks, positions, biases.

    Repeating it is how head layers of any architecture get what such layers need, and the gradient
    of what they share with the backbone (MPNet's and DeBERTa's tables of relative positions).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def repeat(self, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """Call another layer of the same class so: (B, T, H) to (B, T, H)."""
        result = layer(hidden, *self.args, **self.kwargs)
        return result[0] if isinstance(result, tuple) else result


@contextmanager
def _recorded_calls(layer: nn.Module) -> Iterator[list[LayerCall]]:
    """Record how a layer is called meanwhile; shared layers are called several times."""
    calls: list[LayerCall] = []

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(LayerCall(args[1:], kwargs))

    hook = layer.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


def _new_norm(norm: Any) -> nn.Module:
    return type(norm)(norm.normalized_shape, eps=norm.eps, bias=norm.bias is not None)


@dataclass(frozen=True)
class _MaskedPositions:
    """Where a batch's masked tokens are, what they were, and what their losses are divided by.

    Attributes:
        index: (M,) int64 positions in the flattened (B * T) batch.
        targets: (M,) int64 original tokens.
        n_items: masked tokens that the loss is averaged over.
    """

    index: torch.Tensor
    targets: torch.Tensor
    n_items: torch.Tensor | int

    @classmethod
    def of(
        cls, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> "_MaskedPositions":
        flat = labels.reshape(-1)
        index = (flat != IGNORE_INDEX).nonzero().squeeze(1)
        n_items = max(len(index), 1) if num_items_in_batch is None else num_items_in_batch
        if isinstance(n_items, torch.Tensor):
            n_items = n_items.to(labels.device).clamp(min=1)
        return cls(index, flat[index], n_items)

    def mlm_loss(self, lm_head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of (B, T, H) hidden states at the masked positions: a scalar.

        Only these are projected to the vocabulary: the other 85 % have no part in the loss.
        """
        logits = lm_head(hidden.flatten(0, 1).index_select(0, self.index))  # (M, V)
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()  # a sum of exponentials needs the precision
        return F.cross_entropy(logits, self.targets, reduction="sum") / self.n_items


@dataclass(frozen=True)
class _EncoderParts:
    """A loaded encoder, and its LM head where its checkpoint has one."""

    encoder: Any
    lm_head: nn.Module | None


@contextmanager
def _without_load_reports() -> Iterator[None]:
    """Silence the library's tables of missing and unexpected keys, which are checked here."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _load_encoder(name_or_path: str, config_changes: dict, **kwargs: Any) -> _EncoderParts:
    """Load backbone and LM head from an encoder or from a Condenser checkpoint."""
    config = AutoConfig.from_pretrained(name_or_path, **kwargs)
    if config.model_type == CondenserConfig.model_type:
        _change(config.encoder_config, config_changes)
        with _without_load_reports():
            model, info = CondenserForMaskedLM.from_pretrained(
                name_or_path, config=config, output_loading_info=True, dtype=torch.float32, **kwargs
            )
        _refuse_incomplete(name_or_path, set(info["missing_keys"]), set())
        return _EncoderParts(model.condenser.encoder, model.lm_head)

    _change(config, config_changes)
    check_encoder(config)
    with _without_load_reports():
        encoder, info = AutoModel.from_pretrained(
            name_or_path, config=config, output_loading_info=True, dtype=torch.float32, **kwargs
        )
    missing = set(info["missing_keys"])
    pooler_missing = {key for key in missing if key.startswith("pooler.")}
    _refuse_incomplete(name_or_path, missing - pooler_missing, set())
    if pooler_missing:
        _make_pooler_plain(encoder.pooler)
    return _EncoderParts(encoder, _load_lm_head(name_or_path, config, **kwargs))


def _change(config: Any, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if not hasattr(config, name):  # the library would keep it, and nothing would read it
            raise ValueError(
                f"config_changes names {name!r}, which the configuration of a {config.model_type} "
                "encoder does not have: look up what it is called there (dropout is "
                "hidden_dropout_prob in BERT, dropout in DistilBERT, mlp_dropout in ModernBERT)."
            )
        setattr(config, name, value)


def _load_lm_head(name_or_path: str, config: Any, **kwargs: Any) -> nn.Module | None:
    with _without_load_reports():
        masked_lm, info = AutoModelForMaskedLM.from_pretrained(
            name_or_path, config=config, output_loading_info=True, dtype=torch.float32, **kwargs
        )
    of_encoder = f"{masked_lm.base_model_prefix}."
    if any(not key.startswith(of_encoder) for key in info["missing_keys"]):
        logger.warning(
            f"{name_or_path} has no LM head, so a new one is started, tied to its embeddings. "
            "An encoder saved with its masked-LM head is the better start."
        )
        return None
    return _take_lm_head(masked_lm)[0]


def _make_pooler_plain(pooler: nn.Module) -> None:
    """Make a pooler that no checkpoint has trained the identity: tanh(CLS), not random noise."""
    [linear] = [module for module in pooler.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        linear.weight.copy_(torch.eye(linear.in_features))
        linear.bias.zero_()


class _GivenHiddenStates(nn.Module):
    """Stands where a masked-LM class has its encoder, and returns what it is given."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class _LMHead(nn.Module):
    """A masked-LM class without its encoder: hidden states (..., H) in, logits (..., V) out.

    For the classes whose LM head is several modules, which only their own forward pass joins.
    """

    def __init__(self, masked_lm: PreTrainedModel):
        super().__init__()
        setattr(masked_lm, masked_lm.base_model_prefix, _GivenHiddenStates())
        # The ties are the whole model's, under its names.
        masked_lm._tied_weights_keys = masked_lm.all_tied_weights_keys = {}
        self.masked_lm = masked_lm

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.masked_lm(inputs_embeds=hidden).logits


def _take_lm_head(masked_lm: PreTrainedModel) -> tuple[nn.Module, dict[str, str]]:
    """The LM head of a masked LM, and how it is tied in a model that has it as `lm_head`."""
    encoder = f"{masked_lm.base_model_prefix}."
    tied = dict(masked_lm._tied_weights_keys or {})
    names = [name for name, _ in masked_lm.named_children() if f"{name}." != encoder]
    if len(names) == 1:
        lm_head, theirs, ours = getattr(masked_lm, names[0]), f"{names[0]}.", "lm_head."
    else:
        lm_head, theirs, ours = _LMHead(masked_lm), "", "lm_head.masked_lm."

    def renamed(key: str) -> str:
        if key.startswith(encoder):
            return "condenser.encoder." + key.removeprefix(encoder)
        return ours + key.removeprefix(theirs)

    return lm_head, {renamed(target): renamed(source) for target, source in tied.items()}


def _build_lm_head(encoder_config: Any) -> tuple[nn.Module, dict[str, str]]:
    """The LM head of the encoder's own masked-LM class, new, and how its weights are tied."""
    with torch.device("meta"):  # for the sake of its encoder, which is not needed
        masked_lm = AutoModelForMaskedLM.from_config(copy.deepcopy(encoder_config))
    masked_lm.config = encoder_config
    lm_head, tied = _take_lm_head(masked_lm)
    lm_head.to_empty(device=torch.get_default_device())
    for module in lm_head.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return lm_head, tied


def _is_of_head(key: str) -> bool:
    return key.startswith(("head.", "head_norm."))


def _refuse_incomplete(name_or_path: Any, missing: set[str], unexpected: set[str]) -> None:
    if missing and all(map(_is_of_head, missing)):
        raise ValueError(
            f"{name_or_path} has no Condenser head ({len(missing)} weights are missing, such as "
            f"{min(missing)}). Training from a random head can corrupt the backbone: continue from "
            "a checkpoint that has its head, or pass new_head=True to start a new one knowingly "
            "(from_encoder does the same for a plain encoder)."
        )
    if missing or unexpected:
        raise ValueError(
            f"{name_or_path} does not fit the model: {len(missing)} weights are missing "
            f"{sorted(missing)[:3]} and {len(unexpected)} have no place {sorted(unexpected)[:3]}. "
            "A plain encoder is opened with from_encoder; otherwise the checkpoint is damaged or "
            "its config.json belongs to another model."
        )


CondenserModel.register_for_auto_class("AutoModel")
CondenserForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
CondenserForPreTraining.register_for_auto_class("AutoModelForPreTraining")
CondenserConfig.register_for_auto_class()

__all__ = [
    "CondenserConfig",
    "CondenserForMaskedLM",
    "CondenserForPreTraining",
    "CondenserForPreTrainingOutput",
    "CondenserMaskedLMOutput",
    "CondenserModel",
]
