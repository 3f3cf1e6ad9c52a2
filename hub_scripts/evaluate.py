"""condenser evaluate MODEL COLLECTION: run file, measures, and a comparison with a baseline."""

import argparse
from pathlib import Path


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="condenser evaluate", description=__doc__)
    parser.add_argument("model", help="folder of a retriever, or bm25")
    parser.add_argument("collection", type=Path, help="BEIR folder")
    parser.add_argument("--split", default="test", help="whose queries to search (default: test)")
    parser.add_argument("--baseline", help="folder of a retriever, or bm25, to compare with")
    parser.add_argument("--depth", type=int, default=100, help="passages a query (default: 100)")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs/evaluation"), help="where folders go"
    )
    arguments = parser.parse_args(words)
    from modeling_condenser.retrieval.evaluate import (
        BM25,
        SystemResult,
        evaluate_system,
        report_on_card,
        system_name,
    )

    def measure(system: str) -> SystemResult:
        folder = f"{system_name(system)}-{arguments.collection.name}-{arguments.split}"
        return evaluate_system(
            system,
            arguments.collection,
            arguments.output_dir / folder,
            split=arguments.split,
            depth=arguments.depth,
        )

    result = measure(arguments.model)
    baselines = [measure(arguments.baseline)] if arguments.baseline else []
    print(f"{result.system} on {result.collection}, {result.split} queries")
    comparisons = result.compare_with(baselines[0]) if baselines else {}
    for measure_name, value in result.evaluation.means.items():
        line = f"  {measure_name:<8} {value:.4f}"
        if measure_name in comparisons:
            c = comparisons[measure_name]
            line += f"   {baselines[0].system} {c.mean_baseline:.4f}   p = {c.p_value:.4f}"
        print(line)
    if arguments.model != BM25:
        command = f"condenser evaluate {result.system} {result.collection} --split {result.split}"
        command += f" --depth {arguments.depth}"
        command += "".join(f" --baseline {baseline.system}" for baseline in baselines)
        report_on_card(arguments.model, result, baselines, commands=[command])
