"""BibTeX of the papers whose methods made a model."""

from collections.abc import Sequence

from modeling_condenser.hub.model_folder import STARTER_TITLE

from .provenance import FINETUNING, PRETRAINING, Stage

CONDENSER = """@inproceedings{gao-callan-2021-condenser,
  title = {Condenser: a Pre-training Architecture for Dense Retrieval},
  author = {Gao, Luyu and Callan, Jamie},
  booktitle = {Proceedings of EMNLP 2021},
  year = {2021}
}"""
COCONDENSER = """@inproceedings{gao-callan-2022-cocondenser,
  title = {Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval},
  author = {Gao, Luyu and Callan, Jamie},
  booktitle = {Proceedings of ACL 2022},
  year = {2022}
}"""
INVERSE_CLOZE = """@inproceedings{lee-etal-2019-latent,
  title = {Latent Retrieval for Weakly Supervised Open Domain Question Answering},
  author = {Lee, Kenton and Chang, Ming-Wei and Toutanova, Kristina},
  booktitle = {Proceedings of ACL 2019},
  year = {2019}
}"""
BAG_OF_WORDS = """@inproceedings{ma-etal-2024-drop,
  title = {Drop your Decoder: Pre-training with Bag-of-Word Prediction for Dense Passage Retrieval},
  author = {Ma, Guangyuan and Wu, Xing and Lin, Zijia and Hu, Songlin},
  booktitle = {Proceedings of SIGIR 2024},
  year = {2024}
}"""
RETROMAE = """@inproceedings{xiao-etal-2022-retromae,
  title = {{RetroMAE}: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder},
  author = {Xiao, Shitao and Liu, Zheng and Shao, Yingxia and Cao, Zhao},
  booktitle = {Proceedings of EMNLP 2022},
  year = {2022}
}"""
TSDAE = """@inproceedings{wang-etal-2021-tsdae,
  title = {{TSDAE}: Using Transformer-based Sequential Denoising Auto-Encoder for Unsupervised
           Sentence Embedding Learning},
  author = {Wang, Kexin and Reimers, Nils and Gurevych, Iryna},
  booktitle = {Findings of EMNLP 2021},
  year = {2021}
}"""
SENTENCE_BERT = """@inproceedings{reimers-gurevych-2019-sentence-bert,
  title = {Sentence-{BERT}: Sentence Embeddings using {S}iamese {BERT}-Networks},
  author = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Proceedings of EMNLP 2019},
  year = {2019}
}"""
DPR = """@inproceedings{karpukhin-etal-2020-dense,
  title = {Dense Passage Retrieval for Open-Domain Question Answering},
  author = {Karpukhin, Vladimir and Oguz, Barlas and Min, Sewon and Lewis, Patrick and Wu, Ledell
            and Edunov, Sergey and Chen, Danqi and Yih, Wen-tau},
  booktitle = {Proceedings of EMNLP 2020},
  year = {2020}
}"""
GRADIENT_CACHE = """@inproceedings{gao-etal-2021-scaling,
  title = {Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
  author = {Gao, Luyu and Zhang, Yunyi and Han, Jiawei and Callan, Jamie},
  booktitle = {Proceedings of the 6th Workshop on Representation Learning for NLP},
  year = {2021}
}"""
MARGIN_MSE = """@article{hofstatter-etal-2020-improving,
  title = {Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
           Distillation},
  author = {Hofst{\\"a}tter, Sebastian and Althammer, Sophia and Schr{\\"o}der, Michael
            and Sertkan, Mete and Hanbury, Allan},
  journal = {arXiv preprint arXiv:2010.02666},
  year = {2020}
}"""


def cite(stages: Sequence[Stage]) -> str:
    """The papers of all stages; Condenser's if nothing is recorded.

    A Condenser that others trained is recognised by the name of the encoder.
    """
    found = []
    for stage in stages:
        objective = str(stage.run.get("objective") or stage.recipe.get("objective") or "").lower()
        started = str(stage.recipe.get("encoder", "")).lower().removeprefix(STARTER_TITLE)
        if stage.name == PRETRAINING and objective == "ict":
            found.append(INVERSE_CLOZE)
        elif stage.name == PRETRAINING and objective == "tsdae":
            found.append(TSDAE)
        elif stage.name == PRETRAINING and objective != "mlm":
            found.append(CONDENSER)
        if stage.recipe.get("head_mlm_probability"):
            found.append(RETROMAE)
        if stage.recipe.get("bow_weight"):
            found.append(BAG_OF_WORDS)
        if stage.recipe.get("cache_chunk_size"):
            found.append(GRADIENT_CACHE)
        if "condenser" in started:
            found.append(CONDENSER)
        if any("cocondenser" in text.replace("-", "") for text in (objective, started)):
            found.append(COCONDENSER)
        if stage.name == FINETUNING:
            found += _cite_finetuning(stage, objective or "contrastive")
    return "\n\n".join(dict.fromkeys(found or [CONDENSER]))


def _cite_finetuning(stage: Stage, objective: str) -> list[str]:
    """The papers of the objective, and of the library that trained the model."""
    by_objective = {"contrastive": [DPR], "margin_mse": [MARGIN_MSE]}
    cached = [GRADIENT_CACHE] if stage.recipe.get("mini_batch_size") else []
    return [*by_objective.get(objective, []), *cached, SENTENCE_BERT]
