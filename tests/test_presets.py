"""Presets: the table of the paper's appendix, written a second time, as it is printed."""

import pytest

from excise import PRESETS, InputError, KeyValueClassifier
from excise.estimator import check_parameters
from excise.presets import preset

DATA = ["cifar10", "cifar100", "lacuna100", "imagenet"]
PRINTED = {  # columns in the order of DATA
    "vit-b32": {
        "top_k": [1, 10, 10, 1],
        "key_dim": [8, 8, 8, 14],
        "value_init": ["normal", "zeros", "uniform", "zeros"],
        "learning_rate": [0.1, 0.3, 0.3, 0.3],
        "epochs": [74, 71, 7, 3],
    },
    "resnet50": {
        "top_k": [1, 2, 1, 1],
        "key_dim": [14, 14, 8, 14],
        "value_init": ["zeros", "uniform", "normal", "normal"],
        "learning_rate": [0.3, 0.3, 0.1, 0.3],
        "epochs": [70, 4, 1, 5],
    },
}
EVERYWHERE = {
    "codebooks": 256,
    "pairs": 4096,
    "key_epochs": 10,
    "solver": "adam",
    "batch_size": 256,
}


def test_there_is_one_for_every_column() -> None:
    assert list(PRESETS) == [f"{data}-{backbone}" for backbone in PRINTED for data in DATA]


@pytest.mark.parametrize("name", PRESETS)
def test_it_says_what_the_paper_prints(name: str) -> None:
    data, backbone = name.split("-", 1)
    column = {row: cells[DATA.index(data)] for row, cells in PRINTED[backbone].items()}
    assert preset(name) == column | EVERYWHERE


@pytest.mark.parametrize("name", PRESETS)
def test_it_makes_a_classifier(name: str) -> None:
    params = KeyValueClassifier.from_preset(name).get_params()
    check_parameters(params)
    assert params.items() >= PRESETS[name].items()


def test_the_copy_is_free_to_change() -> None:
    preset("cifar10-resnet50")["epochs"] = 1
    assert PRESETS["cifar10-resnet50"]["epochs"] == 70


def test_an_unknown_name_names_the_known() -> None:
    with pytest.raises(InputError) as caught:
        preset("cifar10")
    assert str(caught.value) == f"there is no preset 'cifar10': use one of {', '.join(PRESETS)}"
