"""The kernels against MiniRocket's definition on regular grids, and their biases."""

from itertools import combinations

import numpy as np
import pytest
import torch

from latent_morph.filters import Kernels, interpolate
from latent_morph.filters.bank import choose_lags
from latent_morph.filters.biases import draw_biases
from latent_morph.series import as_series

pytestmark = pytest.mark.usefixtures("float64")


def build(n_channels=1, lags=(1, 2, 5), n_biases=3, step=1.0, seed=0, varies=None):
    kernels = Kernels(n_channels, len(lags), n_biases).double()
    varies = torch.ones(n_channels, dtype=torch.bool) if varies is None else varies
    kernels.draw(step, torch.tensor(lags), varies, torch.Generator().manual_seed(seed))
    return kernels


def noise(n_cases, n_times, n_channels=1, seed=0):
    return np.random.default_rng(seed).standard_normal((n_cases, n_times, n_channels))


def read(X):
    batch = as_series(X, dtype=torch.float64)
    return interpolate(batch.values, batch.times, batch.mask)


def group_of(kernels, index):
    """The group of a kernel and its place in it."""
    return divmod(index, kernels.weights.shape[-1])


def minirocket(x, weights, lag):
    """Sum over j of w[j] x[t + (j - 4) lag], constant beyond the ends."""
    padded = np.pad(x, 4 * lag, mode="edge")
    return sum(w * padded[j * lag : j * lag + len(x)] for j, w in enumerate(weights))


@pytest.mark.parametrize("n_channels", [1, 4])
def test_kernels_equal_minirocket_on_a_regular_grid(n_channels):
    X = noise(3, 40, n_channels)
    kernels = build(n_channels)
    grid, inside = kernels._resample(read(X))
    assert inside.sum(1).tolist() == [40] * 3
    for i, lag in enumerate(kernels.lags.tolist()):
        outputs = kernels.outputs(grid, i)
        for kernel in range(0, 84, 7):
            group, place = group_of(kernels, kernel)
            weights = kernels.weights[i, group, :, place].numpy()
            for case in range(3):
                mixed = X[case] @ kernels.mixtures[i, :, group].numpy()
                expected = minirocket(mixed, weights, lag)
                np.testing.assert_allclose(outputs[case, :40, kernel], expected, atol=1e-12)


def test_kernels_of_each_lag_are_the_84_of_minirocket():
    chosen = {frozenset(places) for places in combinations(range(9), 3)}
    for n_channels in (1, 3):
        kernels = build(n_channels)
        for weights in kernels.weights:
            rows = weights.transpose(1, 2).reshape(84, 9)
            assert {frozenset((row == 2).nonzero().flatten().tolist()) for row in rows} == chosen
            assert ((rows == 2) | (rows == -1)).all() and (rows.sum(1) == 0).all()


def test_kernels_give_zero_for_constants():
    kernels = build(2)
    X = [(np.array([0.0, 3.3, 20.0]), np.array([[5.0, -2.0]] * 3))]
    grid, _ = kernels._resample(read(X))
    for i in range(3):
        assert kernels.outputs(grid, i).abs().max() < 1e-12


def test_kernels_pool_outputs_over_the_grid():
    """Share and position above the bias, and the share of changes, by their definitions."""
    n_times = 30
    X = noise(5, n_times)
    kernels = build(n_biases=2)
    kernels.fit(kernels.sample(read(X), 1000), torch.Generator().manual_seed(1))
    features = kernels(read(X))
    names = kernels.names()
    assert features.shape == (5, len(names)) and len(set(names)) == 3 * 3 * 2 * 84
    middle = (n_times - 1) / 2
    place = (np.arange(n_times) - middle) / (2 * middle)
    for i, lag in enumerate(kernels.lags.tolist()):
        for bias in range(2):
            for kernel in (0, 11, 83):
                weights = kernels.weights[i, 0, :, kernel].numpy()
                threshold = kernels.biases[i, bias, kernel].item()
                change_threshold = kernels.change_biases[i, bias, kernel].item()
                for case in range(5):
                    # One point more, at which the series has ended.
                    outputs = minirocket(np.pad(X[case, :, 0], (0, 1), "edge"), weights, lag)
                    above = outputs[:-1] > threshold
                    expected = {
                        "share above bias": np.mean(above),
                        "position above bias": np.mean(above * place),
                        "share of change above bias": np.mean(np.diff(outputs) > change_threshold),
                    }
                    for pool, value in expected.items():
                        column = names.index(f"lag {i} kernel {kernel}: {pool} {bias}")
                        np.testing.assert_allclose(features[case, column], value, atol=1e-12)


def test_kernels_have_no_rounding_errors_where_outputs_are_always_above():
    kernels = build().float()
    kernels.biases -= 1e9
    interpolant = read([noise(1, n)[0] for n in (7, 99, 1003)])
    features = kernels(interpolant._replace(values=interpolant.values.float()))
    shares, positions, _ = features.chunk(3, dim=1)
    assert (shares == 1).all() and (positions == 0).all()


