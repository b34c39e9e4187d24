"""LatentODE: encoder, flow, decoder and head."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from latent_morph.encoders import Encoder, Encoding
from latent_morph.flows import Flow
from latent_morph.models.decoders import Decoder, Emission, PointHead, SeriesHead
from latent_morph.series import SeriesBatch


class LatentOutput(NamedTuple):
    """The output of the model for a batch.

    Attributes:
        encoding: The posterior over z0 and the encoder's states.
        z0: (N, D) the latent start: a sample, or the posterior's mean.
        trajectory: (N, T, D) latent states at the query times.
        emission: A distribution over (N, T, C).
        logits: (N, K) or (N, T, K), or None without a head.
    """

    encoding: Encoding
    z0: Tensor
    trajectory: Tensor
    emission: Emission
    logits: Tensor | None


class LatentODE(nn.Module):
    """Encodes a series into z0, follows the flow to the query times, and decodes each state."""

    def __init__(
        self,
        encoder: Encoder,
        flow: Flow,
        decoder: Decoder,
        head: PointHead | SeriesHead | None = None,
    ) -> None:
        super().__init__()
        if flow.latent_dim != encoder.latent_dim:
            raise ValueError(
                f"flow must have latent_dim {encoder.latent_dim} as encoder has, "
                f"got {flow.latent_dim}"
            )
        self.encoder = encoder
        self.flow = flow
        self.decoder = decoder
        self.head = head

    def forward(
        self,
        batch: SeriesBatch,
        query_times: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        sample: bool = False,
        generator: torch.Generator | None = None,
    ) -> LatentOutput:
        """Encodes `batch` and decodes it at `query_times`.

        Args:
            batch: Scaled series; z0 belongs to time 0.
            query_times: (N, Q) times to decode at; the batch's own by default. Class logits need
                the encoder's states, so that they are computed only for the batch's own times.
            query_mask: (N, Q) which of `query_times` to decode at, all by default. Of the batch's
                own times, padding is always left out.
            sample: Draw z0 from the posterior instead of taking its mean.
            generator: Source of that draw.
        """
        encoding = self.encoder(batch)
        z0 = encoding.mean
        if sample:
            noise = torch.randn(z0.shape, generator=generator, dtype=z0.dtype, device=z0.device)
            z0 = z0 + encoding.std * noise
        times = query_times
        if times is None:
            times, query_mask = batch.times, batch.present
        trajectory = self.flow(z0, times, query_mask=query_mask)
        logits = None
        if self.head is not None and query_times is None:
            logits = self.head(trajectory, encoding.states, batch.present)
        return LatentOutput(encoding, z0, trajectory, self.decoder(trajectory), logits)
