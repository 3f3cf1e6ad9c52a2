"""The figure of attention entropies."""

from modeling_condenser.analysis.entropy_figure import draw_entropies
from modeling_condenser.analysis.titles import ENTROPY


def test_entropies_are_drawn_over_the_layers(figures):
    start = {f"{ENTROPY}_layer_1": 2.0, f"{ENTROPY}_layer_2": 1.0}
    end = {f"{ENTROPY}_layer_1": 1.5, f"{ENTROPY}_even": 3.0}
    picture = draw_entropies({"start": start, "end": end})
    assert picture.startswith(b"\x89PNG\r\n")
    [panel] = figures[0].axes
    assert panel.get_title() == "CLS attention entropy (nats)"
    lines = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert {label: list(values) for label, values in lines.items()} == {
        "start": [2.0, 1.0],
        "end": [1.5],
        "even attention": [3.0, 3.0],
    }
