"""Examples: series to learn from, with targets, labels and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from latent_morph.series.batch import SeriesBatch


@dataclass(frozen=True)
class Examples:
    """Cases to learn from: the inputs, what is to be reconstructed, labels and weights.

    Attributes:
        inputs: Scaled series, N of them.
        target: What is to be reconstructed, at its own times; None for `inputs` itself.
        labels: (N,) or (N, T) class codes, -1 for none; None without classes.
        weight: (N,) factors of the cases, 1 on average, or None.
        static: (N, S) encoded facts, or None; the table of facts in `inputs` is not used.
    """

    inputs: SeriesBatch
    target: SeriesBatch | None = None
    labels: Tensor | None = None
    weight: Tensor | None = None
    static: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: np.ndarray | slice) -> Examples:
        def select(whole: Any) -> Any:  # noqa: ANN401
            return None if whole is None else whole[index]

        return Examples(
            self.inputs[index],
            select(self.target),
            select(self.labels),
            select(self.weight),
            select(self.static),
        )

    def trim(self) -> Examples:
        """Drops the columns that are padding for every case."""
        inputs = self.inputs.trim()
        labels = self.labels
        if labels is not None and labels.ndim == 2:
            labels = labels[:, : inputs.n_times]
        target = None if self.target is None else self.target.trim()
        return Examples(inputs, target, labels, self.weight, self.static)

    def to(self, device: str) -> Examples:
        """Moves everything to `device`."""

        def move(whole: Any) -> Any:  # noqa: ANN401
            return None if whole is None else whole.to(device)

        return Examples(
            move(self.inputs),
            move(self.target),
            move(self.labels),
            move(self.weight),
            move(self.static),
        )
