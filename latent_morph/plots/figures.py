"""Figures that pyplot does not manage: colours, styles, notes and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from latent_morph.io.atomic import AnyPath, atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.text import Text

AxesOrFigure: TypeAlias = Any  # axes, an array of axes, or a figure

# Paul Tol's "bright" scheme: seven colours, distinct for colour-blind readers and in print.
CLASS_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
PRIMARY, SECONDARY = CLASS_COLOURS[:2]
DARK, GREY, LIGHT = "#222222", "#666666", "#D0D0D0"
SMALL_SIZE, TEXT_SIZE = 8.5, 9.5  # points
LEGEND_STYLE: dict[str, Any] = {
    "frameon": False,
    "fontsize": SMALL_SIZE,
    "labelcolor": DARK,
    "handlelength": 1.6,
    "columnspacing": 1.4,
    "borderaxespad": 0.2,
}


def annotate_source(axes_or_figure: AxesOrFigure, text: str) -> Text:
    """Puts a small note, such as "synthetic stand-in", at the lower right of the figure.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        text: The note.

    Returns:
        The note's artist.
    """
    figure = get_figure(axes_or_figure)
    style: dict[str, Any] = {"ha": "right", "fontsize": 7.5, "color": GREY, "style": "italic"}
    if figure.get_layout_engine() is not None and not figure.get_supxlabel():
        return figure.supxlabel(text, x=0.995, **style)  # the layout makes room for it
    return figure.text(0.995, 0.005, text, va="bottom", **style)


def save_figure(axes_or_figure: AxesOrFigure, path: AnyPath) -> Path:
    """Writes a PNG atomically and leaves the figure open.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        path: The file, ending in `.png`. Its folder must exist.

    Returns:
        The path written.

    Raises:
        TypeError: `axes_or_figure` is of another type.
        ValueError: `path` has another suffix.
        OSError: The folder does not exist or is not writable.
    """
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise ValueError(f"path must end in .png, got {str(path)!r}")
    figure = get_figure(axes_or_figure)
    with atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    return target


def style_axes(ax: Axes) -> None:
    """Applies the common style of spines, ticks and grid."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(LIGHT)
    ax.tick_params(color=LIGHT, labelcolor=DARK, labelsize=SMALL_SIZE, length=3)
    ax.grid(axis="y", color=LIGHT, linewidth=0.5, alpha=0.6)
    ax.set_axisbelow(True)


def get_class_colours(n: int) -> list[str]:
    """Returns one colour per class."""
    if n <= len(CLASS_COLOURS):
        return list(CLASS_COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # No palette of this size is distinct for everybody; this one at least has an order.
    return [to_hex(colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, n)]


def make_patch(colour: str, label: str) -> Any:  # noqa: ANN401
    """Makes a coloured square for a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def require_matplotlib() -> None:
    """Raises an ImportError that says what to install, if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "latent_morph[plot]"') from error


def make_figure(width: float, height: float, **padding: Any) -> Figure:  # noqa: ANN401
    """Makes a figure that pyplot does not manage, so that it need not be closed."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**padding))
    FigureCanvasAgg(figure)
    return figure


def get_figure(axes_or_figure: AxesOrFigure) -> Figure:
    """Returns the figure of axes, of an array of axes, or the figure itself."""
    require_matplotlib()
    from matplotlib.figure import Figure

    first = axes_or_figure
    if isinstance(first, (np.ndarray, list, tuple)) and np.size(first):
        first = np.ravel(np.asarray(first, dtype=object))[0]
    figure: FigureBase | None = first if isinstance(first, Figure) else None
    if figure is None:
        figure = getattr(first, "figure", None)
    if figure is not None and not isinstance(figure, Figure):
        figure = figure.figure  # a subfigure's
    if not isinstance(figure, Figure):
        raise TypeError(
            "axes_or_figure must be matplotlib axes or a figure, "
            f"got {type(axes_or_figure).__name__}"
        )
    return figure
