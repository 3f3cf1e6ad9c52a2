"""The Condenser: an encoder, its masked-LM head, and a short head that reads the late CLS vector.

One of the two files that travel to the Hub with a pre-training checkpoint (the other is
`configuration_condenser.py`), so it imports nothing but torch and transformers.

    [cls_early ; early] = early layers ( embed(x) )                        eq. (6)
    [cls_late  ; late ] = late layers  ( [cls_early ; early] )             eq. (7)
    [cls_cd    ; cd   ] = head layers  ( [cls_late  ; early] )             eq. (8)
    loss = MLM(cd) + MLM(late) (+ bow_weight * BoW(cls_late))              eqs. (9)-(11)

Equations are those of Gao & Callan (2021), "Condenser: a Pre-training Architecture for Dense
Retrieval". BoW is bag-of-words prediction: the CLS vector predicts the distinct tokens of its block
through the LM head (Ma et al. 2024, "Drop your Decoder", arXiv 2401.11248). Shapes: B blocks in a
batch, T tokens in a block, H hidden size, V vocabulary size, M masked tokens in the batch.

A batch can be packed: all blocks in one row, (1, N), without padding; `cu_seq_lens_q`, (B + 1,),
says where each begins and the last ends, as transformers has it for flash attention. That is for
attention back-ends that read this argument: others would attend across blocks.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, can_return_tuple, logging

from .configuration_condenser import GLOBAL_ATTENTION, CondenserConfig, check_encoder

IGNORE_INDEX = -100
_WIDENED_AT_ONCE = 2**22  # logits
ROW_MULTIPLE = 64  # what counts of chosen rows are rounded up to, so that kernels meet few shapes
# Which class each Auto class opens a checkpoint with.
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
        loss: () the sum of the losses, eq. (11); with `labels` only.
        head_loss: () MLM loss of the Condenser head, eq. (9).
        late_loss: () MLM loss of the backbone's late output, eq. (10); None without `late_mlm`.
        bow_loss: () bag-of-words loss of the late CLS, before its weight; with `bow_targets` only.
        head_logits: (B, T, V) predictions of the Condenser head; without `labels` only, because
            training projects masked positions alone.
        logits: (B, T, V) late predictions of the backbone; likewise.
        hidden_states: the backbone's, each (B, T, H), where asked for.
        attentions: the backbone's, each (B, heads, T, T), where asked for.
        cls_late: (B, H) the blocks' dense vectors, which are the late CLS.
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

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise modules without weights of their own too, such as ModernBERT's attention.

        The library passes over them in code outside of it, but some encoders initialise what they
        hold. Weights that a checkpoint has loaded keep their values.
        """
        super().initialize_weights()
        for module in self.modules():
            if not any(True for _ in module.parameters(recurse=False)):
                self._init_weights(module)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save with the two code files, so that every Auto class opens the folder anywhere.

        The files of sentence-transformers say that the CLS vector is the representation; without
        them `SentenceTransformer` would take the mean of the tokens.
        """
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            encoder: Any = self.config.encoder_config
            _write_cls_pooling(Path(save_directory), encoder.hidden_size)


def _write_cls_pooling(folder: Path, dimension: int) -> None:
    """Write the files by which sentence-transformers 6 takes the CLS vector."""
    modules = {"": "base.modules.transformer.Transformer"}
    modules["1_Pooling"] = "sentence_transformer.modules.pooling.Pooling"
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(modules.items())
    ]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in {
        "modules.json": listed,
        "1_Pooling/config.json": {"embedding_dimension": dimension, "pooling_mode": "cls"},
        "config_sentence_transformers.json": {"similarity_fn_name": "dot"},
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


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

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        """The encoder's forward pass, with its arguments and its output."""
        return self.encoder(*args, **kwargs)

    @torch.compiler.disable  # leaves the encoder by an exception
    def embed(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The embeddings as the first layer reads them, (B, T, H).

        Args:
            *args: as for the encoder's forward pass.
            **kwargs: as for the encoder's forward pass.
        """

        def stop(_: nn.Module, layer_args: tuple[Any, ...]) -> None:
            raise _Embedded(layer_args[0])

        hook = self.layers[0].register_forward_pre_hook(stop)
        try:
            self.encoder(*args, **kwargs)
        except _Embedded as embedded:
            return embedded.hidden
        finally:
            hook.remove()
        raise AssertionError("an encoder calls its first layer")


class _Embedded(Exception):
    """Carries the embeddings out of an encoder before its first layer runs."""

    def __init__(self, hidden: torch.Tensor):
        super().__init__()
        self.hidden = hidden


class CondenserForMaskedLM(CondenserPreTrainedModel):
    """The backbone with its own LM head: a plain masked language model.

    Trains plain MLM, the control that a Condenser is compared with, and reads the late predictions
    of a Condenser checkpoint. Unlike the library's masked-LM classes it projects masked positions
    only, and normalises by `num_items_in_batch`, so that gradient accumulation is exact.
    """

    _keys_to_ignore_on_load_unexpected = [r"^head[._]"]
    # Chooses the rows of a packed batch that a loss reads, so that the last layers compute no
    # others (`use_packing` in the package's packing.py sets it); None to compute all.
    choose_rows: Any = None

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
    def from_encoder(cls, name_or_path: str, **kwargs: Any) -> Any:
        """Start from an encoder and its LM head, for plain MLM; needs the condenser package.

        Args:
            name_or_path: Hub name or folder of an encoder, or "starter".
            **kwargs: as for `masked_lm_from_encoder`.
        """
        return _package("pretraining.warm_start").masked_lm_from_encoder(name_or_path, **kwargs)

    def save_encoder(self, folder: str | Path, *, tokenizer: Any = None) -> Path:
        """Save the backbone as a plain encoder's repository; needs the condenser package.

        `AutoModel` and `SentenceTransformer` (with CLS pooling) open it without remote code.

        Args:
            folder: new or empty.
            tokenizer: by default that of the checkpoint that the model was loaded from.

        Returns:
            The folder.
        """
        tokenizer = tokenizer or _package("pretraining.examples").find_tokenizer(self)
        with TemporaryDirectory() as checkpoint:
            self.save_pretrained(checkpoint)
            tokenizer.save_pretrained(checkpoint)
            return _package("publishing.export").export_encoder(checkpoint, folder)

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

    def _rows_to_read(self, labels: torch.Tensor | None, kwargs: dict) -> Any:
        starts = kwargs.get("cu_seq_lens_q")
        if self.choose_rows is None or labels is None or starts is None:
            return None
        recomputes = getattr(self.condenser.global_layer, "gradient_checkpointing", False)
        keeps_all = recomputes or kwargs.get("output_hidden_states")
        return None if keeps_all else self.choose_rows(labels, starts)

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
        **kwargs: Any,
    ) -> CondenserForPreTrainingOutput:
        """Predict masked tokens from the backbone's late output.

        Args:
            input_ids: (B, T) int64.
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            labels: (B, T) int64, the original token at masked positions and -100 elsewhere.
            num_items_in_batch: masked tokens of the whole batch that one optimiser step sees,
                across micro-batches and devices; those of this call when not given. Each loss is
                divided by it.
            vectors_only: return `cls_late` alone, bit by bit as it is with everything else, dropout
                included, if the random state is the same; `labels` are to be given all the same.
            bow_targets: (B, T) int64, each distinct token of the unmasked block once, anywhere in
                its row, and -100 elsewhere; adds bag-of-words prediction to the loss.
            bow_weight: of the bag-of-words loss.
            num_bags_in_batch: blocks with `bow_targets` in the whole batch, which the bag-of-words
                loss is divided by; when not given, estimated from those of this call in proportion
                to `num_items_in_batch`.
            **kwargs: for the encoder; `cu_seq_lens_q` and its kin of a packed batch among them.
        """
        read = self._rows_to_read(labels, kwargs)
        with _recorded_calls(self.condenser.global_layer, read):
            late = self.condenser(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        starts = kwargs.get("cu_seq_lens_q") if read is None else read.starts
        cls_late = _cls_of(late.last_hidden_state, starts).flatten(0, 1)  # (B, H)
        if vectors_only:
            return CondenserForPreTrainingOutput(cls_late=cls_late)
        loss = late_loss = bow_loss = logits = None
        if labels is None:
            logits = self.lm_head(late.last_hidden_state)  # (B, T, V)
        else:
            masked = _MaskedPositions.of(labels, num_items_in_batch, read)
            [late_loss] = _mlm_losses(self.lm_head, [(masked, late.last_hidden_state)])
            bags = _Bags.of(bow_targets, kwargs.get("cu_seq_lens_q"), num_bags_in_batch, masked)
            bow_loss = None if bags is None else bags.loss(self.lm_head, cls_late)
            loss = _total([late_loss], bow_loss, bow_weight)
        return CondenserForPreTrainingOutput(
            loss=loss,
            late_loss=late_loss,
            bow_loss=bow_loss,
            logits=logits,
            hidden_states=late.hidden_states if kwargs.get("output_hidden_states") else None,
            attentions=late.attentions,
            cls_late=cls_late,
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
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # its tables of missing keys; what they say is checked here
        try:
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        finally:
            logging.set_verbosity(verbosity)
        missing = {key for key in info["missing_keys"] if not (new_head and _is_of_head(key))}
        refuse_incomplete(pretrained_model_name_or_path, missing, set(info["unexpected_keys"]))
        return (model, info) if wants_info else model

    @classmethod
    def from_encoder(cls, name_or_path: str, **kwargs: Any) -> Any:
        """Start from an encoder and its LM head, with a new Condenser head; needs the package.

        Args:
            name_or_path: Hub name or folder of an encoder, or "starter".
            **kwargs: as for `condenser_from_encoder` (`n_head_layers`, `skip_from`, ...).
        """
        return _package("pretraining.warm_start").condenser_from_encoder(name_or_path, **kwargs)

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        head_input_ids: torch.Tensor | None = None,
        read: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Run the backbone, eqs. (6) and (7).

        Args:
            input_ids: (B, T) int64.
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            head_input_ids: (B, T) int64 the block masked a second time, for a head with
                `head_mlm_probability`; `input_ids` when not given.
            read: the rows of a packed batch that the last layer computes; all when not given.
            **kwargs: for the encoder.

        Returns:
            [cls_late ; late] and what the head reads beside cls_late, [cls_early ; early] or the
            embeddings of `head_input_ids`, each (B, T, H); and the encoder's output, with the
            `layer_call` that `run_head` repeats.
        """
        is_condenser = self.config.head_mlm_probability is None
        if is_condenser:
            # All of them: what a single index means differs between versions of the library.
            kwargs["output_hidden_states"] = True
        with _recorded_calls(self.condenser.global_layer, read) as calls:
            output = self.condenser(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        output.layer_call = calls[-1]
        if is_condenser:
            early = output.hidden_states[self.config.skip_from]
        else:
            ids = input_ids if head_input_ids is None else head_input_ids
            early = self.condenser.embed(input_ids=ids, attention_mask=attention_mask, **kwargs)
        return output.last_hidden_state, early, output

    def run_head(
        self,
        cls_late: torch.Tensor,
        early: torch.Tensor,
        layer_call: "LayerCall",
        *,
        read: Any = None,
    ) -> torch.Tensor:
        """Run the Condenser head on a short circuit from the early layers, eq. (8).

        Args:
            cls_late: (B, 1, H) late CLS vectors; of a packed batch (1, B, H).
            early: (B, T, H) what the head reads of the `encode` above; its CLS vectors are
                replaced.
            layer_call: of the output of the `encode` that gave `early`.
            read: the rows of a packed batch that the last layer computes; all when not given.

        Returns:
            [cls_cd ; cd], (B, T, H), or the rows of it that are read.
        """
        starts = layer_call.kwargs.get("cu_seq_lens_q")
        if starts is None:
            hidden = torch.cat([cls_late, early[:, 1:]], dim=1)  # (B, T, H)
        else:
            hidden = early.index_copy(1, starts[:-1].long(), cls_late.to(early.dtype))
        for layer in self.head[:-1]:
            hidden = layer_call.repeat(layer, hidden)
        return self.head_norm(layer_call.repeat(self.head[-1], hidden, read=read))

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
        **kwargs: Any,
    ) -> CondenserForPreTrainingOutput:
        """Predict masked tokens from the Condenser head, and from the backbone's late output.

        CLS is at position 0 of each block. Arguments are those of `CondenserForMaskedLM.forward`,
        and for a head with `head_mlm_probability` these:

        Args:
            input_ids: see there.
            attention_mask: see there.
            labels: see there.
            num_items_in_batch: see there.
            vectors_only: see there.
            bow_targets: see there.
            bow_weight: see there.
            num_bags_in_batch: see there.
            head_input_ids: (B, T) int64 the block masked a second time.
            head_targets: (B, T) int64, the original token at positions of the second masking and
                -100 elsewhere.
            num_head_items_in_batch: tokens of the second masking in the whole batch; estimated when
                not given, as `num_bags_in_batch` is.
            **kwargs: see there.

        Raises:
            ValueError: a second masking is missing, or given to a head that does not read one.
        """
        self._check_second_masking(labels, head_input_ids, head_targets)
        read = self._rows_to_read(labels, kwargs)
        late, early, output = self.encode(
            input_ids, attention_mask, head_input_ids=head_input_ids, read=read, **kwargs
        )  # eqs. (6), (7)
        if not kwargs.get("output_hidden_states"):
            output.hidden_states = None  # freed: head and losses need memory next
        cls_late = _cls_of(late, kwargs.get("cu_seq_lens_q") if read is None else read.starts)
        if vectors_only:
            return CondenserForPreTrainingOutput(cls_late=cls_late.flatten(0, 1))
        head_read = read if head_targets is None else self._rows_to_read(head_targets, kwargs)
        cd = self.run_head(cls_late, early, output.layer_call, read=head_read)  # eq. (8)
        cls_late = cls_late.flatten(0, 1)  # (B, H)

        loss = head_loss = late_loss = bow_loss = head_logits = logits = None
        if labels is None:
            head_logits, logits = self.lm_head(cd), self.lm_head(late)  # (B, T, V)
        else:
            masked = head_masked = _MaskedPositions.of(labels, num_items_in_batch, read)
            if head_targets is not None:
                n_items = num_head_items_in_batch
                head_masked = _MaskedPositions.of(head_targets, n_items, head_read, like=masked)
            predicting = [(head_masked, cd)]
            if self.config.late_mlm:
                predicting.append((masked, late))
            head_loss, *rest = _mlm_losses(self.lm_head, predicting)  # eqs. (9), (10)
            late_loss = rest[0] if rest else None
            bags = _Bags.of(bow_targets, kwargs.get("cu_seq_lens_q"), num_bags_in_batch, masked)
            bow_loss = None if bags is None else bags.loss(self.lm_head, cls_late)
            loss = _total([head_loss, *rest], bow_loss, bow_weight)  # eq. (11)
        return CondenserForPreTrainingOutput(
            loss=loss,
            head_loss=head_loss,
            late_loss=late_loss,
            bow_loss=bow_loss,
            head_logits=head_logits,
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            cls_late=cls_late,
        )

    def _check_second_masking(
        self,
        labels: torch.Tensor | None,
        head_input_ids: torch.Tensor | None,
        head_targets: torch.Tensor | None,
    ) -> None:
        rate = self.config.head_mlm_probability
        given = [
            name
            for name, value in (("head_input_ids", head_input_ids), ("head_targets", head_targets))
            if value is not None
        ]
        if rate is None and given:
            raise ValueError(
                f"{' and '.join(given)} came, but the head of this model reads an early layer "
                "(head_mlm_probability is None): make batches with "
                "CondenserDataCollator(head_mlm_probability=None)."
            )
        if rate is not None and labels is not None and len(given) < 2:
            raise ValueError(
                "The head of this model predicts tokens of a second masking, but the batch has no "
                "head_input_ids or no head_targets: make batches with "
                f"CondenserDataCollator(head_mlm_probability={rate})."
            )


def _package(module: str) -> Any:
    """A module of the condenser package, by name: these files also work without the package."""
    try:
        return import_module(f"modeling_condenser.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(
            "This needs the condenser package, not only its model files: install condenser."
        ) from error


def _cls_of(late: torch.Tensor, starts: torch.Tensor | None) -> torch.Tensor:
    """The CLS vectors of a late output, (B, 1, H); (1, B, H) of a packed batch's."""
    return late[:, :1] if starts is None else late[:, starts[:-1].long()]


@dataclass(frozen=True)
class LayerCall:
    """What a backbone layer was called with beside hidden states: masks, positions, biases.

    Repeating it is how head layers of any architecture get what such layers need, and the gradient
    of what they share with the backbone (MPNet's and DeBERTa's tables of relative positions).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def repeat(self, layer: nn.Module, hidden: torch.Tensor, *, read: Any = None) -> torch.Tensor:
        """Call another layer of the same class so: (B, T, H) to (B, T, H), or to the rows read."""
        args, kwargs = (hidden, *self.args), self.kwargs
        if read is not None:
            args, kwargs = read.narrow(args, kwargs)
        result = layer(*args, **kwargs)
        return result[0] if isinstance(result, tuple) else result


@contextmanager
def _recorded_calls(layer: nn.Module, read: Any = None) -> Iterator[list[LayerCall]]:
    """Record how a layer is called meanwhile, and narrow its calls to the rows that are read."""
    calls: list[LayerCall] = []  # shared layers are called several times

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(LayerCall(args[1:], kwargs))
        return None if read is None else read.narrow(args, kwargs)

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
        index: (M,) int64 positions in the flattened (B * T) batch; M is rounded up.
        targets: (M,) int64 original tokens, -100 where rounded up.
        n_here: masked tokens of this call.
        n_items: masked tokens that the loss is averaged over.
    """

    index: torch.Tensor
    targets: torch.Tensor
    n_here: int
    n_items: torch.Tensor | int

    @classmethod
    def of(
        cls,
        labels: torch.Tensor,
        n_items: torch.Tensor | int | None,
        read: Any,
        *,
        like: "_MaskedPositions | None" = None,
    ) -> "_MaskedPositions":
        """Find the masked positions among the rows that are read.

        Args:
            labels: (B, T), -100 where nothing is masked.
            n_items: of the whole batch, where it is known.
            read: the rows of a packed batch that were computed; all when None.
            like: other positions of the same call, to estimate `n_items` from.
        """
        flat = (labels if read is None else labels[:, read.columns]).reshape(-1)
        index = (flat != IGNORE_INDEX).nonzero().squeeze(1)
        n_here = len(index)
        if like is not None and n_items is None:
            n_items = like.estimate(n_here)
        n_more = -n_here % ROW_MULTIPLE  # that count for nothing
        return cls(
            F.pad(index, (0, n_more)),
            F.pad(flat[index], (0, n_more), value=IGNORE_INDEX),
            n_here,
            _at_least_one(n_here if n_items is None else n_items, labels.device),
        )

    def estimate(self, n_here: torch.Tensor | int) -> Any:
        """How many of something the whole batch has, if this call has so many and its share."""
        return n_here if self.n_here == 0 else n_here * self.n_items / self.n_here


def _at_least_one(n: Any, device: torch.device) -> Any:
    return n.to(device).clamp(min=1) if isinstance(n, torch.Tensor) else max(n, 1)


def _mlm_losses(
    lm_head: nn.Module, predicting: Sequence[tuple[_MaskedPositions, torch.Tensor]]
) -> list[torch.Tensor]:
    """Cross-entropy of each (B, T, H) output at its masked positions: scalars.

    Only these are projected to the vocabulary, those of all outputs at once: the others have no
    part in the loss.
    """
    hidden = torch.cat([output.flatten(0, 1)[masked.index] for masked, output in predicting])
    targets = torch.cat([masked.targets for masked, _ in predicting])
    losses = _cross_entropy(lm_head(hidden), targets)
    parts = losses.split([len(masked.index) for masked, _ in predicting])
    return [
        part.sum() / masked.n_items for part, (masked, _) in zip(parts, predicting, strict=True)
    ]


@dataclass(frozen=True)
class _Bags:
    """The distinct tokens of each block, which its CLS vector predicts.

    Attributes:
        blocks: (K,) int64 the block of each.
        tokens: (K,) int64 which they are.
        n_items: blocks with tokens that the loss is averaged over; None for those of this call.
        masked: of the same call, to estimate `n_items` from.
    """

    blocks: torch.Tensor
    tokens: torch.Tensor
    n_items: torch.Tensor | int | None
    masked: _MaskedPositions

    @classmethod
    def of(
        cls,
        targets: torch.Tensor | None,
        starts: torch.Tensor | None,
        n_items: torch.Tensor | int | None,
        masked: _MaskedPositions,
    ) -> "_Bags | None":
        """The bags of `bow_targets`; `starts` is `cu_seq_lens_q` of a packed batch."""
        if targets is None:
            return None
        blocks, columns = (targets != IGNORE_INDEX).nonzero().unbind(1)
        tokens = targets[blocks, columns]
        if starts is not None:
            blocks = torch.searchsorted(starts[1:].long(), columns, right=True)
        return cls(blocks, tokens, n_items, masked)

    def loss(self, lm_head: nn.Module, cls_late: torch.Tensor) -> torch.Tensor:
        """Mean over blocks of logsumexp(z) - mean over the block's bag of z_t, with z = LM head(h).

        That is the cross-entropy of z with the uniform distribution over the bag, whose (B, V)
        target is not built.

        Args:
            lm_head: of the model.
            cls_late: (B, H) h, the blocks' late CLS vectors.
        """
        n_blocks = len(cls_late)
        hidden = F.pad(cls_late, (0, 0, 0, -n_blocks % ROW_MULTIPLE))
        logits = _widen(lm_head(hidden)[:n_blocks])  # (B, V)
        sizes = torch.bincount(self.blocks, minlength=n_blocks)  # (B,)
        sums = logits.new_zeros(n_blocks).index_add(
            0, self.blocks, logits[self.blocks, self.tokens]
        )
        is_counted = sizes > 0
        losses = (logits.logsumexp(dim=1) - sums / sizes.clamp(min=1)).where(is_counted, 0)
        n_items = self.n_items
        if n_items is None:
            n_items = self.masked.estimate(is_counted.sum())
        return losses.sum() / _at_least_one(n_items, logits.device)


def _total(
    losses: Sequence[torch.Tensor], bow_loss: torch.Tensor | None, bow_weight: float
) -> torch.Tensor:
    """The sum of the losses, a tensor of its own: the Trainer scales it in place."""
    first, *rest = losses
    total = sum(rest, first.clone())
    return total if bow_loss is None else total + bow_weight * bow_loss


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy (M,) of logits (M, V), 0 where the target is -100; in float32 at least."""
    if torch.compiler.is_compiling():  # which fuses it, and would make a graph for each M
        return F.cross_entropy(_widen(logits), targets, reduction="none", ignore_index=IGNORE_INDEX)
    return _CrossEntropy.apply(logits, targets)


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits as they came, and widens a few rows at a time.

    torch's own keeps the logarithms of all probabilities in float32, and makes two more tensors of
    that size in its backward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ctx.n_rows = max(_WIDENED_AT_ONCE // logits.shape[1], 1)
        norms = torch.cat([_widen(rows).logsumexp(dim=1) for rows in logits.split(ctx.n_rows)])
        is_counted = targets != IGNORE_INDEX
        targets = targets.where(is_counted, 0)[:, None]
        ctx.save_for_backward(logits, targets, norms, is_counted)
        return (norms - logits.gather(1, targets).squeeze(1)).where(is_counted, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        logits, targets, norms, is_counted = ctx.saved_tensors
        gradient = gradient.where(is_counted, 0)
        of_logits = torch.empty_like(logits)
        parts = (logits, targets, norms[:, None], gradient[:, None], of_logits)
        for rows, target, norm, factor, out in zip(
            *(p.split(ctx.n_rows) for p in parts), strict=True
        ):
            probabilities = (_widen(rows) - norm).exp_()
            probabilities.scatter_add_(1, target, -torch.ones_like(norm))
            out.copy_(probabilities.mul_(factor))
        return of_logits, None


def _widen(logits: torch.Tensor) -> torch.Tensor:
    """In float32 at least: a sum of exponentials needs the precision."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


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


def take_lm_head(masked_lm: PreTrainedModel) -> tuple[nn.Module, dict[str, str]]:
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
    lm_head, tied = take_lm_head(masked_lm)
    lm_head.to_empty(device=torch.get_default_device())
    for module in lm_head.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return lm_head, tied


def _is_of_head(key: str) -> bool:
    return key.startswith(("head.", "head_norm."))


def refuse_incomplete(name_or_path: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raise on weights that a checkpoint lacks, or that a model has no place for."""
    if missing and all(map(_is_of_head, missing)):
        raise ValueError(
            f"{name_or_path} has no Condenser head ({len(missing)} weights are missing, such as "
            f"{min(missing)}). Training from a random head can corrupt the backbone: continue from "
            "a checkpoint that has its head, or pass new_head=True to start a new one knowingly "
            "(condenser_from_encoder starts from a plain encoder)."
        )
    if missing or unexpected:
        raise ValueError(
            f"{name_or_path} does not fit the model: {len(missing)} weights are missing "
            f"{sorted(missing)[:3]} and {len(unexpected)} have no place {sorted(unexpected)[:3]}. "
            "A plain encoder is opened with condenser_from_encoder; otherwise the checkpoint is "
            "damaged or its config.json belongs to another model."
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
    "CondenserModel",
]
