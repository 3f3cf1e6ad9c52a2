"""An encoder's int8 file beside its float32 weights: speed on one thread.

    taskset -c 1 python -m benchmarks.int8 MODEL COLLECTION [--texts 100 --queries 30]

MODEL is a folder or Hub name. Float32, sentence-transformers and int8 take turns in one process, on
queries one by one and on the first passages of the collection; the int8 file is written before.
Times are those of the processor, so other programs hardly count; the process needs one thread.
`condenser evaluate MODEL INT8,dtype=int8 COLLECTION` compares nDCG@10.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import make_parser, print_conditions, print_table, time_in_turns
from modeling_condenser import Retriever, export_encoder
from modeling_condenser.collection.load import load_collection
from modeling_condenser.files.run_folder import show_bars

_SIZES = {"texts": 100, "queries": 30, "repeats": 5}
OURS, THEIRS, INT8 = "condenser, float32", "sentence-transformers, float32", "condenser, int8"


def main() -> None:
    """Write the int8 file, and measure speed."""
    parser = make_parser(__doc__, **_SIZES)
    parser.add_argument("model")
    parser.add_argument("collection")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        int8 = export_encoder(arguments.model, Path(scratch) / "int8", onnx="int8")
        rows = measure_speed(arguments, int8)
        print_conditions(arguments, _SIZES)
        print_table(["", "ms a query", "times", "passages/s", "times"], rows)


def measure_speed(arguments, int8: Path) -> list[list]:
    """Median milliseconds of a query and passages per second of each side, and their ratios."""
    collection = load_collection(arguments.collection)
    texts = collection.passages.select(range(arguments.texts))
    queries = list(collection.queries.values())[: arguments.queries]
    ours = Retriever(arguments.model, device="cpu")
    retrievers = {OURS: ours, INT8: Retriever(int8, dtype="int8")}
    titled = [ours.contract.passage(row["title"], row["text"]) for row in texts]
    encode = partial(ours.model.encode, show_progress_bar=False)
    calls = {(THEIRS, query): partial(encode, [query]) for query in queries}
    calls |= {(THEIRS, None): partial(encode, titled)}
    for side, retriever in retrievers.items():
        calls |= {(side, query): partial(retriever.encode_queries, [query]) for query in queries}
        calls |= {(side, None): partial(retriever.encode_passages, texts)}
    with show_bars(False):
        seconds = time_in_turns(calls, repeats=arguments.repeats, clock=time.process_time)
    rows, first = [], None
    for side in (OURS, THEIRS, INT8):
        every = [s for query in queries for s in seconds[side, query]]
        milliseconds = 1000 * statistics.median(every)
        speed = len(titled) / statistics.median(seconds[side, None])
        first = first or (milliseconds, speed)
        rows.append([side, milliseconds, first[0] / milliseconds, speed, speed / first[1]])
    return rows


if __name__ == "__main__":
    main()
