"""The Condenser's trainer with a contrastive loss over the vectors of a whole batch.

The two texts of a pair are rows 2i and 2i + 1. The positive of a text is its partner; all other
texts of the batch, on all devices, are negatives (Gao & Callan 2021, coCondenser, arXiv 2108.05540;
Lee, Chang & Toutanova 2019 for the Inverse Cloze Task). S texts in a batch, H numbers in a vector.

The gradient cache is that of Gao, Zhang, Han & Callan (2021), "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup": encode all chunks of a batch without a graph; compute the
gradient g of the loss at each vector, the cache; then encode chunk by chunk with a graph, with the
loss <vector, g>. Both passes drop the same units. The cached losses of sentence-transformers do not
have the model's own losses, which are part of the second pass.
"""

from collections.abc import Mapping, Sized
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.util.distributed import all_gather_with_grad
from torch.nn import functional as F
from transformers import TrainingArguments

from modeling_condenser.packing import pack

from .arguments import with_objective
from .collator import PAD_MULTIPLE
from .objectives import OBJECTIVES
from .trainer import CondenserTrainer


def contrast(
    vectors: torch.Tensor, *, cosine: bool, temperature: float, one_way: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contrast the vectors of all processes, (S, H), of at least two pairs.

    Args:
        vectors: of pairs, rows 2i and 2i + 1.
        cosine: whether similarities are cosines; otherwise dot products, as published.
        temperature: divides similarities.
        one_way: contrast the first text of each pair with all second ones (Inverse Cloze Task), not
            every text with all others (coCondenser).

    Returns:
        () loss in nats, the mean over texts, and () share of texts nearest to their partner.
    """
    vectors = vectors.float()  # a sum of exponentials needs the precision
    if cosine:
        vectors = F.normalize(vectors, dim=-1)
    if one_way:
        scores = vectors[::2] @ vectors[1::2].T  # (S/2, S/2)
        targets = torch.arange(len(scores), device=scores.device)
    else:
        scores = (vectors @ vectors.T).fill_diagonal_(float("-inf"))  # (S, S)
        targets = torch.arange(len(scores), device=scores.device) ^ 1  # 1, 0, 3, 2, ...
    loss = F.cross_entropy(scores / temperature, targets)
    return loss, (scores.detach().argmax(dim=-1) == targets).float().mean()


class Chunk(NamedTuple):
    """Some rows of a batch, (C,) int64, as inputs of the model."""

    rows: torch.Tensor
    inputs: dict[str, Any]


def split_batch(inputs: Mapping[str, Any], chunk_size: int | None, *, packed: bool) -> list[Chunk]:
    """Split a batch of S texts into chunks, the longest texts first, so that padding is short.

    `inputs` are padded at the right, each (S, T). Without a `chunk_size` there is one chunk, of
    which the collator may have made a packed batch.
    """
    if "block_index" in inputs:
        rows = torch.arange(len(inputs["block_index"]), device=inputs["block_index"].device)
        return [Chunk(rows, dict(inputs))]
    lengths = inputs["attention_mask"].sum(dim=1)  # (S,)
    order = lengths.argsort(descending=True, stable=True)
    chunks = []
    for rows in order.split(chunk_size or len(order)):
        width = -(-int(lengths[rows[0]]) // PAD_MULTIPLE) * PAD_MULTIPLE  # for few shapes
        batch: dict[str, Any] = {name: value[rows, :width] for name, value in inputs.items()}
        chunks.append(Chunk(rows, pack(batch) if packed else batch))
    return chunks


def put_back(parts: list[torch.Tensor], chunks: list[Chunk]) -> torch.Tensor:
    """Vectors of chunks, each (C, H), in the order of the batch, (S, H)."""
    return torch.cat(parts)[torch.cat([chunk.rows for chunk in chunks]).argsort()]


class ContrastiveTrainer(CondenserTrainer):
    """Trains the objectives with a contrast, which is added to the model's own losses.

    Log entries also hold `contrastive_loss` and `contrastive_accuracy`, over the batch of all
    processes. With `cache_chunk_size` a step needs only the memory of one chunk, but a second
    forward pass of the backbone.
    """

    is_contrastive = True

    def __init__(self, model: Any, args: TrainingArguments, **kwargs: Any):
        args = with_objective(args)
        if args.gradient_accumulation_steps > 1:
            raise ValueError(
                f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, but a contrast"
                " needs the whole batch: set it to 1, and cache_chunk_size to what fits the memory."
            )
        batch = args.train_batch_size * args.world_size
        if batch < 2:
            raise ValueError(
                "The batch is one pair, without negatives: set per_device_train_batch_size to 2 or "
                "more pairs; the papers' is 1,024."
            )
        super().__init__(model, args, **kwargs)
        self.similarity = args.similarity or model.config.similarity
        model.config.similarity = self.similarity  # by which the export will compare
        if not OBJECTIVES[args.objective].is_masked:
            self.logged_losses = ("bow_loss",)
        _check_pairs(self.train_dataset, batch, "train")

    def prepare_evaluation(self, data: Any) -> Any:
        """As `CondenserTrainer`; refuses data with fewer pairs than a batch."""
        examples = super().prepare_evaluation(data)
        if not isinstance(examples, Mapping):
            _check_pairs(examples, self.args.eval_batch_size * self.args.world_size, "eval")
        return examples

    def choose_probed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """One text of each pair, because its partner says much about it; as many as fit a chunk."""
        return {name: value[: self.args.cache_chunk_size : 2] for name, value in inputs.items()}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss of a batch, with its last chunk's graph; adds the other chunks' gradients."""
        size = self.args.cache_chunk_size if model.training else None
        chunks = split_batch(inputs, size, packed=self.is_packing)
        if len(chunks) == 1:
            model_loss, vectors = self._run(model, chunks[0], num_items_in_batch)
            loss = model_loss + self._contrast_all(put_back([vectors], chunks))
            return (loss, {}) if return_outputs else loss

        parts, random_states = [], []
        with torch.no_grad():  # by the wrapped model
            for chunk in chunks:
                random_states.append(RandContext(chunk.rows))
                # A copy, because a graph of CUDA writes the next ones to the same place.
                vectors = model(**chunk.inputs, vectors_only=True).cls_late
                parts.append(vectors.float().clone())
        vectors = put_back(parts, chunks).requires_grad_()  # (S, H)
        term = self._contrast_all(vectors)
        (cache,) = torch.autograd.grad(term, vectors)

        value = surrogate = term.detach()
        for chunk, random_state in zip(chunks, random_states, strict=True):
            is_last = chunk is chunks[-1]
            # Processes exchange gradients once: in the backward pass of the last chunk.
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                with random_state:
                    model_loss, chunk_vectors = self._run(model, chunk, num_items_in_batch)
                value = value + model_loss.detach()
                surrogate = model_loss + (chunk_vectors * cache[chunk.rows]).sum()
                if not is_last:
                    self.accelerator.backward(surrogate)
        # The value of the whole loss, with the gradient of the surrogate.
        return surrogate + (value - surrogate).detach()

    def _run(
        self, model: torch.nn.Module, chunk: Chunk, num_items: torch.Tensor | int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own loss of a chunk, and its vectors (C, H), with their graph."""
        loss, outputs = super().compute_loss(
            model, chunk.inputs, return_outputs=True, num_items_in_batch=num_items
        )
        return loss, outputs["cls_late"].float()

    def _contrast_all(self, vectors: torch.Tensor) -> torch.Tensor:
        """The weighted loss of the vectors of all processes, given this one's, (S, H).

        Its gradient is the sum over processes, of which data parallelism takes the mean.
        """
        n_processes = self.accelerator.num_processes
        if n_processes > 1:
            vectors = all_gather_with_grad(vectors.contiguous())
        is_cosine = self.similarity == "cosine"
        loss, accuracy = contrast(
            vectors,
            cosine=is_cosine,
            temperature=self.args.temperature or (0.05 if is_cosine else 1.0),
            one_way=OBJECTIVES[self.args.objective].is_one_way,
        )
        model: Any = self.model
        # Equal in all processes, whose measures are summed in training.
        share = 1 / n_processes if model.training else 1
        self.add_measure("contrastive_loss", share * loss)
        self.add_measure("contrastive_accuracy", share * accuracy)
        return self.args.contrastive_weight * loss


def _check_pairs(data: Any, batch: int, purpose: str) -> None:
    if isinstance(data, Sized) and len(data) < batch:
        raise ValueError(
            f"{purpose}_dataset has {len(data)} pairs, but a batch over all processes has {batch}: "
            f"lower per_device_{purpose}_batch_size, or add text."
        )