def test_kernels_see_lags_in_time_not_in_rows():
    """A series sampled twice as densely, linear in between, has the same outputs."""
    X = noise(2, 30)
    dense = []
    for values in X:
        times = np.arange(59) / 2
        dense.append((times, np.interp(times, np.arange(30), values[:, 0])))
    kernels = build()
    kernels.fit(kernels.sample(read(X), 1000), torch.Generator().manual_seed(1))
    torch.testing.assert_close(kernels(read(dense)), kernels(read(X)), atol=1e-12, rtol=0)
    # And in rows of irregular times, which contain the regular ones.
    rng = np.random.default_rng(0)
    irregular = []
    for values in X:
        times = np.sort(np.concatenate([np.arange(30.0), rng.uniform(0, 29, 20)]))
        irregular.append((times, np.interp(times, np.arange(30), values[:, 0])))
    torch.testing.assert_close(kernels(read(irregular)), kernels(read(X)), atol=1e-12, rtol=0)


def test_kernels_read_mixtures_of_the_channels():
    kernels = build(5, lags=tuple(range(1, 40)))
    mixed = kernels.mixtures.sum(1)  # number of channels in each mixture
    assert ((kernels.mixtures == 0) | (kernels.mixtures == 1)).all()
    assert set(mixed.flatten().tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert (mixed == 1).sum() > (mixed == 5).sum()  # log-uniform
    assert (kernels.mixtures.sum((0, 2)) > 0).all()
    many = build(30, lags=tuple(range(1, 40))).mixtures.sum(1)
    assert many.min() == 1 and many.max() == 9
    # A channel outside the mixture of a group does not change its outputs.
    X = noise(1, 30, 5)
    other = X.copy()
    other[..., 2] += 1.0 + noise(1, 30)[..., 0]
    (left, _), (right, _) = kernels._resample(read(X)), kernels._resample(read(other))
    for i in range(5):
        change = (kernels.outputs(left, i) - kernels.outputs(right, i)).abs().amax((0, 1))
        uses = kernels.mixtures[i, 2].repeat_interleave(84 // 6) > 0
        assert ((change > 1e-9) == uses).all()


def test_kernels_mix_only_channels_that_vary():
    varies = torch.tensor([True, False, True, False, True])
    kernels = build(5, lags=tuple(range(1, 40)), varies=varies)
    assert torch.equal(kernels.mixtures.sum((0, 2)) > 0, varies)
    assert kernels.mixtures.sum(1).amin() == 1


@pytest.mark.parametrize(
    ("n_steps", "expected"),
    [(0.0, [1]), (1.0, [1]), (8.0, [1]), (16.0, [1, 2]), (80.0, [1, 2, 3, 4, 5, 7, 8, 10])],
)
def test_choose_lags_from_one_step_to_the_span(n_steps, expected):
    assert choose_lags(n_steps).tolist() == expected


def test_kernels_limit_the_grid_of_a_series_of_absurd_length():
    """Only its first part is seen, and its batch-mates do not notice."""
    X = noise(4, 30)
    kernels = build()
    kernels.fit(kernels.sample(read(X), 1000), torch.Generator().manual_seed(1))
    absurd = (np.array([0.0, 1.0, 1e12]), np.array([0.0, 1.0, -1.0]))
    series = [(np.arange(30.0), values[:, 0]) for values in X]
    features = kernels(read([*series, absurd]))
    torch.testing.assert_close(features[:4], kernels(read(X)), atol=1e-12, rtol=0)
    assert features[4].isfinite().all()


# Biases


def test_biases_are_quantiles_of_the_outputs():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(1000, 7, generator=generator)
    biases = draw_biases(outputs, 500, generator)
    assert biases.shape == (500, 7)
    shares = (outputs.unsqueeze(0) > biases.unsqueeze(1)).double().mean(1)  # (500, 7)
    # At random levels, the shares above are uniform.
    for level in (0.1, 0.5, 0.9):
        assert (shares.quantile(level, dim=0) - level).abs().max() < 0.08


def test_biases_stay_away_from_repeated_outputs():
    outputs = torch.cat([torch.zeros(90, 3), torch.linspace(-1, 1, 30).unsqueeze(1).expand(-1, 3)])
    biases = draw_biases(outputs, 50, torch.Generator().manual_seed(0))
    assert biases.abs().min() > 1e-4 * outputs.std()


def test_biases_of_constant_outputs_and_of_none():
    generator = torch.Generator().manual_seed(0)
    assert (draw_biases(torch.full((5, 2), 3.0), 4, generator) == 3.0).all()
    assert (draw_biases(torch.zeros(0, 2), 4, generator) == 0.0).all()
