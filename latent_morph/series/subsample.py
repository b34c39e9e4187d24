"""Random subsampling of series, which makes regular sampling irregular."""

from __future__ import annotations

from numbers import Real

import numpy as np
import torch

from latent_morph.series.batch import SeriesBatch


def subsample(
    batch: SeriesBatch, keep: float, rng: np.random.RandomState, *, max_rows: int | None = None
) -> SeriesBatch:
    """Keeps a random fraction of the rows of each case, in order of time.

    Args:
        batch: (N, T, C).
        keep: Fraction in (0, 1]. Case i keeps round(keep * length_i) rows, but at least one.
        rng: Source of randomness; not used if everything is kept.
        max_rows: The largest number of rows that a case keeps.

    Returns:
        (N, T', C) with T' the largest number of rows kept.
    """
    if isinstance(keep, bool) or not isinstance(keep, Real) or not 0 < keep <= 1:
        raise ValueError(f"keep must be a fraction above 0 and at most 1, got {keep!r}")
    if keep == 1 and (max_rows is None or batch.n_times <= max_rows):
        return batch
    lengths = np.maximum(np.rint(keep * batch.lengths.cpu().numpy()), 1).astype(np.int64)
    if max_rows is not None:
        lengths = np.minimum(lengths, max_rows)
    n_times = int(lengths.max(initial=1))
    keys = rng.random_sample((batch.n_cases, batch.n_times)).astype(np.float32)
    keys[~batch.present.cpu().numpy()] = 2.0  # sorts padding behind every real row
    drawn = np.argsort(keys, axis=1)[:, :n_times]
    # The rows drawn in order of time; padding repeats the last of them.
    present = np.arange(n_times) < lengths[:, None]
    rows = np.sort(np.where(present, drawn, batch.n_times), axis=1)
    last = np.take_along_axis(rows, lengths[:, None] - 1, axis=1)
    row = torch.from_numpy(np.where(present, rows, last)).to(batch.device)
    index = row.unsqueeze(-1).expand(-1, -1, batch.n_channels)
    mask = batch.mask.gather(1, index) & torch.from_numpy(present).to(batch.device).unsqueeze(-1)
    return SeriesBatch(
        values=batch.values.gather(1, index).masked_fill(~mask, 0.0),
        times=batch.times.gather(1, row),
        mask=mask,
        lengths=torch.from_numpy(lengths).to(batch.device),
        static=batch.static,
    )
