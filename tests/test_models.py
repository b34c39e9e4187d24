"""LatentODE: which inputs affect which outputs, and which must not."""

import pytest
import torch
from helpers import DIM, build_encoder, build_flow, perturb, states
from test_encoders import pad_batch, ragged_batch, replace_values

from latent_morph.models import LatentODE
from latent_morph.models.decoders import Decoder, PointHead, SeriesHead

HEADS = {"series": SeriesHead, "points": PointHead}


def build(head=None, reads="trajectory+context", noise_std="learned"):
    torch.manual_seed(1)
    encoder = build_encoder("gru-ode")
    last = None
    if head is not None:
        last = HEADS[head](DIM, encoder.state_dim, 4, head=reads, width=5).double()
    decoder = perturb(Decoder(DIM, 2, width=5, noise_std=noise_std))
    return LatentODE(encoder, build_flow("morph"), decoder, last)


@pytest.mark.parametrize(
    ("head", "shape"), [(None, None), ("series", (3, 4)), ("points", (3, 5, 4))]
)
def test_latent_ode_output_shapes(head, shape):
    output = build(head)(ragged_batch())
    assert output.z0.shape == (3, DIM) and output.trajectory.shape == (3, 5, DIM)
    assert output.emission.mean.shape == (3, 5, 2) and output.emission.std.shape == (2,)
    assert (None if output.logits is None else tuple(output.logits.shape)) == shape


def test_latent_ode_query_times():
    model, batch = build("points"), ragged_batch()
    times = torch.tensor([[0.9, 0.0]], dtype=torch.float64).expand(3, -1)
    output = model(batch, times)
    assert output.logits is None  # the head needs states, which belong to the batch's rows
    torch.testing.assert_close(output.trajectory[:, 1], output.z0)
    torch.testing.assert_close(output.trajectory[0, 0], model(batch).trajectory[0, 3])


def test_latent_ode_sampling_follows_generator_and_posterior():
    model, many = build(), ragged_batch()[[0] * 1000]

    def draw(seed):
        return model(many, sample=True, generator=torch.Generator().manual_seed(seed)).z0

    z0, output = draw(3), model(many)
    torch.testing.assert_close(z0, draw(3), rtol=0, atol=0)
    assert not torch.equal(z0, draw(4))
    torch.testing.assert_close(z0.mean(0), output.encoding.mean[0], rtol=0, atol=0.2)
    torch.testing.assert_close(z0.std(0), output.encoding.std[0], rtol=0.2, atol=0)
    torch.testing.assert_close(output.z0, output.encoding.mean, rtol=0, atol=0)


@pytest.mark.parametrize("head", HEADS)
def test_latent_ode_logits_ignore_padding_and_unobserved_values(head):
    model, batch = build(head), ragged_batch()
    noisy = replace_values(batch, torch.where(batch.mask, batch.values, 1e30))
    inside = batch.present if head == "points" else slice(None)
    plain = model(batch).logits[inside]
    torch.testing.assert_close(model(noisy).logits[inside], plain, rtol=0, atol=0)
    wide = model(pad_batch(batch, 4)).logits
    wide = wide[:, : batch.n_times] if head == "points" else wide
    torch.testing.assert_close(wide[inside], plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_head_on_trajectory_ignores_encoder_states(head):
    batch = ragged_batch()
    trajectory, present = states(3, 5), batch.present
    for reads, differs in (("trajectory", False), ("trajectory+context", True)):
        layer = build(head, reads).head
        size = build(head).encoder.state_dim
        one, other = (
            layer(trajectory, states(3, 5, dim=size, seed=seed), present) for seed in (1, 2)
        )
        assert torch.equal(one, other) is not differs


@pytest.mark.parametrize("head", HEADS)
def test_latent_ode_gradients_reach_every_parameter(head):
    model = build(head)
    output = model(ragged_batch(), sample=True)
    loss = output.logits.square().sum() + (output.emission.mean / output.emission.std).sum()
    (loss + output.encoding.std.sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert [name for name, p in model.named_parameters() if not p.grad.any()] == []


def test_decoder_fixed_noise_is_saved_but_not_learned():
    decoder = Decoder(DIM, 2, noise_std=0.25)
    torch.testing.assert_close(decoder(torch.zeros(1, DIM)).std, torch.tensor([0.25, 0.25]))
    assert "log_std" in decoder.state_dict()
    assert "log_std" not in dict(decoder.named_parameters())


@pytest.mark.parametrize("noise", ["guessed", 0.0, -1.0])
def test_decoder_rejects_invalid_noise_std(noise):
    with pytest.raises(ValueError, match="noise_std"):
        Decoder(DIM, 2, noise_std=noise)


def test_latent_ode_rejects_flow_of_other_latent_dim():
    with pytest.raises(ValueError, match=f"flow must have latent_dim {DIM} .* got 2"):
        LatentODE(build_encoder("gru-ode"), build_flow("linear", 2), Decoder(DIM, 2))
