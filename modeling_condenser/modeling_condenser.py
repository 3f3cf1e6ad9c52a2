"""The Condenser: an encoder, its masked-LM head, and a short head that reads the dense vector.

    [cls_early ; early] = early layers ( embed(x) )                        eq. (6)
    [cls_late  ; late ] = late layers  ( [cls_early ; early] )             eq. (7)
    [cls_cd    ; cd   ] = head layers  ( [cls_late  ; early] )             eq. (8)
    loss = MLM(cd) + MLM(late) (+ bow_weight * BoW(cls_late))              eqs. (9)-(11)

Equations are those of Gao & Callan (2021), "Condenser: a Pre-training Architecture for Dense
Retrieval". BoW is bag-of-words prediction: the CLS vector predicts the distinct tokens of its block
through the LM head (Ma et al. 2024, "Drop your Decoder", arXiv 2401.11248).

With `pooling="mean"` the dense vector of a block is not CLS but the mean of [cls_late ; late]. It
takes the place of cls_late in eq. (8) and in BoW, and is called so below. This is our
generalisation, for encoders that are used with mean pooling; the papers have CLS only.

Shapes: B blocks in a batch, T tokens in a block, H hidden size, V vocabulary size.

A packed batch holds all blocks in one row, (1, N), without padding. `cu_seq_lens_q`, (B + 1,), says
where each block begins and the last ends, as for flash attention in transformers; `packing.py`
describes the others of its fields.

This file and those that it imports travel to the Hub with a pre-training checkpoint, so they import
only torch and transformers.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_condenser import CondenserConfig
from .encoder_files import find_tokenizer, write_encoder, write_modules
from .encoder_parts import (
    HEAD_WEIGHTS,
    LayerCall,
    LayerRecorder,
    build_final_norm,
    build_like,
    find_layers,
    freeze_pooler,
    n_positions,
    pool,
    refuse_incomplete,
    replace_cls,
)
from .lm_head import build_lm_head
from .losses import IGNORE_INDEX, MaskedTokens, bag_of_words_loss, mlm_losses

AUTO_MAP = {
    "AutoConfig": "configuration_condenser.CondenserConfig",
    "AutoModel": "modeling_condenser.CondenserModel",
    "AutoModelForMaskedLM": "modeling_condenser.CondenserForMaskedLM",
    "AutoModelForPreTraining": "modeling_condenser.CondenserForPreTraining",
}


@dataclass
class CondenserForPreTrainingOutput(ModelOutput):
    """Output of `CondenserForPreTraining`, and of `CondenserForMaskedLM`, which has no head.

    Attributes:
        loss: () the sum of the losses, eq. (11); with `labels` only, like each loss.
        head_loss: () MLM loss of the Condenser head, eq. (9).
        late_loss: () MLM loss of the backbone's late output, eq. (10); None without `late_mlm`.
        bow_loss: () unweighted bag-of-words loss of the vectors; with `bow_targets` only.
        head_logits: (B, T, V) predictions of the Condenser head; without `labels` only.
        logits: (B, T, V) predictions of the backbone's late output; without `labels` only.
        hidden_states: of the backbone, each (B, T, H), on request; likewise `attentions`.
        cls_late: (B, H) the dense vectors of the blocks.
    """

    loss: torch.Tensor | None = None
    head_loss: torch.Tensor | None = None
    late_loss: torch.Tensor | None = None
    bow_loss: torch.Tensor | None = None
    head_logits: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cls_late: torch.Tensor | None = None


class CondenserPreTrainedModel(PreTrainedModel):
    """Base class: one checkpoint for all models, and the encoder's initialisation.

    Attributes:
        trained_tokenizer: that of the trainer; None before a training.
        opened_with: which repository `from_pretrained` was told to open, beside its name.
    """

    trained_tokenizer: Any = None
    opened_with: Mapping[str, Any] = {}
    config_class = CondenserConfig
    base_model_prefix = "condenser"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def _init_weights(self, module: nn.Module) -> None:
        backbone: Any = self.base_model
        backbone.encoder._init_weights(module)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Also initialise modules without weights of their own, which the library skips here."""
        new = [m for m in self.modules() if not getattr(m, "_is_hf_initialized", False)]
        super().initialize_weights()  # ModernBERT initialises its layers through such modules
        for module in reversed(new):
            if not any(True for _ in module.parameters(recurse=False)):
                self._init_weights(module)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Open a checkpoint; its tokenizer will be that of the same revision and subfolder."""
        opened: Any = super().from_pretrained(*args, **kwargs)
        model = opened[0] if isinstance(opened, tuple) else opened
        # A token must not be saved.
        names = ("revision", "subfolder", "cache_dir", "local_files_only")
        model.opened_with = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return opened

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights, configuration and the code that every Auto class needs to open them."""
        if kwargs.get("push_to_hub"):  # the modules below would not be sent
            raise ValueError(
                "save_pretrained with push_to_hub would leave files out: save first, and use "
                "`condenser push` or model.push_to_hub(NAME)."
            )
        # The original names are those of other code, which a resumed training does not read.
        kwargs.setdefault("save_original_format", False)
        config = self.config
        config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            contract = {"pooling": config.pooling, "similarity": config.similarity}
            write_modules(Path(save_directory), config.hidden_size, contract)

    def save_encoder(
        self, folder: str | Path, *, tokenizer: Any = None, contract: dict[str, Any] | None = None
    ) -> Path:
        """Save the backbone as a plain encoder, which opens without remote code.

        Of several processes, the first one writes.

        Args:
            folder: for weights (hidden states bit-identical to the backbone's), tokenizer,
                sentence-transformers' modules and the encoding contract.
            tokenizer: by default that of the training, or of the checkpoint that the model was
                loaded from.
            contract: fields of the package's `EncodingContract`, which replace those of the model's
                configuration (pooling, similarity) and the longest sequence that tokenizer and
                positions allow.
        """
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_rank():
            return Path(folder)
        base: Any = self.base_model
        # Copies, because saving changes them.
        encoder, tokenizer = copy.deepcopy((base.encoder, tokenizer or find_tokenizer(self)))
        encoder.config._name_or_path = ""  # it may be a folder of this machine
        limit = tokenizer.model_max_length
        longest = min(limit, n_positions(encoder) or limit)
        default = {"query_max_length": longest, "passage_max_length": longest}
        default |= {"pooling": self.config.pooling, "similarity": self.config.similarity}
        write_encoder(Path(folder), encoder, tokenizer, {**default, **(contract or {})})
        return Path(folder)


