"""Thins series at random, which turns regular samples into irregular ones."""

from __future__ import annotations

from numbers import Real

import numpy as np
import torch

from latent_morph.series.batch import SeriesBatch


def subsample(
    batch: SeriesBatch, keep: float, rng: np.random.RandomState, *, most: int | None = None
) -> SeriesBatch:
    """Keeps a random fraction of the rows of each case and packs them to the left.

    Args:
        batch: (N, T, C).
        keep: Fraction in (0, 1]. Case i keeps round(keep * length_i) rows, but at least one.
        rng: Source of randomness; not drawn from if everything is kept.
        most: No case keeps more rows than this.

    Returns:
        (N, T', C) with T' the largest number of rows kept.
    """
    if isinstance(keep, bool) or not isinstance(keep, Real) or not 0 < keep <= 1:
        raise ValueError(f"keep is {keep!r}; wanted a fraction above 0 and at most 1")
    if keep == 1 and (most is None or batch.n_times <= most):
        return batch
    lengths = batch.lengths.cpu().numpy()
    quota = np.maximum(np.rint(keep * lengths), 1).astype(np.int64)
    if most is not None:
        quota = np.minimum(quota, most)
    draw = rng.random_sample((batch.n_cases, batch.n_times)).astype(np.float32)
    draw[~batch.present.cpu().numpy()] = 2.0  # padding comes last in the draw
    width = int(quota.max(initial=1))
    chosen = np.argsort(draw, axis=1)[:, :width]
    # The first `quota` of the draw in order of time, then copies of the last of them as padding.
    real = np.arange(width) < quota[:, None]
    order = np.sort(np.where(real, chosen, batch.n_times), axis=1)
    last = np.take_along_axis(order, quota[:, None] - 1, axis=1)
    row = torch.from_numpy(np.where(real, order, last)).to(batch.device)
    kept = torch.from_numpy(real).to(batch.device).unsqueeze(-1)
    wide = row.unsqueeze(-1).expand(-1, -1, batch.n_channels)
    mask = batch.mask.gather(1, wide) & kept
    return SeriesBatch(
        values=batch.values.gather(1, wide).masked_fill(~mask, 0.0),
        times=batch.times.gather(1, row),
        mask=mask,
        lengths=torch.from_numpy(quota).to(batch.device),
    )
