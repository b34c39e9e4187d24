"""FilterBankLearner: classifiers on the filter bank, which no gradient trains."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from latent_morph.experiments.classification import (
    Classifications,
    choose_channels,
    compute_metrics,
    draw_confusion,
    draw_example,
)
from latent_morph.experiments.learner import Learner, Summary
from latent_morph.experiments.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class FilterBankLearner(Learner[Any, Classifications]):
    """A learner for `FilterBankClassifier` and `FilterBankPointClassifier`."""

    reserved: ClassVar[frozenset[str]] = Learner.reserved | {"head"}

    def predict(self, estimator: Any, problem: Problem) -> Classifications:  # noqa: ANN401
        probabilities = np.asarray(estimator.predict_proba(problem.test_X))
        return Classifications(estimator.classes_, probabilities)

    def metrics(self, predictions: Classifications, problem: Problem) -> dict[str, float]:
        return compute_metrics(predictions, problem)

    def figures(
        self,
        predictions: Classifications,
        problem: Problem,
        estimator: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        from latent_morph import plots

        _, values = problem.test_X[0].to_ragged()[0]
        (channel,) = choose_channels(values, 1)
        return {
            "confusion": draw_confusion(predictions, problem),
            "example": draw_example(predictions, problem),
            "filters": plots.plot_filter_bank(
                estimator,
                problem.test_X,
                channel=channel,
                channel_name=problem.channel_names[channel],
            ),
        }

    def summarise(self, estimator: Any, problem: Problem) -> Summary:  # noqa: ANN401
        return Summary(
            n_train=len(problem.train_X),
            n_validation=0,
            n_parameters=sum(part.numel() for part in estimator.model_.head.buffers()),
            validation={},
        )
