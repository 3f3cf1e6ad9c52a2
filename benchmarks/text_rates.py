"""How fast text is cut into blocks: megabytes of UTF-8 a second of one core.

python -m benchmarks.text_rates FILE.jsonl --tokenizer starter --max_length 512
"""

import argparse
import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core

from datasets import load_dataset
from transformers import AutoTokenizer

from benchmarks.harness import print_conditions
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.pretraining.data import BlockBuilder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="JSON lines with the column text")
    parser.add_argument("--tokenizer", default="starter")
    parser.add_argument("--max_length", type=int, default=512)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(find_model_folder(arguments.tokenizer))
    builder = BlockBuilder(tokenizer, max_length=arguments.max_length)
    texts = [*load_dataset("json", data_files=arguments.file, split="train")["text"]]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print_conditions(arguments, ["max_length"], megabytes=megabytes, documents=len(texts))
    started = time.process_time()  # which other work on the machine does not change much
    for first in range(0, len(texts), 256):
        chunk = texts[first : first + 256]
        builder.cut({"text": chunk}, range(len(chunk)))
    print(f"{megabytes / (time.process_time() - started):.2f} MB/s")


if __name__ == "__main__":
    main()
