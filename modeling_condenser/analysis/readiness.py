"""Measure the readiness of a model: attention entropy, head, geometry and retrieval."""

import copy
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedModel

from modeling_condenser.collection.collection import Collection
from modeling_condenser.encoder_parts import n_positions, pool
from modeling_condenser.encoding.batches import make_batches, tokenize_texts
from modeling_condenser.encoding.opening import stated_similarity
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.model_files import model_folder
from modeling_condenser.model_files.contract import CONTRACT_FILE, EncodingContract, Similarity
from modeling_condenser.modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.counter_random import random_keys
from modeling_condenser.pretraining.data import with_keys
from modeling_condenser.pretraining.probe import probe
from modeling_condenser.publishing.export import write_repository
from modeling_condenser.publishing.training_log import PREFIX
from modeling_condenser.retrieval.dense import search_exact_arrays
from modeling_condenser.runs.progress import show_bars
from modeling_condenser.runs.recipe import read_recipe

from .recipe import Measuring
from .sample import Sample, load_small

TOKENS_PER_BATCH = 2048
# Environment variables of distributed training.
_OF_SEVERAL = re.compile("RANK|WORLD_SIZE|LOCAL_|MASTER_|ACCELERATE_|TORCHELASTIC_|FSDP_")


@dataclass(frozen=True)
class Subject:
    """An opened model."""

    encoder: Any  # the plain encoder
    tokenizer: Any
    max_length: int  # longest text in tokens
    contract: EncodingContract  # how it encodes
    condenser: CondenserForPreTraining | None = None  # the whole model, if it has a head
    retriever: Retriever | None = None  # of an export or an encoder; None: a checkpoint

    @classmethod
    def of_model(
        cls, model: Any, tokenizer: Any, *, max_length: int, similarity: Similarity | None = None
    ) -> "Subject":
        """From a `CondenserForPreTraining` or `CondenserForMaskedLM` in memory."""
        encoder = model.condenser.encoder
        longest = min(max_length, n_positions(encoder) or max_length)
        # By name, because remote code has classes of its own.
        condenser = model if hasattr(model, "run_head") else None
        contract = EncodingContract.of_checkpoint(model.config, longest=longest)
        names = ("query_max_length", "passage_max_length")
        stated: Any = {name: min(getattr(contract, name), longest) for name in names}
        contract = replace(contract, **stated, similarity=similarity or contract.similarity)
        return cls(encoder, tokenizer, longest, contract, condenser)

    @classmethod
    def open(cls, name: str | Path, *, max_length: int) -> "Subject":
        """Open a pre-training checkpoint, an export, a retriever or any encoder.

        If the files of an encoder do not state its pooling, it is CLS.
        """
        folder = model_folder.find_model_folder(name)
        if model_folder.is_checkpoint(folder):
            classes = model_folder.read_config(folder).get("architectures", ())
            is_plain = CondenserForMaskedLM.__name__ in classes
            opened: Any = CondenserForMaskedLM if is_plain else CondenserForPreTraining
            device = "cuda" if torch.cuda.is_available() else "cpu"
            model = opened.from_pretrained(folder).eval().to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            how: Any = {"max_length": max_length, "similarity": stated_similarity(folder)}
            return cls.of_model(model, tokenizer, **how)
        files = (CONTRACT_FILE, model_folder.MODULES_FILE)
        states_pooling = any((folder / name).is_file() for name in files)
        retriever = Retriever(folder, pooling=None if states_pooling else "cls")
        transformer: Any = retriever.model[0]
        longest = min(max_length, n_positions(transformer.model) or max_length)
        own, names = retriever.contract, ("query_max_length", "passage_max_length")
        retriever.contract = replace(own, **{n: min(getattr(own, n), longest) for n in names})
        tokenizer, contract = retriever.model.tokenizer, retriever.contract
        return cls(transformer.model, tokenizer, longest, contract, retriever=retriever)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        """Batches of texts of similar length on the model's device, each with its texts' rows."""
        tokens = tokenize_texts(self.tokenizer, texts, max_length=self.max_length)
        batches = make_batches(tokens, tokenizer=self.tokenizer, token_budget=TOKENS_PER_BATCH)
        for rows, batch in batches:
            yield rows, {name: part.to(self.encoder.device) for name, part in batch.items()}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_queries(texts)
        return self._encode(list(map(self.contract.query, texts)))

    def encode_passages(self, passages: Dataset | Sequence[str]) -> np.ndarray:
        """Vectors of texts, or of passages with columns `title` and `text`, (N, D) float32."""
        if self.retriever is not None:
            return self.retriever.encode_passages(passages)
        titles, texts = [""] * len(passages), passages
        if isinstance(passages, Dataset):
            titles, texts = passages["title"], passages["text"]
        return self._encode(list(map(self.contract.passage, titles, texts)))

    @torch.no_grad()
    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of texts with their prompts, of the model in memory."""
        contract = self.contract
        vectors = np.empty((len(texts), self.encoder.config.hidden_size), np.float32)
        for rows, batch in self.batches(texts):
            late, mask = self.encoder(**batch).last_hidden_state, batch["attention_mask"]
            found = pool(late, contract.pooling, attention_mask=mask)[:, 0].float()  # (B, H)
            is_cosine = contract.similarity == "cosine"
            vectors[rows] = (F.normalize(found, dim=1) if is_cosine else found).cpu().numpy()
        return vectors


@show_bars(False)  # because a training may show its own
def measure_readiness(subject: Subject, sample: Sample) -> dict[str, float]:
    """Measure a model, without a change to its weights, its mode or global random states.

    Returns:
        An entry of a training log; `modeling_condenser.publishing.training_log` explains its names.
    """
    started = time.perf_counter()
    found: dict[str, float] = {}
    model = subject.condenser or subject.encoder
    was_training = model.training
    model.eval()
    try:
        if subject.condenser is not None:
            masked = mask_texts(subject, sample.texts, seed=sample.measuring.sample_seed)
            probed = probe(subject.condenser, masked)
            found |= {name: probed[name] for name in ("head_loss", "zero_cost", "swap_cost")}
        batches = (batch for _, batch in subject.batches(sample.texts))
        layers, even = measure_attention_entropy(subject.encoder, batches)
        found |= {"entropy": fmean(layers), "entropy_even": even}
        found |= {f"entropy_layer_{k}": entropy for k, entropy in enumerate(layers, start=1)}
        encode_first = subject.encode_queries if sample.small else subject.encode_passages
        first = encode_first(sample.matches["query"][:])
        found["alignment"] = alignment(first, subject.encode_passages(sample.matches))
        found["uniformity"] = uniformity(subject.encode_passages(sample.texts))
        if sample.small is not None:
            found |= measure_retrieval(subject, sample.small, "zero_shot")
        if sample.measuring.labels:
            found |= measure_few_shot(subject, sample.measuring)
    finally:
        model.train(was_training)
    found["seconds"] = round(time.perf_counter() - started, 2)
    return {f"{PREFIX}{name}": value for name, value in found.items()}


def measure_retrieval(subject: Subject, small: Collection, prefix: str) -> dict[str, float]:
    """Search a small collection by the model's similarity: prefix_measure -> mean over queries."""
    if subject.retriever is not None:
        subject.retriever.check_inner_product()
    run = search_exact_arrays(
        subject.encode_passages(small.passages),
        small.passages["_id"][:],
        query_embeddings=subject.encode_queries(list(small.queries.values())),
        query_ids=list(small.queries),
        depth=101,  # for R@100, if the query itself is a passage
    )
    means = evaluate_run(small.qrels, run).means
    return {f"{prefix}_{measure}": mean for measure, mean in means.items()}


