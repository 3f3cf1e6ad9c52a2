"""Readiness of a study's models: start and arms in, tables and Figure 2 out.

Gao & Callan (2021), section 5: an encoder that is ready keeps its attention when it is fine-tuned;
one that is not must change it much.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from modeling_condenser.analysis.analyze import measure_models, write_analysis
from modeling_condenser.analysis.readiness import Instruments
from modeling_condenser.analysis.report import Analysis, entropy_table, measures_table
from modeling_condenser.analysis.run_models import single_model
from modeling_condenser.analysis.settings import Measuring
from modeling_condenser.collection.load import load_passages
from modeling_condenser.repository.curves import draw_entropies
from modeling_condenser.repository.publishable import publishable
from modeling_condenser.repository.readiness import ENTROPY_FILE, HOW_TO_READ
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import whole_file

READINESS_FOLDER = "readiness"
_START, _PRETRAINED, _FINETUNED = "start", "pre-trained", "fine-tuned"


@dataclass(frozen=True)
class ReadinessOfArms:
    """What was measured.

    Attributes:
        analysis: start, and of each arm the pre-trained and the fine-tuned model, in this order.
        arms: their names.
    """

    analysis: Analysis
    arms: tuple[str, ...]

    def entropies(self) -> dict[str, dict[str, tuple[float, ...]]]:
        """Arm -> start, pre-trained and fine-tuned -> entropy of each layer, in nats."""
        start, *rest = [readiness.entropy.layers for readiness in self.analysis.readiness]
        pairs = zip(rest[::2], rest[1::2], strict=True)
        return {
            arm: {_START: start, _PRETRAINED: before, _FINETUNED: after}
            for arm, (before, after) in zip(self.arms, pairs, strict=True)
        }


def measure_arms(
    start: str,
    arms: Mapping[str, tuple[Path, Path]],
    collection: Path,
    *,
    split: str,
    max_length: int,
) -> ReadinessOfArms:
    """Measure start and arms on a small sample of the collection, without further fine-tuning.

    Args:
        start: encoder or checkpoint that every arm started from.
        arms: name -> its pre-trained checkpoint, and its retriever.
        collection: passages to sample, queries and judgements.
        split: whose queries are judged.
        max_length: longest text in tokens.
    """
    measuring = Measuring(max_length=max_length, collection=str(collection), split=split)
    instruments = Instruments.prepare(measuring, load_passages(collection))
    models = [single_model(start, _START)]
    for arm, (pretrained, finetuned) in arms.items():
        models.append(single_model(str(pretrained), f"{arm}, {_PRETRAINED}"))
        models.append(single_model(str(finetuned), f"{arm}, {_FINETUNED}"))
    measured = measure_models(models, instruments, progress=False)
    facts = {
        "settings": publishable(asdict(measuring)),
        "measured_on": instruments.facts(),
        **describe_machine(),
    }
    return ReadinessOfArms(Analysis(measured.models, measured.readiness, facts=facts), tuple(arms))


def write_readiness(found: ReadinessOfArms, out: Path) -> str:
    """Write figures and pictures to a study's folder; what it found, as Markdown."""
    write_analysis(found.analysis, out / READINESS_FOLDER)
    panels = found.entropies()
    even = found.analysis.readiness[0].entropy.even
    with whole_file(out / ENTROPY_FILE) as file:
        file.write(draw_entropies(panels, even=even))
    changes = [
        f"{arm} {np.abs(np.subtract(lines[_FINETUNED], lines[_PRETRAINED])).mean():.3f}"
        for arm, lines in panels.items()
    ]
    facts = found.analysis.facts["measured_on"]
    return "\n\n".join(
        [
            "## Readiness",
            f"On {facts['texts']} passages, {facts['pairs']} queries and "
            f"{facts['collection']['passages']} passages to find theirs among. {HOW_TO_READ}",
            measures_table(found.analysis),
            f"![CLS attention entropy of each arm]({ENTROPY_FILE})",
            entropy_table(found.analysis),
            "By how much fine-tuning changes the entropy of a layer, in nats, mean over layers: "
            f"{', '.join(changes)}.",
        ]
    )
