"""The page of the Space: rows as JSON in, measures out."""

import json
from pathlib import Path
from typing import Any

import evaluate
import gradio  # type: ignore[import-untyped, import-not-found]

FOLDER = Path(__file__).parent
MODULE = str(FOLDER / "retrieval_measures.py")

_RUN = {"query_id": "q", "passage_ids": ["a", "b"], "scores": [0.9, 0.5]}
EXAMPLES = [
    [
        "retrieval",
        json.dumps([_RUN]),
        json.dumps([{"query_id": "q", "passage_ids": ["b", "c"], "grades": [1, 1]}]),
        "MRR@10, nDCG@10, R@100",
    ],
    [
        "answers",
        json.dumps([{**_RUN, "texts": ["Leeds is a city.", "Oslo, in Norway"]}]),
        json.dumps([{"query_id": "q", "answers": ["Oslo", "Christiania"]}]),
        "Hit@1, Hit@20",
    ],
    ["graded_pairs", "[0.1, 0.7, 0.4]", "[0.0, 5.0, 2.5]", ""],
    ["triplets", json.dumps([{"to_positive": 0.8, "to_negative": 0.3}]), "", ""],
]


def compute(configuration: str, predictions: str, references: str, measures: str) -> Any:
    """Measure what was pasted.

    Args:
        configuration: of the module.
        predictions: JSON.
        references: JSON; may be empty for triplets.
        measures: names between commas; empty for the default ones.
    """
    try:
        inputs: dict[str, Any] = {"predictions": json.loads(predictions)}
        if references.strip():
            inputs["references"] = json.loads(references)
        if measures.strip():
            inputs["measures"] = [name.strip() for name in measures.split(",")]
        return evaluate.load(MODULE, configuration).compute(**inputs)
    except (ValueError, TypeError, KeyError) as error:
        raise gradio.Error(f"{type(error).__name__}: {error}") from error


def page() -> Any:
    """The page, with an example of each configuration."""
    return gradio.Interface(
        fn=compute,
        inputs=[
            gradio.Dropdown([example[0] for example in EXAMPLES], label="configuration"),
            gradio.Textbox(lines=6, label="predictions (JSON)"),
            gradio.Textbox(lines=6, label="references (JSON)"),
            gradio.Textbox(label="measures"),
        ],
        outputs=gradio.JSON(label="values"),
        examples=EXAMPLES,
        title="Retrieval measures",
        article=(FOLDER / "README.md").read_text(encoding="utf-8").split("---", 2)[-1],
    )


if __name__ == "__main__":
    page().launch()
