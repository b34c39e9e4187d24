"""Progress of a run: a bar on a terminal, lines of text elsewhere."""

import sys
import time
from typing import Any, TextIO

from latent_morph.training.callbacks import History, Settings

BAR = "{desc} {percentage:3.0f}% |{bar:24}|"


class Progress:
    """A training callback, used as a context manager that closes the bar.

    Args:
        label: Name of the run.
        stream: Output stream; standard error by default, since results go to standard output.
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
        remaining = estimate_remaining(history, settings, elapsed)
        text = f"epoch {epoch}/{settings.max_epochs}  loss {row['train_loss']:.4f}"
        if "validation_score" in row:
            text += f"  validation {row['validation_score']:.4f}"
        text += f"  {format_duration(elapsed)} so far, {format_duration(remaining)} left"
        if self.bar is not None:
            percentage = 100 * elapsed / max(elapsed + remaining, 1e-9)
            self.bar.bar_format = f"{BAR} {text}"
            self.bar.update(max(0.0, percentage - self.bar.n))
            self.bar.refresh()
        elif epoch == 1 or remaining == 0 or elapsed - self.shown_at >= 5:
            # At most one line per five seconds, for log files.
            self.shown_at = elapsed
            self.stream.write(f"{self.label}  {text}\n")
            self.stream.flush()


def estimate_remaining(history: History, settings: Settings, elapsed: float) -> float:
    """Estimates the seconds to the last epoch or the end of the budget."""
    mean = sum(row["seconds"] for row in history.rows) / len(history.rows)
    remaining = mean * (settings.max_epochs - len(history.rows))
    if settings.budget is not None:
        remaining = min(remaining, settings.budget - elapsed)
    return max(0.0, remaining)


def format_duration(seconds: float) -> str:
    """Formats a duration as 59 s, 2:05 or 1:02:05."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
