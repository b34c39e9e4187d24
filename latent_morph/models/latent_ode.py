"""LatentODE: encoder, flow, decoder and head; Ensemble of several."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from latent_morph.encoders import Encoder, Encoding
from latent_morph.flows import Flow
from latent_morph.models.decoders import Decoder, Emission, PointHead, SeriesHead
from latent_morph.models.summary import Summary
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
    """Encodes a series into z0, follows the flow to the query times, and decodes each state.

    A head classifies the series or its time points; it may be given a summary of them.

    Encoded static facts shift mean and log standard deviation of the posterior, by a linear map
    that starts as zero, and are given to the head.

    Args:
        encoder: Maps series to a posterior over z0.
        flow: Moves z0 to other times.
        decoder: Maps latent states to channels.
        head: Maps latent states to classes; None without classes.
        summary: Maps series, or their rows, to further inputs of the head.
        static_dim: S, the number of columns of encoded facts, 0 if there are none. The head's
            `summary_dim` counts them too.
    """

    def __init__(
        self,
        encoder: Encoder,
        flow: Flow,
        decoder: Decoder,
        head: PointHead | SeriesHead | None = None,
        summary: Summary | None = None,
        *,
        static_dim: int = 0,
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
        self.summary = summary
        self.shift: nn.Linear | None = None
        if static_dim:
            # Without a bias, unknown facts, which are 0, shift nothing.
            self.shift = nn.Linear(static_dim, 2 * encoder.latent_dim, bias=False)
            nn.init.zeros_(self.shift.weight)

    def encode(self, batch: SeriesBatch, static: Tensor | None = None) -> Encoding:
        """Returns the posterior over z0, given scaled series and encoded facts (N, S)."""
        encoding = self.encoder(batch)
        self._check_static(static, len(batch))
        if self.shift is None:
            return encoding
        mean, log_std = self.shift(static).chunk(2, dim=-1)
        return encoding._replace(mean=encoding.mean + mean, std=encoding.std * log_std.exp())

    def _check_static(self, static: Tensor | None, n_cases: int) -> None:
        expected = None if self.shift is None else (n_cases, self.shift.in_features)
        got = None if static is None else tuple(static.shape)
        if got != expected:
            raise ValueError(f"static must have shape {expected}, got {got}")

    def forward(
        self,
        batch: SeriesBatch,
        query_times: Tensor | None = None,
        *,
        static: Tensor | None = None,
        query_mask: Tensor | None = None,
        sample: bool = False,
        generator: torch.Generator | None = None,
    ) -> LatentOutput:
        """Encodes `batch` and decodes it at `query_times`.

        Args:
            batch: Scaled series; z0 belongs to time 0.
            query_times: (N, Q) times to decode at; the batch's own by default. Class logits need
                the encoder's states, so that they are computed only for the batch's own times.
            static: (N, S) encoded facts, if the model was made for them.
            query_mask: (N, Q) which of `query_times` to decode at, all by default. Of the batch's
                own times, padding is always left out.
            sample: Draw z0 from the posterior instead of taking its mean.
            generator: Source of that draw.
        """
        encoding = self.encode(batch, static)
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
            summary = self._summarise(batch, static)
            logits = self.head(trajectory, encoding.states, batch.present, summary)
        return LatentOutput(encoding, z0, trajectory, self.decoder(trajectory), logits)

    def _summarise(self, batch: SeriesBatch, static: Tensor | None) -> Tensor | None:
        """Returns what the head is given of series (N, W), or of rows (N, T, W), and the facts."""
        parts = []
        if self.summary is not None:
            parts.append(self.summary(batch.values, batch.times, batch.mask))
        if static is not None and isinstance(self.head, PointHead):
            parts.append(static.unsqueeze(1).expand(-1, batch.n_times, -1))
        elif static is not None:
            parts.append(static)
        return torch.cat(parts, dim=-1) if parts else None


class Ensemble(nn.Module):
    """Latent ODEs with heads, trained apart, whose class probabilities are averaged.

    Latent states and emissions are those of the first, since each has a latent space of its own.
    """

    def __init__(self, members: Iterable[LatentODE]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def encoder(self) -> Encoder:
        """The encoder of the first member."""
        return self.members[0].encoder  # type: ignore[return-value]

    @property
    def flow(self) -> Flow:
        """The flow of the first member."""
        return self.members[0].flow  # type: ignore[return-value]

    @property
    def decoder(self) -> Decoder:
        """The decoder of the first member."""
        return self.members[0].decoder  # type: ignore[return-value]

    @property
    def shift(self) -> nn.Linear | None:
        """The map of static facts to shifts of the posterior, of the first member."""
        return self.members[0].shift  # type: ignore[return-value]

    def encode(self, batch: SeriesBatch, static: Tensor | None = None) -> Encoding:
        """Returns the posterior of the first member."""
        return self.members[0].encode(batch, static)  # type: ignore[operator]

    def forward(self, batch: SeriesBatch, *args: Any, **kwargs: Any) -> LatentOutput:  # noqa: ANN401
        """Returns the output of the first member, with the logits of all."""
        outputs = [member(batch, *args, **kwargs) for member in self.members]
        if outputs[0].logits is None:
            return outputs[0]
        return outputs[0]._replace(logits=average_logits([output.logits for output in outputs]))


def average_logits(logits: Sequence[Tensor]) -> Tensor:
    """Returns logits (..., K) of the mean probabilities of several models."""
    if len(logits) == 1:
        return logits[0]
    return torch.stack([each.log_softmax(-1) for each in logits]).logsumexp(0)
