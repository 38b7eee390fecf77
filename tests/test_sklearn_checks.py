"""scikit-learn's own checks of an estimator, on small instances of every kind; none is expected to fail."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from excise import KeyValueClassifier

SMALL = {"codebooks": 8, "pairs": 16, "key_dim": 4, "key_epochs": 2, "epochs": 5, "batch_size": 16, "random_state": 0}


@pytest.mark.filterwarnings("ignore:fewer examples:UserWarning")
@parametrize_with_checks(
    [
        KeyValueClassifier(**SMALL),
        KeyValueClassifier(**SMALL, gate_unused=True),
        KeyValueClassifier(**SMALL | {"solver": "sgd", "learning_rate": 10.0, "top_k": 2}),
    ]
)
def test_sklearn_check(estimator: Any, check: Any) -> None:
    check(estimator)
