"""PersistentEstimator: saves, pickles and exports fitted estimators."""

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from latent_morph.checks import check_device
from latent_morph.estimators.migration import upgrade
from latent_morph.io.export import Program, write_program
from latent_morph.io.model_file import UNREADABLE, limit_allocation, read_model, write_model
from latent_morph.seeding import seeded
from latent_morph.series import SeriesScaler, StaticEncoder


class PersistentEstimator(BaseEstimator):
    """Saves, loads, pickles and exports an estimator that has a `model_` and a `scaler_`.

    Only weights are stored. The network is rebuilt from the parameters it was fitted with, so that
    reading a file executes nothing but the estimator's own class.
    """

    # Classes that files may name; nothing else is imported by name.
    _loadable: ClassVar[dict[str, type["PersistentEstimator"]]] = {}

    model_: Any
    scaler_: SeriesScaler  # absent where series keep their units
    static_encoder_: StaticEncoder | None
    n_channels_: int
    n_features_in_: int
    fitted_on_table_: bool
    device: str
    _fitted_params: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        PersistentEstimator._loadable[cls.__name__] = cls

    def _new_model(self) -> nn.Module:
        """Builds the untrained network from parameters and fitted attributes."""
        raise NotImplementedError

    def _program(self) -> Program:
        """Returns the fitted model as a program for `export`."""
        raise NotImplementedError

    def _extra_config(self) -> dict[str, Any]:
        """Returns what a subclass adds to its file."""
        return {}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        """Restores what `_extra_config` returned, before the network is rebuilt."""

    def _restore_last(self, config: dict[str, Any]) -> None:
        """Restores what depends on the network."""

    def _remember_params(self) -> None:
        """Stores the parameters of the fit, since they may be changed later."""
        self._fitted_params = self.get_params(deep=False)
        if "callbacks" in self._fitted_params:
            self._fitted_params["callbacks"] = None

    def _rebuild_model(self, tensors: dict[str, Tensor]) -> nn.Module:
        """Builds the network from the parameters of the fit, with these weights."""
        estimator = type(self)(**self._fitted_params)
        estimator.__dict__.update(
            {name: value for name, value in vars(self).items() if name.endswith("_")}
        )
        with seeded(0), limit_allocation(tensors):  # draws nothing from the caller's generator
            model = estimator._new_model()
        for name, expected in model.state_dict().items():
            if name in tensors and tensors[name].dtype != expected.dtype:
                raise ValueError(f"{name} must be {expected.dtype}, got {tensors[name].dtype}")
        model.load_state_dict(tensors, assign=True)
        return model.to(self.device).eval()

    # Files

    def save(self, path: str | Path) -> Path:
        """Writes the fitted estimator to one file of numbers and text, without code.

        Parameters
        ----------
        path : str or Path
            The file, written atomically; an existing one is replaced.

        Returns
        -------
        Path
            The file.
        """
        check_is_fitted(self)
        return write_model(
            path, self.model_.state_dict(), self._make_config() | self._extra_config()
        )

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """Reads what `save` wrote.

        Parameters
        ----------
        path : str or Path
            The file. A ValueError is raised if it is truncated, changed or of a newer version.
            Nothing in it is executed.
        device : str, default="cpu"
            Device of the model, whatever it was trained on.
        """
        check_device("device", device)
        tensors, config, version = read_model(path)
        try:
            upgrade(config, tensors, version)
            kind = PersistentEstimator._loadable[config["estimator"]]
            params = config["params"] | {"device": device, "callbacks": None}
            if "class_weight" in params:
                params["class_weight"] = _pairs_to_dict(params["class_weight"])
            known = kind._get_param_names()
            estimator = kind(**{name: params[name] for name in known if name in params})
            estimator._validate_params()
            estimator._remember_params()
            estimator._restore(config)
            estimator._restore_extra(config)
            estimator.model_ = estimator._rebuild_model(tensors)
            estimator._restore_last(config)
        except UNREADABLE as problem:
            raise ValueError(f"{path} must hold a complete model, got {problem!r}") from problem
        if not isinstance(estimator, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}, got a {config['estimator']}")
        return estimator

    def export(self, path: str | Path, format: str = "onnx") -> Path:
        """Writes the fitted model as a program that runs without this package.

        Only closed forms can be exported: `encoder="morph"` and an ODE of the `morph` family with
        a linear base, or `"linear"`. The program works in the units of the data, for any number of
        series and of times; the README describes its inputs and outputs. It has no input for
        static facts: an estimator that was fitted with some is refused.

        Parameters
        ----------
        path : str or Path
            The file, written atomically; an existing one is replaced.
        format : {"onnx", "torch"}, default="onnx"
            ONNX, or a file for `torch.export.load` (name it `.pt2`).

        Returns
        -------
        Path
            The file, whose metadata describe inputs, outputs and classes.
        """
        check_is_fitted(self)
        self._check_no_static("exported")
        return write_program(path, self._program(), format)

    def _check_no_static(self, done: str) -> None:
        if self.static_encoder_ is not None:
            raise ValueError(
                f"{type(self).__name__} must be fitted without static facts to be {done}, "
                f"got {self.static_encoder_.columns_}"
            )

    def _make_config(self) -> dict[str, Any]:
        """Returns what a file holds beside the weights."""
        params = dict(self._fitted_params)
        for name, value in params.items():
            if callable(value):
                raise ValueError(f"{name} must be a registered name to be saved, got a function")
        if not isinstance(params.get("random_state"), (int, np.integer, type(None))):
            params["random_state"] = None
        params["class_weight"] = _dict_to_pairs(params.get("class_weight"))
        return {
            "estimator": type(self).__name__,
            "params": params,
            "scaler": self.scaler_.state() if hasattr(self, "scaler_") else None,
            "static": None if self.static_encoder_ is None else self.static_encoder_.state(),
            "n_channels": self.n_channels_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": getattr(self, "feature_names_in_", None),
            "fitted_on_table": self.fitted_on_table_,
        }

    def _restore(self, config: dict[str, Any]) -> None:
        """Restores what `_make_config` returned, except parameters."""
        self.n_channels_ = config["n_channels"]
        self.n_features_in_ = config["n_features_in"]
        self.fitted_on_table_ = config["fitted_on_table"]
        if config["feature_names_in"] is not None:
            self.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
        if config["scaler"] is not None:
            self.scaler_ = SeriesScaler.from_state(config["scaler"])
        static = config.get("static")  # older files lack it
        self.static_encoder_ = None if static is None else StaticEncoder.from_state(static)

    # Pickle, joblib and skops

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "model_" in state:
            weights = self.model_.state_dict()
            state["model_"] = {name: value.cpu().numpy() for name, value in weights.items()}
        if "scaler_" in state:
            state["scaler_"] = self.scaler_.state()
        if state.get("static_encoder_") is not None:
            state["static_encoder_"] = state["static_encoder_"].state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "scaler_" in state:
            self.scaler_ = SeriesScaler.from_state(state["scaler_"])
        if state.get("static_encoder_") is not None:
            self.static_encoder_ = StaticEncoder.from_state(state["static_encoder_"])
        if "model_" in state:
            weights = {name: torch.as_tensor(value) for name, value in state["model_"].items()}
            self.model_ = self._rebuild_model(weights)


def _dict_to_pairs(mapping: Any) -> Any:  # noqa: ANN401
    """Converts a dict to pairs, since JSON would convert its keys to strings."""
    if not isinstance(mapping, dict):
        return mapping
    return [
        [key.item() if isinstance(key, np.generic) else key, value]
        for key, value in mapping.items()
    ]


def _pairs_to_dict(pairs: Any) -> Any:  # noqa: ANN401
    return dict(pairs) if isinstance(pairs, list) else pairs
