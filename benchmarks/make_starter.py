"""Make the encoder that comes with the package from the runs that trained it.

    python -m benchmarks.make_starter RUN... OUT

A RUN is a finished run folder; each run but the first started from the one before. OUT becomes the
last run's model as a plain `BertForMaskedLM`, with its weights in float16, tokenizer and
provenance. Its model card was made at commit 48992f6 and is edited by hand since.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from benchmarks.harness import as_bert
from modeling_condenser import CondenserForMaskedLM
from modeling_condenser.encoder_files import save_tokenizer
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.files.run_folder import MODEL_FOLDER, atomic_folder
from modeling_condenser.publishing.provenance import read_provenance, write_provenance

WEIGHTS_FILE = "model.safetensors"
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # BERT's own


def main() -> None:
    """Make the folder and print the size of its weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args()
    out = make_starter(options.runs, options.out)
    print(f"{out}: {(out / WEIGHTS_FILE).stat().st_size:,} bytes of weights")


def make_starter(runs: Sequence[Path], out: Path) -> Path:
    """Write the folder of the encoder, which must not exist, completely or not at all."""
    if out.exists():
        raise ValueError(f"{out} exists: remove it first, or name another folder.")
    stages = [read_provenance(run / MODEL_FOLDER)[-1] for run in runs]
    trained = runs[-1] / MODEL_FOLDER
    model = as_bert(CondenserForMaskedLM.from_encoder(str(trained), config_changes=DROPOUT))
    tokenizer = AutoTokenizer.from_pretrained(trained)
    longest = model.config.max_position_embeddings
    with_segments = "token_type_ids" in tokenizer.model_input_names
    with atomic_folder(out) as partial:
        model.save_pretrained(partial)
        weights = load_file(partial / WEIGHTS_FILE)  # config.json still says float32
        halved = {name: tensor.half() for name, tensor in weights.items()}
        save_file(halved, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        contract = EncodingContract(longest, longest, token_type_ids=with_segments)
        save_tokenizer(tokenizer, asdict(contract), partial)
        write_provenance(partial, stages)
    return out


if __name__ == "__main__":
    main()