class CondenserModel(CondenserPreTrainedModel):
    """The encoder of a checkpoint; the dense vector of a text is pooled as its config says."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^head[._]"]

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        # In the type in which the other parts are made, not that of the encoder's repository.
        dtype = torch.get_default_dtype()
        self.encoder = AutoModel.from_config(config.encoder_config, dtype=dtype)
        # One object, so that a later change (attention back-end, vocabulary size) reaches both.
        self.encoder.config = config.encoder_config
        self.post_init()

    @property
    def layers(self) -> list[nn.Module]:
        """The backbone's layers in order; fewer than `num_hidden_layers` where they are shared."""
        return find_layers(self.encoder)

    @property
    def global_layer(self) -> nn.Module:
        """The last layer that attends to the whole block; the head's layers are of its class."""
        kinds = ((layer, getattr(layer, "attention_type", None)) for layer in reversed(self.layers))
        return next(layer for layer, kind in kinds if kind in (None, "full_attention"))

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        # sentence-transformers reads the names of the outputs from the annotation.
        return self.encoder(*args, **kwargs)


class CondenserForMaskedLM(CondenserPreTrainedModel):
    """The backbone with its own LM head: plain masked language modelling.

    Unlike the library's masked-LM classes it projects masked positions only, and divides its loss
    by `num_items_in_batch`, so that gradient accumulation is exact.
    """

    _keys_to_ignore_on_load_unexpected = [r"^head[._]"]
    _has_head = False
    run_head: Any  # a method of `CondenserForPreTraining`
    # `packing.use_packing` sets it: a function of the masked tokens' rows in a packed batch and of
    # `cu_seq_lens_q`, that returns the rows that the losses need (`packing.SelectedRows`). The last
    # layers compute only these.
    select_rows: Any = None

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        self.condenser = CondenserModel(config)
        self.recorder = LayerRecorder(self.condenser.layers, self.condenser.global_layer)
        self.lm_head, self._tied_weights_keys = build_lm_head(config.encoder_config)
        self.post_init()
        freeze_pooler(self.condenser.encoder)

    @classmethod
    def from_encoder(
        cls,
        name_or_path: str | Path | PreTrainedModel,
        *,
        n_head_layers: int = 2,
        skip_from: int | None = None,
        late_mlm: bool = True,
        head_mlm_probability: float | None = None,
        pooling: str | None = None,
        config_changes: dict[str, Any] | None = None,
        from_retriever: bool = False,
        **hub: Any,
    ) -> Any:
        """Start from an encoder's backbone and LM head (section 3.4), with a new Condenser head.

        The head's weights are drawn from torch's generator: call `transformers.set_seed` first.
        This needs the package, unlike opening a checkpoint on the Hub.

        Args:
            name_or_path: Hub name or folder of a supported encoder, or of a Condenser checkpoint,
                whose own head is then ignored; "starter" for the encoder that comes with the
                package. Or a model in memory, which is copied: give the trainer its tokenizer as
                `processing_class`.
            n_head_layers, skip_from, late_mlm, head_mlm_probability: see `CondenserConfig`.
            pooling: "cls" or "mean"; by default that of a Condenser checkpoint, else "cls".
            config_changes: attributes of the encoder's configuration, such as dropout.
            from_retriever: accept a sentence-transformers model, and take its transformer.
            **hub: `revision`, `token`, `cache_dir` and `local_files_only`, for the Hub.

        Raises:
            ValueError: the encoder is not supported, is a model of sentence-transformers or lacks
                weights, or a value is out of range.
        """
        try:
            from modeling_condenser.warm_start import open_start
        except ImportError as error:
            raise ImportError("from_encoder needs the package condenser: install it.") from error
        start = open_start(name_or_path, config_changes, from_retriever=from_retriever, **hub)
        new_config = CondenserConfig(
            encoder_config=start.encoder.config,
            n_head_layers=n_head_layers,
            skip_from=skip_from,
            late_mlm=late_mlm,
            head_mlm_probability=head_mlm_probability,
            pooling=pooling or start.pooling,
            similarity=start.similarity,
        )
        model = cls(new_config)
        model.condenser.encoder.load_state_dict(start.encoder.state_dict())
        freeze_pooler(model.condenser.encoder)
        if start.lm_head is not None:
            model.lm_head.load_state_dict(start.lm_head.state_dict())
        model.tie_weights()
        return model

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, new_head: bool = False, **kwargs: Any
    ) -> Any:
        """Open a pre-training checkpoint, like `PreTrainedModel.from_pretrained`.

        A random head can corrupt the backbone (section 3.4), so a checkpoint without a Condenser
        head is refused unless `new_head` is true, which starts a new one.

        Raises:
            ValueError: weights are missing or unexpected.
        """
        wants_info, name = kwargs.pop("output_loading_info", False), pretrained_model_name_or_path
        if kwargs.get("device_map") in ("auto", "balanced", "balanced_low_0", "sequential"):
            # On one device, because accelerate takes "head." for a part of "lm_head.", and fails.
            kwargs["device_map"] = torch.accelerator.current_accelerator() or torch.device("cpu")
        loaded: Any = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        missing = set(info["missing_keys"])
        if new_head:
            missing = {key for key in missing if not key.startswith(HEAD_WEIGHTS)}
        refuse_incomplete(name, missing, set(info["unexpected_keys"]))
        freeze_pooler(model.condenser.encoder)  # loading replaces its weights
        return (model, info) if wants_info else model

    def get_output_embeddings(self) -> nn.Module:
        return self.get_submodule(self._output_embeddings_name)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.set_submodule(self._output_embeddings_name, new_embeddings)
        for name, other in self._tied_biases.items():
            part, _, attribute = other.rpartition(".")
            setattr(self.get_submodule(part), attribute, self.get_parameter(name))

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Also the names of one bias, which the library does not tie if embeddings are not tied."""
        return {**self._tied_biases, **super().get_expanded_tied_weights_keys(all_submodels)}

    def post_init(self) -> None:
        """Of what a checkpoint may hold beside this model, drop the encoder class's own list."""
        super().post_init()
        of_encoder = set(CondenserModel._keys_to_ignore_on_load_unexpected)
        own = set(type(self)._keys_to_ignore_on_load_unexpected)
        self._keys_to_ignore_on_load_unexpected -= of_encoder - own  # type: ignore[operator]

    @property
    def _tied_biases(self) -> dict[str, str]:
        return {key: other for key, other in self._tied_weights_keys.items() if "bias" in key}

    @property
    def _output_embeddings_name(self) -> str:
        tied = [key for key in self._tied_weights_keys if key.endswith(".weight")]
        return tied[0].removesuffix(".weight")

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        head_input_ids: torch.Tensor | None = None,
        rows: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any, Any]:
        """Run the backbone, eqs. (6) and (7), on inputs of `forward`.

        With `rows`, the last layer computes only these rows of a packed batch.

        Returns:
            [cls_late ; late], (B, T, H); what the head reads beside cls_late, (B, T, H), which is
            [cls_early ; early] or the embeddings of `head_input_ids` (default: `input_ids`), or
            None without a head; the encoder's output, with the `layer_call` for `run_head`.
        """
        encoder = self.condenser.encoder
        with self.recorder.record(self.config.skip_from, rows) as recording:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **kwargs}
            output = self.condenser(**inputs, return_dict=True)
        output.layer_call, early = recording.call, None
        if self._has_head and head_input_ids is None:
            is_last = recording.early is None
            early = output.last_hidden_state if is_last else recording.early
        elif self._has_head:
            early = self.recorder.embed(encoder, **{**inputs, "input_ids": head_input_ids})
        return output.last_hidden_state, early, output

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        vectors_only: bool = False,
        bow_targets: torch.Tensor | None = None,
        bow_weight: float = 1.0,
        num_bags_in_batch: torch.Tensor | int | None = None,
        head_input_ids: torch.Tensor | None = None,
        head_targets: torch.Tensor | None = None,
        num_head_items_in_batch: torch.Tensor | int | None = None,
        masked_index: torch.Tensor | None = None,
        head_masked_index: torch.Tensor | None = None,
        block_index: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> CondenserForPreTrainingOutput:
        """Predict masked tokens from the backbone's late output, and from the head if it has one.

        Args:
            input_ids: (B, T) int64, with CLS at position 0 of each block.
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            labels: (B, T) int64, the original token at masked positions and -100 elsewhere.
            num_items_in_batch: masked tokens of an optimiser step, across micro-batches and
                devices, which each MLM loss is divided by; default: those of this call.
            vectors_only: return only `cls_late`, equal to that of a call with losses.
            bow_targets: (B, T) int64, each distinct token of the unmasked block once, anywhere in
                its row, and -100 elsewhere; adds bag-of-words prediction to the loss.
            bow_weight: of the bag-of-words loss.
            num_bags_in_batch: blocks with `bow_targets` in the step, which the bag-of-words loss is
                divided by; default: those of this call, scaled like `num_items_in_batch`.
            head_input_ids: (B, T) int64, the block masked a second time, for a head with
                `head_mlm_probability`.
            head_targets: (B, T) int64, the original tokens of that masking and -100 elsewhere.
            num_head_items_in_batch: their number in the step, by default as for bags.
            masked_index, head_masked_index: (M,) int64, where `labels` and `head_targets` stand in
                a packed batch; by default they are looked for, which waits for the device.
            block_index: (B,) int64, where the blocks of `cls_late` stand in a packed batch; by
                default all blocks in turn.
            **kwargs: for the encoder, such as `cu_seq_lens_q` of a packed batch.

        Raises:
            ValueError: the second masking is missing, or the head does not read one.
        """
        if getattr(self, "_is_replica", False):
            raise ValueError(
                "One process drives several GPUs (DataParallel), which is not supported: start "
                "a process for each with torchrun or accelerate launch."
            )
        self._check_second_masking(labels, head_targets)
        pooling, starts = self.config.pooling, kwargs.get("cu_seq_lens_q")
        masked = head_masked = None
        if labels is not None:
            masked = MaskedTokens.find(labels, masked_index, num_items_in_batch)
            head_masked = masked
            if head_targets is not None:
                head_masked = MaskedTokens.find(
                    head_targets, head_masked_index, num_head_items_in_batch, scale=masked.scale
                )
        head_rows = self._select_rows(head_masked, kwargs)
        # Other poolings need all rows.
        rows = self._select_rows(masked, kwargs) if pooling == "cls" else None
        late, early, output = self.encode(
            input_ids, attention_mask, head_input_ids=head_input_ids, rows=rows, **kwargs
        )  # eqs. (6), (7)
        starts_in_late = rows.starts if rows else starts
        cls_late = pool(late, pooling, attention_mask=attention_mask, starts=starts_in_late)
        vectors = cls_late.flatten(0, 1)  # (B, H)
        returned = vectors if block_index is None else vectors.index_select(0, block_index)
        if vectors_only:
            return CondenserForPreTrainingOutput(cls_late=returned)
        cd = None
        if self._has_head:
            cd = self.run_head(cls_late, early, output.layer_call, rows=head_rows)  # eq. (8)
        outputs: dict[str, Any] = {"cls_late": returned, "attentions": output.attentions}
        if kwargs.get("output_hidden_states"):
            outputs["hidden_states"] = output.hidden_states
        if masked is None or head_masked is None:
            outputs["head_logits"] = None if cd is None else self.lm_head(cd)  # (B, T, V)
            return CondenserForPreTrainingOutput(logits=self.lm_head(late), **outputs)
        predictions = {}
        if cd is not None:
            predictions["head_loss"] = head_masked, head_masked.take(cd, head_rows)  # eq. (9)
        if cd is None or self.config.late_mlm:
            predictions["late_loss"] = masked, masked.take(late, rows)  # eq. (10)
        losses: dict[str, Any] = mlm_losses(self.lm_head, predictions)
        loss = torch.stack([*losses.values()]).sum()
        if bow_targets is not None:
            losses["bow_loss"] = bag_of_words_loss(
                self.lm_head, vectors, bow_targets, starts, num_bags_in_batch, masked
            )
            loss = loss + bow_weight * losses["bow_loss"]  # eq. (11)
        return CondenserForPreTrainingOutput(loss=loss, **outputs, **losses)

    def _select_rows(self, masked: MaskedTokens | None, kwargs: dict[str, Any]) -> Any:
        """The rows that the losses need, if the last layers may compute only these."""
        starts = kwargs.get("cu_seq_lens_q")
        if self.select_rows is None or masked is None or starts is None:
            return None
        recomputes = getattr(self.condenser.global_layer, "gradient_checkpointing", False)
        if recomputes or kwargs.get("output_hidden_states"):
            return None
        return self.select_rows(masked.index, starts)

    def _check_second_masking(self, labels: Any, head_targets: Any) -> None:
        rate = self.config.head_mlm_probability if self._has_head else None
        if labels is not None and (rate is None) != (head_targets is None):
            raise ValueError(
                f"head_mlm_probability of this model is {rate}, but the batch was made for another "
                f"value: make batches with CondenserDataCollator(head_mlm_probability={rate})."
            )


