"""The look of pictures: distinct lines, and a legend that hides none of them."""

from matplotlib.backends.backend_agg import FigureCanvasAgg

from modeling_condenser.publishing.pictures import GREY, draw_lines, line_styles


def test_24_lines_differ_in_colour_dashes_and_marker_and_the_baseline_alone_is_grey():
    names = [f"arm {number}" for number in range(24)]
    styles = line_styles(["bm25", *names], grey="bm25")
    looks = {(styles[n]["color"], styles[n]["linestyle"], styles[n]["marker"]) for n in names}
    assert len(looks) == 24
    assert [name for name, style in styles.items() if style["color"] == GREY] == ["bm25"]


def test_one_legend_below_all_panels_has_each_label_once(figures):
    lines = {f"a long name of arm {n}": [(0, n), (1, n)] for n in range(12)}
    draw_lines(dict.fromkeys(("one", "two", "three"), lines), x_label="steps")
    [figure] = figures
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(lines)
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    below = legend.get_window_extent(renderer)
    assert below.x0 >= 0 and below.x1 <= figure.bbox.x1
    assert all(panel.get_tightbbox(renderer).y0 >= below.y1 for panel in figure.axes)


def test_dollar_signs_in_names_are_not_read_as_formulas(figures):
    names = ["US$ {1 to $", "x$_y_z$"]  # which are no valid formulas
    lines = {name: [(0, 1), (1, 2)] for name in names}
    draw_lines({names[0]: lines}, x_label="steps")
    [legend] = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == names
