"""How a run shows that it is alive: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, TextIO

from latent_morph.training.callbacks import History, Settings

BAR = "{desc} {percentage:3.0f}% |{bar:24}|"


class Progress:
    """A training callback. Use as a context manager, so that a bar is always closed.

    Args:
        label: What is being trained.
        stream: Where to write, standard error by default: results go to standard output.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self.stream = sys.stderr if stream is None else stream
        self.begin = time.perf_counter()
        self.shown_at = 0.0
        self.bar: Any = None

    def __enter__(self) -> "Progress":
        if self.stream.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return self
            self.bar = tqdm(
                total=100, desc=self.label, file=self.stream, leave=False, bar_format=BAR
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, history: History, settings: Settings) -> None:
        row = history.rows[-1]
        epoch = int(row["epoch"])
        elapsed = time.perf_counter() - self.begin
        left = estimate_remaining(history, settings, elapsed)
        text = f"epoch {epoch}/{settings.max_epochs}  loss {row['train_loss']:.4f}"
        if "validation_score" in row:
            text += f"  validation {row['validation_score']:.4f}"
        text += f"  {format_duration(elapsed)} so far, {format_duration(left)} left"
        if self.bar is not None:
            share = 100 * elapsed / max(elapsed + left, 1e-9)
            self.bar.bar_format = f"{BAR} {text}"
            self.bar.update(max(0.0, share - self.bar.n))
            self.bar.refresh()
        elif epoch == 1 or left == 0 or elapsed - self.shown_at >= 5:
            # A log file wants to see life, not four hundred lines of it.
            self.shown_at = elapsed
            self.stream.write(f"{self.label}  {text}\n")
            self.stream.flush()


def estimate_remaining(history: History, settings: Settings, elapsed: float) -> float:
    """Estimates seconds to the last epoch or the end of the budget, whichever is first."""
    typical = sum(row["seconds"] for row in history.rows) / len(history.rows)
    left = typical * (settings.max_epochs - len(history.rows))
    if settings.budget is not None:
        left = min(left, settings.budget - elapsed)
    return max(0.0, left)


def format_duration(seconds: float) -> str:
    """Formats 59 s, 2:05, 1:02:05."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
