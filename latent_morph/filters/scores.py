"""NormalScores: maps values to the quantiles of a normal distribution, channel by channel."""

import torch
from torch import Tensor, nn

_TAILS = (0.0, 0.002, 0.01)
_N_INNER = 26
LEVELS = (
    *_TAILS,
    *torch.linspace(0.03, 0.97, _N_INNER).tolist(),
    *(1 - level for level in reversed(_TAILS)),
)


class NormalScores(nn.Module):
    """A monotone, piecewise linear map for each channel, which makes training values normal.

    Skewed values spread evenly, and nothing lies further out than the extremes of training.

    Args:
        n_channels: C.
    """

    knots: Tensor
    scores: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.zeros(len(LEVELS), n_channels, dtype=torch.float32))
        self.register_buffer("scores", torch.zeros(len(LEVELS), n_channels, dtype=torch.float32))

    def fit(self, values: Tensor, mask: Tensor) -> None:
        """Learns the maps from values (N, T, C) where the mask is True."""
        ordered = torch.where(mask, values, torch.inf).flatten(0, 1).t().contiguous()
        ordered = ordered.sort(1).values  # (C, N T)
        count = mask.flatten(0, 1).sum(0).unsqueeze(1)
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        index = (levels * (count - 1).clamp(min=0)).round().long()
        knots = ordered.gather(1, index)
        # Equal values share their ranks.
        below = torch.searchsorted(ordered, knots)
        up_to = torch.searchsorted(ordered, knots, right=True)
        share = (below + up_to).double() / (2 * count.clamp(min=1))
        scores = torch.special.ndtri(share).to(values.dtype)
        known = count > 0
        self.knots = torch.where(known, knots, 0.0).t().contiguous()
        self.scores = torch.where(known, scores, 0.0).t().contiguous()

    def forward(self, values: Tensor) -> Tensor:
        """Maps values (..., C)."""
        result = self.scores[0].expand(values.shape)
        widths = self.knots.diff(dim=0)
        per_width = torch.where(widths > 0, 1 / torch.where(widths > 0, widths, 1.0), 0.0)
        for knot, factor, rise in zip(
            self.knots, per_width, self.scores.diff(dim=0), strict=False
        ):
            result = result + rise * ((values - knot) * factor).clamp(0.0, 1.0)
        return result
