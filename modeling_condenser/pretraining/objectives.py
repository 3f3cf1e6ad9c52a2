"""The objectives: which model is trained, and by which trainer."""

from typing import Any

from transformers import AutoConfig, PreTrainedModel

from modeling_condenser.cpu_kernels import use_cheap_dropout
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.packing import use_packing

from .arguments import CONTRASTIVE
from .contrastive_trainer import ContrastiveTrainer
from .examples import budget_batches, packs
from .recipe import PretrainingRecipe
from .trainer import CondenserTrainer
from .tsdae import add_decoder
from .warm_start import condenser_from_encoder, masked_lm_from_encoder


def open_model(recipe: PretrainingRecipe) -> PreTrainedModel:
    """The model that a recipe trains: started from an encoder, or a checkpoint continued.

    Raises:
        ValueError: the checkpoint has no head, or another split than the recipe states; or the
            recipe wants packed batches or a decoder, and the encoder does not allow it.
    """
    model: Any = _open_padded(recipe)
    use_cheap_dropout(model)
    if packs(recipe, model):
        use_packing(model)
    return model


def _open_padded(recipe: PretrainingRecipe) -> PreTrainedModel:
    if recipe.objective == "mlm":
        return masked_lm_from_encoder(recipe.encoder, config_changes=recipe.encoder_changes)
    if recipe.objective in ("ict", "tsdae"):
        backbone = masked_lm_from_encoder(recipe.encoder, config_changes=recipe.encoder_changes)
        if recipe.objective == "tsdae":
            add_decoder(backbone, recipe.tokenizer or recipe.encoder)
        if not recipe.predicts_bag:
            _freeze_lm_head(backbone)
        return backbone
    stated = {
        name: value
        for name in ("n_head_layers", "skip_from", "late_mlm", "head_mlm_probability")
        if (value := getattr(recipe, name)) is not None
    }
    config: Any = AutoConfig.from_pretrained(resolve_encoder_name(recipe.encoder))
    if config.model_type != "condenser" or recipe.new_head:
        return condenser_from_encoder(
            recipe.encoder, config_changes=recipe.encoder_changes, **stated
        )
    for name, value in recipe.encoder_changes.items():
        setattr(config.encoder_config, name, value)
    model = CondenserForPreTraining.from_pretrained(recipe.encoder, config=config)
    for name, value in stated.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out to continue the checkpoint, or set "
                "new_head: true to start a new head."
            )
    return model


def _freeze_lm_head(model: CondenserForMaskedLM) -> None:
    """Take out of training what of the LM head is not the encoder's own, and is in no loss."""
    shared = {id(parameter) for parameter in model.condenser.parameters()}
    for parameter in model.lm_head.parameters():
        if id(parameter) not in shared:
            parameter.requires_grad_(False)


def make_trainer(recipe: PretrainingRecipe, **kwargs: Any) -> CondenserTrainer:
    """The trainer of a recipe's objective.

    Args:
        recipe: that says it.
        **kwargs: as for `CondenserTrainer`, by name: `model` of `open_model`, `data_collator` and
            `train_dataset` of `Examples`, and what else there is.
    """
    kwargs |= {"bow_weight": recipe.bow_weight, "bow_weight_end": recipe.bow_weight_end}
    if recipe.objective not in CONTRASTIVE:
        batches = budget_batches(
            recipe, kwargs["args"], kwargs["train_dataset"], kwargs["data_collator"]
        )
        trainer = DenoisingTrainer if recipe.objective == "tsdae" else CondenserTrainer
        return trainer(batches=batches, **kwargs)
    return ContrastiveTrainer(
        contrast=recipe.contrast,
        weight=recipe.contrast_weight,
        cache_chunk_size=recipe.cache_chunk_size,
        masks=recipe.objective != "ict",
        **kwargs,
    )


class DenoisingTrainer(CondenserTrainer):
    """The Condenser's trainer for a model with TSDAE's decoder: without probes, which need masks.

    Args:
        *args: as for `CondenserTrainer`.
        **kwargs: as there.

    Raises:
        ValueError: one process sees several GPUs, among which the loss cannot be divided.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"One process sees {self.args.n_gpu} GPUs, but objective tsdae needs one process "
                "for each: start it with torchrun or accelerate launch."
            )

    def _is_probe_due(self) -> bool:
        return False
