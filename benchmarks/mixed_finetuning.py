"""Fine-tuning with labels and distillation together, for `benchmarks.published_start`.

Batches of labelled queries (InfoNCE) are mixed with as many of queries made from the passages,
whose target over their own passage and a hard one is the teacher of `adapt` (KL divergence). Unlike
in `finetune`, queries may be as long as passages, and a batch may hold copies.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import pairwise_cos_sim

from modeling_condenser.adaptation.adapt import collect_queries
from modeling_condenser.adaptation.recipe import AdaptationRecipe, MapSettings
from modeling_condenser.adaptation.vector_map import Teacher, select_queries
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.finetuning.data import load_training_data
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.retrieval.bm25 import Bm25

TEACHER_TEMPERATURE, TEMPERATURE = MapSettings.teacher_temperature, MapSettings.temperature


def finetune_mixed(settings: Mapping[str, Any], embeddings: Path) -> str:
    """Fine-tune with the settings of `finetune`; the folder of the model.

    `embeddings` is the folder of the start's vectors of the passages.
    """
    names = set(FinetuningRecipe.__dataclass_fields__)
    recipe = FinetuningRecipe(**{k: v for k, v in settings.items() if k in names})
    training = {k: v for k, v in settings.items() if k not in names}
    training.pop("load_best_model_at_end")
    [arguments] = parse_settings(
        {**training, "report_to": "none", "save_strategy": "no", "disable_tqdm": False},
        SentenceTransformerTrainingArguments,
    )
    start = Retriever(recipe.encoder)
    labelled = load_training_data(recipe, start.contract, seed=arguments.seed).examples
    made = make_examples(recipe, start, embeddings, n=len(labelled), seed=arguments.seed)
    model = SentenceTransformer(recipe.encoder)
    contrast = losses.MultipleNegativesRankingLoss(model, scale=1 / (recipe.temperature or 1))
    distillation = losses.DistillKLDivLoss(
        model,
        pairwise_cos_sim,
        student_temperature=TEMPERATURE,
        teacher_temperature=TEACHER_TEMPERATURE,
    )
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset={"labelled": labelled, "made": made},
        loss={"labelled": contrast, "made": distillation},
    )
    trainer.train()
    folder = f"{arguments.output_dir}/model"
    model.save_pretrained(folder)
    return folder


def make_examples(
    recipe: FinetuningRecipe, start: Retriever, embeddings: Path, *, n: int, seed: int
) -> Dataset:
    """`n` queries with their passage, a hard one, and the teacher's scores of both."""
    collection = str(recipe.collection)
    passages = load_passages(collection)
    vectors = np.concatenate([*encode_collection(start, passages, embeddings).blocks()])
    queries = collect_queries(AdaptationRecipe("", collection, ""), passages)
    random = np.random.default_rng(seed)
    queries = [queries[i] for i in random.permutation(len(queries))[: 2 * n]]
    teacher = Teacher(Bm25(passages), vectors, MapSettings.bm25_weight)
    found = start.encode_queries([query.text for query in queries])
    kept = select_queries(queries, found, teacher)
    rows = []
    for i, query in enumerate(kept.queries[:n]):
        other = random.choice(kept.hard[i][kept.hard[i] != query.passage])
        both = np.array([query.passage, other])
        parts = teacher.parts([query.text], kept.vectors[i : i + 1], both)
        [label] = teacher.fuse(parts, kept.moments[i : i + 1]).tolist()
        texts = [
            start.contract.passage(passages[row]["title"], passages[row]["text"])
            for row in both.tolist()
        ]
        row = {"query": query.text, "positive": texts[0], "negative": texts[1], "label": label}
        rows.append(row)
    return Dataset.from_list(rows)