def measure_few_shot(subject: Subject, measuring: Measuring) -> dict[str, float]:
    """Fine-tune a model's encoder on few labels, and measure its retrieval.

    This happens in a new process, because it would disturb a training in this one.
    """
    recipe = read_recipe("finetune/contrastive")
    for name in ("query_max_length", "passage_max_length"):
        recipe[name] = min(recipe[name], subject.max_length)
    settings = {
        **recipe,
        "disable_tqdm": True,
        "seed": measuring.sample_seed,
        "subset_seed": measuring.sample_seed,
        **measuring.finetuning,
        "collection": measuring.collection,
        "split": "train",
        "train_size": measuring.labels,
        "use_cpu": subject.encoder.device.type == "cpu",
    }
    with tempfile.TemporaryDirectory(prefix="condenser-few-shot-") as scratch:
        folder = Path(scratch, "encoder")
        folder.mkdir()
        # Copies, because saving changes configuration and tokenizer.
        encoder, tokenizer = copy.deepcopy(subject.encoder), copy.deepcopy(subject.tokenizer)
        write_repository(folder, encoder, tokenizer, subject.contract, [])
        settings |= {"encoder": str(folder), "output_dir": str(Path(scratch, "run"))}
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            call = pool.submit(_finetune_and_measure, settings, measuring, subject.max_length)
            return call.result()


