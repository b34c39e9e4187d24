"""Trajectories of known systems: equations, shapes and references."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from latent_morph.datasets import make_lorenz, make_lotka_volterra, make_robertson

MAKERS = [make_lotka_volterra, make_lorenz, make_robertson]


def values(batch):
    return batch.values.numpy()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("variant", ["standard", "printed"])
def test_system_reference_solves_its_equations(make, variant):
    bunch = make(variant=variant, random_state=0, refine=20)
    path, times = values(bunch.reference)[0], bunch.reference.times[0].numpy()
    # An implicit solver of another family, over the second half.
    half = len(times) // 2
    other = solve_ivp(
        lambda t, y: bunch.field(y),
        (times[half], times[-1]),
        path[half],
        method="Radau",
        t_eval=times[half:],
        rtol=1e-8,
        atol=1e-12,
    ).y.T
    np.testing.assert_allclose(path[half:], other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("make", MAKERS)
def test_system_data_is_every_tenth_point_of_reference(make):
    bunch = make(noise=0.0, random_state=0)
    np.testing.assert_array_equal(values(bunch.data), values(bunch.reference)[:, ::10])
    np.testing.assert_array_equal(bunch.data.times, bunch.reference.times[:, ::10])
    assert bunch.source == "synthetic" and bunch.variant == "standard"
    assert bunch.feature_names == ["x", "y", "z"]


def test_lotka_volterra_defaults():
    bunch = make_lotka_volterra(random_state=0)
    assert bunch.data.shape == (10, 71, 3) and bunch.reference.shape == (10, 701, 3)
    assert bunch.unseen.shape == (16, 701, 3)
    assert bunch.data.times[0, [0, 1, -1]].tolist() == pytest.approx([0.0, 0.1, 7.0])
    np.testing.assert_array_equal(values(bunch.reference)[1, 0], [2, 6, 6])
    noise = values(bunch.data) - values(bunch.reference)[:, ::10]
    assert noise.std() == pytest.approx(0.05, rel=0.1)
    starts, unseen = values(bunch.reference)[:, 0], values(bunch.unseen)[:, 0]
    assert (unseen >= starts.min(0)).all() and (unseen <= starts.max(0)).all()


def test_lotka_volterra_conserves_xz():
    path = values(make_lotka_volterra(random_state=0).unseen)
    product = path[..., 0] * path[..., 2]
    np.testing.assert_allclose(product, product[:, :1].repeat(701, 1), rtol=1e-7)


def test_lotka_volterra_random_state():
    first, second, third = (make_lotka_volterra(random_state=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(values(first.data), values(second.data))
    np.testing.assert_array_equal(values(first.unseen), values(second.unseen))
    assert not np.array_equal(values(first.unseen), values(third.unseen))


def test_lorenz_attractor_and_printed_fixed_point():
    chaotic = values(make_lorenz(start=(-3.1, -1.15, 8.15), interval=(0, 5)).reference)[0]
    assert np.abs(chaotic[:, 0]).max() < 25 and 0 < chaotic[:, 2].min()
    assert np.ptp(chaotic[-200:, 0]) > 10
    printed = values(make_lorenz(variant="printed", interval=(0, 20)).reference)[0]
    np.testing.assert_allclose(printed[-1], [27, 27, 27 * 27 * 3 / 8], rtol=1e-4)


def test_robertson_conserves_mass_and_printed_grows():
    standard = values(make_robertson().reference)[0]
    np.testing.assert_allclose(standard.sum(1), 1, rtol=1e-8)
    assert 1e-6 < standard[1:, 1].min() and standard[:, 1].max() < 5e-5
    assert values(make_robertson(variant="printed").reference)[0].max() > 1e4


def test_robertson_log_spacing():
    times = make_robertson(spacing="log").data.times[0].numpy()
    assert times[0] == 0 and times[-1] == pytest.approx(120) and 0 < times[1] < 1e-3


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (make_lotka_volterra, {"starts": [[1, 2]]}, r"starts must have shape \(N, 3\), got"),
        (make_lotka_volterra, {"n_unseen": 0}, "n_unseen must be at least 1, got 0"),
        (make_lorenz, {"start": [1, 2]}, r"start must have shape \(3,\), got \(2,\)"),
        (make_lorenz, {"start": [1, 2, np.nan]}, "start must be finite"),
        (make_lorenz, {"variant": "real"}, "variant must be one of standard, printed, got 'real'"),
        (make_lorenz, {"interval": (2, 2)}, "interval must be"),
        (make_robertson, {"n_times": 1}, "n_times must be at least 2, got 1"),
        (make_robertson, {"noise": -1}, "noise must be at least 0, got -1"),
        (make_robertson, {"spacing": "odd"}, "spacing must be one of even, log"),
    ],
)
def test_system_rejects_invalid_arguments(make, wrong, message):
    with pytest.raises(ValueError, match=message):
        make(**wrong)
