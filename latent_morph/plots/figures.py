"""Figures that pyplot never hears of: colours, styles, notes and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from latent_morph.io.records import AnyPath, atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.text import Text

Drawn: TypeAlias = Any  # axes, an array of axes, or a figure

# Paul Tol's "bright": seven colours told apart by colour-blind readers, and in print.
CLASS_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
MAIN, SECOND = CLASS_COLOURS[0], CLASS_COLOURS[1]
INK, SOFT, FAINT = "#222222", "#666666", "#D0D0D0"
SMALL, TEXT = 8.5, 9.5  # points


def annotate_source(axes_or_figure: Drawn, text: str) -> Text:
    """Puts a small note, such as "synthetic stand-in", at the lower right of the figure.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        text: The note.

    Returns:
        The note's artist.
    """
    figure = figure_of(axes_or_figure)
    style: dict[str, Any] = {"ha": "right", "fontsize": 7.5, "color": SOFT, "style": "italic"}
    if figure.get_layout_engine() is not None and not figure.get_supxlabel():
        return figure.supxlabel(text, x=0.995, **style)  # the layout makes room for it
    return figure.text(0.995, 0.005, text, va="bottom", **style)


def save_figure(axes_or_figure: Drawn, path: AnyPath) -> Path:
    """Writes a PNG, whole or not at all, and leaves the figure open.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        path: The file, ending in `.png`. Its folder must exist.

    Returns:
        The path written.

    Raises:
        TypeError: `axes_or_figure` is none of these.
        ValueError: `path` ends otherwise.
        OSError: The folder is absent or not writable.
    """
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise ValueError(f"path is {str(path)!r}; wanted a name ending in .png")
    figure = figure_of(axes_or_figure)
    with atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    return target


def style_axes(ax: Axes) -> None:
    """Light spines and lines, the same in every picture."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(color=FAINT, labelcolor=INK, labelsize=SMALL, length=3)
    ax.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    ax.set_axisbelow(True)


def legend_style() -> dict[str, Any]:
    """How every legend looks."""
    return {
        "frameon": False,
        "fontsize": SMALL,
        "labelcolor": INK,
        "handlelength": 1.6,
        "columnspacing": 1.4,
        "borderaxespad": 0.2,
    }


def class_colours(n: int) -> list[str]:
    """A colour for each of n classes."""
    if n <= len(CLASS_COLOURS):
        return list(CLASS_COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # No set so large is safe for all eyes; this one is at least ordered like the classes.
    return [to_hex(colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, n)]


def patch(colour: str, label: str) -> Any:  # noqa: ANN401
    """A coloured square for a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def require_matplotlib() -> None:
    """Raises an error that says what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "latent_morph[plot]"') from error


def new_figure(width: float, height: float, **gaps: Any) -> Figure:  # noqa: ANN401
    """A figure that pyplot does not keep, so that nobody need close it."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**gaps))
    FigureCanvasAgg(figure)
    return figure


def figure_of(drawn: Drawn) -> Figure:
    """The figure that axes, an array of axes or a figure belong to."""
    require_matplotlib()
    from matplotlib.figure import Figure

    first = drawn
    if isinstance(drawn, (np.ndarray, list, tuple)) and np.size(drawn):
        first = np.ravel(np.asarray(drawn, dtype=object))[0]
    figure: FigureBase | None = first if isinstance(first, Figure) else None
    if figure is None:
        figure = getattr(first, "figure", None)
    if figure is not None and not isinstance(figure, Figure):
        figure = figure.figure  # a subfigure's
    if not isinstance(figure, Figure):
        raise TypeError(
            f"axes_or_figure is {type(drawn).__name__}; wanted matplotlib axes or a figure"
        )
    return figure
