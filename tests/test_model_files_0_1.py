"""Model files of version 0.1 still load, with the same predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from latent_morph import (
    DynamicsRegressor,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
)
from latent_morph.estimators.migration import upgrade

FOLDER = Path(__file__).parent / "models_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
SERIES = [(np.array(times), np.array(values)) for times, values in EXPECTED["X"]]
STARTS = [[2.0, 1.0], [0.0, 3.0]]


def load(kind, name):
    return kind.load(FOLDER / f"{name}.safetensors")


def test_classifier_of_0_1_loads():
    model = load(LatentODEClassifier, "classifier")
    assert model.encoder_options == {"layers": 1, "modes": 3, "dropout": 0.1, "pool": 2}
    assert (model.n_train_, model.n_val_) == (22, 2)
    np.testing.assert_allclose(model.predict_proba(SERIES), EXPECTED["classifier"], atol=1e-6)


def test_point_classifier_of_0_1_with_rnvp_and_gru_ode_loads():
    model = load(LatentODEPointClassifier, "points")
    assert model.encoder_options == {"ode": "linear", "ode_options": None, "bidirectional": False}
    assert model.one_label_per_series_
    np.testing.assert_allclose(model.predict_proba(SERIES), EXPECTED["points"], atol=1e-6)


def test_reconstructor_of_0_1_with_explicit_glow_loads():
    model = load(LatentODEReconstructor, "reconstructor")
    assert model.ode_options["inn"]["coupling"] == "affine"
    np.testing.assert_allclose(
        model.reconstruct(SERIES, [1.0, 5.0]), EXPECTED["reconstructor"], atol=1e-6
    )


def test_dynamics_of_0_1_with_a_goal_loads():
    model = load(DynamicsRegressor, "dynamics")
    np.testing.assert_allclose(
        model.predict(STARTS, [0.0, 0.5, 3.0, 1e6]), EXPECTED["dynamics"], atol=1e-12
    )
    np.testing.assert_allclose(model.vector_field(STARTS), EXPECTED["field"], atol=1e-10)


@pytest.mark.parametrize("name", ["classifier", "dynamics"])
def test_model_of_0_1_is_saved_in_the_present_format(tmp_path, name):
    kind = {"classifier": LatentODEClassifier, "dynamics": DynamicsRegressor}[name]
    model = load(kind, name)
    again = kind.load(model.save(tmp_path / "again.safetensors"))
    arguments = (SERIES,) if name == "classifier" else (STARTS, [0.0, 0.5, 3.0])
    np.testing.assert_array_equal(again.predict(*arguments), model.predict(*arguments))


def test_migration_renames_glow_in_the_ode_of_a_gru_ode_encoder():
    params = {
        "encoder": "gru-ode",
        "encoder_ode": "morph",
        "encoder_ode_options": {"inn": {"coupling": "glow", "blocks": 1}},
        "bidirectional": True,
    }
    config = {"params": params}
    upgrade(config, {}, 3)
    options = config["params"]["encoder_options"]["ode_options"]
    assert options["inn"] == {"coupling": "affine", "blocks": 1}
