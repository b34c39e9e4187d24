"""AttentionEncoder: attention from reference times to the observations, and a GRU over them."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.checks import check_count
from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.nn import init_input_weights, mlp

# Scores are bounded, smoothly, so that the exponential of every one of them is a normal number.
_LARGEST_SCORE = 30.0


@final
class AttentionEncoder(Encoder):
    """Averages the observations around reference times, and runs a GRU over these.

    Reference times are evenly spread over [0, 1], the span of scaled series. At each of them
    every channel is an average of its observed values, with weights from an attention between
    learned embeddings of the two times. A bidirectional GRU runs over the reference times; its
    last states give the posterior over z0. The state at a row is interpolated linearly between
    those at the reference times around it, and constant outside [0, 1].

    This is the encoder of multi-time attention networks (mTAN; Shukla and Marlin, 2021), with
    three differences. Where theirs says whether a channel is observed at all, the GRU here is told
    which share of the attention to all rows falls on rows where the channel is observed. Scores
    are bounded. Keys start equal to queries, so that attention starts local in time.

    Args:
        n_channels: C.
        latent_dim: D.
        hidden_dim: Size of the GRU's state in one direction.
        n_reference: Number of reference times, which bounds the resolution in time.
        heads: Number of averages of each channel at each reference time.
        embed_dim: Size of the embeddings of times, a multiple of `heads`.
    """

    reference_times: Tensor

    def __init__(
        self,
        n_channels: int,
        latent_dim: int,
        hidden_dim: int = 64,
        *,
        n_reference: int = 32,
        heads: int = 2,
        embed_dim: int = 32,
    ) -> None:
        check_count("hidden_dim", hidden_dim)
        super().__init__(n_channels, latent_dim, 2 * hidden_dim)
        check_count("n_reference", n_reference, least=2)
        self.register_buffer("reference_times", torch.linspace(0.0, 1.0, n_reference))
        self.attention = _TimeAttention(embed_dim, heads)
        n_inputs = 2 * heads * n_channels  # averages and shares
        self.gru = nn.GRU(n_inputs, hidden_dim, batch_first=True, bidirectional=True)
        init_input_weights(self.gru)
        self.posterior = mlp(2 * hidden_dim, 2 * latent_dim, width=hidden_dim)

    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        times = times.to(values.dtype)
        weights = self.attention(self.reference_times, times)
        averages, shares = average_observed(weights, values, mask)
        inputs = torch.cat([averages, shares], dim=-1)  # (N, K, R, 2 C)
        states, ends = self.gru(inputs.transpose(1, 2).flatten(2))
        mean, raw_std = self.posterior(torch.cat([*ends], dim=-1)).chunk(2, dim=-1)
        return Encoding(mean, F.softplus(raw_std) + 1e-4, _interpolate(states, times))


class _TimeAttention(nn.Module):
    """Unnormalised weights of attention between times, in several heads."""

    def __init__(self, embed_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = check_count("heads", heads)
        check_count("embed_dim", embed_dim, least=2)
        if embed_dim % heads:
            raise ValueError(f"embed_dim must be a multiple of heads = {heads}, got {embed_dim}")
        self.embedding = _TimeEmbedding(embed_dim)
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        # Equal and orthogonal, so that the scores of two times start as products of parts of their
        # embeddings, which are largest near equal times: about 6 with the default sizes.
        nn.init.orthogonal_(self.query.weight, gain=math.sqrt(3.0))
        self.key.load_state_dict(self.query.state_dict())

    def forward(self, reference_times: Tensor, times: Tensor) -> Tensor:
        """Returns (N, K, R, T) weights from reference times (R,) in K heads to times (N, T)."""
        query = self.query(self.embedding(reference_times)).unflatten(-1, (self.heads, -1))
        key = self.key(self.embedding(times)).unflatten(-1, (self.heads, -1))
        scores = torch.einsum("rkd,ntkd->nkrt", query, key) / math.sqrt(query.shape[-1])
        # No maximum is subtracted, as a softmax does: it would be over all channels, and a channel
        # observed only where the weights are least would then have none.
        return torch.exp(_LARGEST_SCORE * torch.tanh(scores / _LARGEST_SCORE))


class _TimeEmbedding(nn.Module):
    """Embeds times as one affine function and sines, all with learned frequencies and phases."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        # Pairs of sine and cosine, from half a rotation to eight rotations per span.
        n_sines = embed_dim - 1
        pair = torch.arange(n_sines) // 2
        rotations = 0.5 * 16.0 ** (pair / max(1, (n_sines - 1) // 2))
        is_cosine = torch.arange(n_sines) % 2
        self.frequencies = nn.Parameter(F.pad(2 * torch.pi * rotations, (1, 0), value=1.0))
        self.phases = nn.Parameter(F.pad(0.5 * torch.pi * is_cosine, (1, 0)))

    def forward(self, times: Tensor) -> Tensor:
        """Maps times (...) to embeddings (..., E)."""
        angles = torch.addcmul(self.phases, times.unsqueeze(-1), self.frequencies)
        return torch.cat([angles[..., :1], angles[..., 1:].sin()], dim=-1)


def average_observed(weights: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Averages each channel over its observed values only.

    The result is a softmax per channel over its observed rows, computed as a quotient of two
    products of matrices: weights per channel, a tensor (N, K, R, T, C), are not formed.

    Args:
        weights: (N, K, R, T), positive and not normalised.
        values: (N, T, C).
        mask: (N, T, C).

    Returns:
        (N, K, R, C) the averages, 0 for channels without an observation, and (N, K, R, C) the
        share of the weights of all observed rows that is on rows where the channel is observed.
    """
    observed = mask.to(values.dtype)
    row_observed = mask.any(-1, keepdim=True).to(values.dtype)
    # Selected, not multiplied: a value outside the mask may be of any size.
    columns = torch.cat([torch.where(mask, values, 0.0), observed, row_observed], dim=-1)
    sums = weights @ columns.unsqueeze(1)
    n = values.shape[-1]
    weighted, channel_total, row_total = sums.split([n, n, 1], dim=-1)
    return (
        weighted / torch.where(channel_total > 0, channel_total, 1.0),
        channel_total / torch.where(row_total > 0, row_total, 1.0),
    )


def _interpolate(states: Tensor, times: Tensor) -> Tensor:
    """Interpolates states (N, R, S) at times evenly spread over [0, 1] to times (N, T)."""
    n_intervals = states.shape[1] - 1
    position = times.clamp(0.0, 1.0) * n_intervals
    left = position.floor().clamp(max=n_intervals - 1)
    fraction = (position - left).unsqueeze(-1)
    index = left.long().unsqueeze(-1).expand(-1, -1, states.shape[-1])
    return torch.lerp(states.gather(1, index), states.gather(1, index + 1), fraction)
