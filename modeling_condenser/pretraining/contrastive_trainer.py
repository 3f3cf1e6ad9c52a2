"""The Condenser's trainer with a contrastive loss over the late CLS vectors of the whole batch."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import DistributedType

from .arguments import CONTRASTIVE, CondenserTrainingArguments
from .contrast import Chunk, Contrasted, put_back, split_batch
from .packed_batches import is_packed, unpack
from .trainer import CondenserTrainer

_SEEDS = 2**62  # seeds to draw a step's dropout from


class ContrastiveTrainer(CondenserTrainer):
    """Trains objective "cocondenser" or "ict": the model's own losses and a contrast of the batch.

    Used as `CondenserTrainer`, with `CondenserTrainingArguments`. Log entries hold
    `contrastive_loss` and `contrastive_accuracy` too, over the batch of all processes. With a
    `cache_chunk_size` a step needs the memory of one chunk, whatever the batch, at the cost of a
    second forward pass of the backbone (`contrast.py`).
    """

    objectives = CONTRASTIVE

    def __init__(self, model: Any, args: CondenserTrainingArguments, *others: Any, **kwargs: Any):
        _check_batch(args)
        super().__init__(model, args, *others, **kwargs)
        self.contrast = args.contrast
        self.weight = args.contrastive_weight
        self.cache_chunk_size = args.cache_chunk_size
        if args.objective == "ict":  # nothing is masked
            self.logged_losses = ("bow_loss",)
        n_pairs = len(self.train_dataset)  # type: ignore[arg-type]
        batch = args.train_batch_size * args.world_size
        if n_pairs < batch:
            raise ValueError(
                f"There are {n_pairs} pairs to train on, but a batch is {batch} of them (over all "
                "processes): lower per_device_train_batch_size, or add text."
            )
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED and self.cache_chunk_size:
            raise ValueError(
                "cache_chunk_size goes backward several times a step, which DeepSpeed's engine "
                "does not allow: leave it out, or use DDP or FSDP."
            )

    def choose_probed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """One text of each pair, whose partner says much about it, of as many as fit a chunk."""
        if is_packed(inputs):
            inputs = unpack(inputs, pad_token_id=self.pad_token_id)
        return {name: value[: self.cache_chunk_size : 2] for name, value in inputs.items()}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss of a batch; of a cached one with the gradient of the last chunk only.

        The gradients of the other chunks are added to the parameters here.
        """
        if not model.training:
            raise ValueError(
                "A contrastive loss is over training batches only: set eval_strategy to 'no', and "
                "evaluate the exported encoder with `condenser evaluate`."
            )
        seed = int(torch.randint(_SEEDS, ()))
        pad_token_id = self.pad_token_id if is_packed(inputs) else 0
        chunks = split_batch(inputs, self.cache_chunk_size, seed=seed, pad_token_id=pad_token_id)
        if len(chunks) == 1:
            loss = self._loss_at_once(model, chunks[0], num_items_in_batch)
        else:
            loss = self._loss_by_chunks(model, chunks, num_items_in_batch)
        return (loss, {"loss": loss}) if return_outputs else loss

    def _loss_at_once(
        self, model: torch.nn.Module, chunk: Chunk, num_items: torch.Tensor | int | None
    ) -> torch.Tensor:
        model_loss, vectors = self._run(model, chunk, num_items)
        term = self.weight * self._contrast_batch(vectors).loss
        return _with_value(
            model_loss + term * self.accelerator.num_processes, model_loss.detach() + term.detach()
        )

    def _loss_by_chunks(
        self, model: torch.nn.Module, chunks: list[Chunk], num_items: torch.Tensor | int | None
    ) -> torch.Tensor:
        vectors = put_back([self._encode(model, chunk) for chunk in chunks], chunks)  # (S, H)
        vectors.requires_grad_()
        term = self.weight * self._contrast_batch(vectors).loss
        # Processes average their gradients, but each holds only its own vectors' part of this one.
        (cache,) = torch.autograd.grad(term * self.accelerator.num_processes, vectors)

        value = term.detach()
        surrogate = value
        for chunk in chunks:
            is_last = chunk is chunks[-1]
            # Processes exchange gradients once: in the backward pass of the last chunk.
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                model_loss, own = self._run(model, chunk, num_items)
                value = value + model_loss.detach()
                surrogate = model_loss + (own * cache[chunk.rows]).sum()
                if not is_last:
                    self.accelerator.backward(surrogate)
        return _with_value(surrogate, value)

    def _run(
        self, model: torch.nn.Module, chunk: Chunk, num_items: torch.Tensor | int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own loss of a chunk, and its vectors (C, H), with their graph."""
        with chunk.replaying():
            loss, outputs = super().compute_loss(
                model, chunk.inputs, return_outputs=True, num_items_in_batch=num_items
            )
        return loss, _vectors(outputs, chunk)

    @torch.no_grad()
    def _encode(self, model: torch.nn.Module, chunk: Chunk) -> torch.Tensor:
        """The vectors of a chunk (C, H), by the wrapped model, in which FSDP gathers weights."""
        with chunk.replaying():
            return _vectors(model(**chunk.inputs, vectors_only=True), chunk)

    def _contrast_batch(self, vectors: torch.Tensor) -> Contrasted:
        """Contrast the vectors of all processes, with a graph to this one's (S, H)."""
        n_processes = self.accelerator.num_processes
        if n_processes > 1:
            gathered = self.accelerator.gather(vectors.detach().contiguous())
            parts = list(gathered.split(len(vectors)))
            parts[self.accelerator.process_index] = vectors
            vectors = torch.cat(parts)
        contrasted = self.contrast(vectors)
        # Alike in all processes, whose measures are summed.
        self.add_measure("contrastive_loss", contrasted.loss / n_processes)
        self.add_measure("contrastive_accuracy", contrasted.accuracy / n_processes)
        return contrasted


def _check_batch(args: CondenserTrainingArguments) -> None:
    """Check that the arguments fit a loss over the whole batch."""
    if not isinstance(args, CondenserTrainingArguments):
        raise ValueError(
            f"args are {type(args).__name__}, but ContrastiveTrainer needs "
            "CondenserTrainingArguments, which decide the contrast."
        )
    n_pairs, chunk = args.per_device_train_batch_size, args.cache_chunk_size
    if args.gradient_accumulation_steps > 1:
        raise ValueError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, but a contrastive "
            "loss is over the whole batch: set it to 1, per_device_train_batch_size to the batch "
            "that you want, and cache_chunk_size to what fits the memory."
        )
    if n_pairs * args.world_size < 2:
        raise ValueError(
            "The batch is one pair, without negatives: set per_device_train_batch_size (pairs on a "
            "device) to 2 or more; the papers' is 1,024."
        )
    if chunk is not None and (chunk % 2 or not 2 <= chunk <= 2 * n_pairs):
        raise ValueError(
            f"cache_chunk_size is {chunk}, expected an even number of texts from 2 to {2 * n_pairs}"
            " (two for each of per_device_train_batch_size)."
        )


def _vectors(outputs: Mapping[str, Any], chunk: Chunk) -> torch.Tensor:
    """(C, H) a chunk's vectors, without that of a packed batch's filler, the last one."""
    return outputs["cls_late"][: len(chunk.rows)].float()


def _with_value(loss: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A loss with its own gradient and another value, the one to log."""
    return loss + (value - loss).detach()