class CondenserForPreTraining(CondenserForMaskedLM):
    """The whole Condenser: backbone, LM head and Condenser head, in one checkpoint."""

    _keys_to_ignore_on_load_unexpected = []
    _has_head = True

    def __init__(self, config: CondenserConfig):
        super().__init__(config)
        like, encoder_config = self.condenser.global_layer, config.encoder_config
        layers = (build_like(like, encoder_config) for _ in range(config.n_head_layers))
        self.head = nn.ModuleList(layers)
        self.head_norm = build_final_norm(self.condenser.encoder)
        self.post_init()

    def run_head(
        self, cls_late: torch.Tensor, early: torch.Tensor, layer_call: LayerCall, rows: Any = None
    ) -> torch.Tensor:
        """Run the Condenser head on [cls_late ; early], eq. (8).

        Args:
            cls_late: (B, 1, H) dense vectors; (1, B, H) of a packed batch.
            early: (B, T, H) second output of `encode`, whose CLS vectors are replaced.
            layer_call: from the third output of `encode`.
            rows: of a packed batch to compute, by default all.

        Returns:
            [cls_cd ; cd], (B, T, H), or only these rows.
        """
        hidden = replace_cls(early, cls_late, layer_call.kwargs.get("cu_seq_lens_q"))
        for layer in self.head[:-1]:
            hidden = layer_call.repeat(layer, hidden)
        return self.head_norm(layer_call.repeat(self.head[-1], hidden, rows=rows))


CondenserModel.register_for_auto_class("AutoModel")
CondenserForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
CondenserForPreTraining.register_for_auto_class("AutoModelForPreTraining")
CondenserConfig.register_for_auto_class()

__all__ = [
    "IGNORE_INDEX",
    "CondenserConfig",
    "CondenserForMaskedLM",
    "CondenserForPreTraining",
    "CondenserForPreTrainingOutput",
    "CondenserModel",
]