@show_bars(False)
def _finetune_and_measure(
    settings: dict[str, Any], measuring: Measuring, max_length: int
) -> dict[str, float]:
    for name in filter(_OF_SEVERAL.match, list(os.environ)):
        del os.environ[name]
    with redirect_stdout(sys.stderr):  # the training log
        retriever = Subject.open(finetune(settings), max_length=max_length)
    return measure_retrieval(retriever, load_small(measuring), "few_shot")


@torch.no_grad()
def measure_attention_entropy(
    encoder: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]
) -> tuple[list[float], float]:
    """Measure CLS attention entropy: Gao & Callan (2021), section 5 and Figure 2.

    Args:
        encoder: in evaluation mode. Its attention back-end is changed and restored.
        batches: `input_ids` and `attention_mask`, each (B, T).

    Returns:
        The entropy of the CLS row of each layer, from the first to the last, and that of even
        attention to all tokens, in nats, mean over heads and texts.
    """
    entropies, even = [], []
    back_end = encoder.config._attn_implementation
    try:
        encoder.set_attn_implementation("eager")
        for batch in batches:
            mask = batch["attention_mask"]
            attentions = encoder(**batch, output_attentions=True).attentions
            if not attentions or any(layer is None for layer in attentions):
                raise ValueError(
                    f"A {encoder.config.model_type} encoder does not return the attention of its "
                    "layers, so its entropy cannot be measured."
                )
            layers = [cls_entropies(layer, mask) for layer in attentions]
            entropies.append(torch.stack(layers, dim=1).cpu())  # (B, layers)
            even.append(mask.sum(1).double().log().cpu())  # (B,)
    finally:
        encoder.set_attn_implementation(back_end)
    return torch.cat(entropies).mean(0).tolist(), torch.cat(even).mean().item()


def cls_entropies(attention: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Entropy of each text's CLS row over its tokens, in nats, mean over heads: (B,) float64.

    Args:
        attention: (B, heads, T, T); each row is a distribution.
        mask: (B, T), 1 for tokens and 0 for padding. The first token is CLS.
    """
    first = mask.argmax(dim=1)  # (B,) not 0 with padding on the left
    rows = attention[torch.arange(len(attention)), :, first].double()  # (B, heads, T)
    rows = rows * mask[:, None]
    rows = rows / rows.sum(-1, keepdim=True)
    return torch.special.entr(rows).sum(-1).mean(-1)


def mask_texts(
    subject: Subject, texts: Sequence[str], *, seed: int
) -> list[dict[str, torch.Tensor]]:
    """Make masked batches of texts; the masks depend on the seed and a text's place only."""
    tokenizer, max_length = subject.tokenizer, subject.max_length
    model: Any = subject.condenser
    collator = CondenserDataCollator(
        tokenizer,
        max_length=max_length,
        head_mlm_probability=model.config.head_mlm_probability,
        prompts=[subject.contract.passage_prompt],
    )
    ids = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=max_length)
    blocks = with_keys(ids["input_ids"], random_keys(seed, np.arange(len(texts))))
    n = max(TOKENS_PER_BATCH // max_length, 1)
    batches = [collator(blocks[first : first + n]) for first in range(0, len(blocks), n)]
    device = subject.encoder.device
    return [{name: part.to(device) for name, part in batch.items()} for batch in batches]


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean of |x - y|^2 over matching rows, normalised (Wang & Isola 2020, alpha = 2): 0 to 4."""
    return float((_unit(first) - _unit(second)).square().sum(1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of normalised rows (Wang & Isola, t = 2)."""
    return float(torch.pdist(_unit(vectors)).square().mul(-2).exp().mean().log())


def _unit(vectors: np.ndarray) -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.asarray(vectors, dtype=np.float64)), dim=1)
