"""The hyper-parameters of the base models in the paper's appendix, by data set and backbone."""

from typing import Any

from excise.errors import InputError

# Table 'Hyperparameters used for training the base DKVB models'. Its 'Random' and 'Uniform Random' are uniform on
# [0, 1), its 'Gaussian Random' is standard normal.
_ROWS = {
    # name: (top_k, key_dim, value_init, learning_rate, epochs)
    "cifar10-vit-b32": (1, 8, "normal", 0.1, 74),
    "cifar100-vit-b32": (10, 8, "zeros", 0.3, 71),
    "lacuna100-vit-b32": (10, 8, "uniform", 0.3, 7),
    "imagenet-vit-b32": (1, 14, "zeros", 0.3, 3),
    "cifar10-resnet50": (1, 14, "zeros", 0.3, 70),
    "cifar100-resnet50": (2, 14, "uniform", 0.3, 4),
    "lacuna100-resnet50": (1, 8, "normal", 0.1, 1),
    "imagenet-resnet50": (1, 14, "normal", 0.3, 5),
}

PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "codebooks": 256,
        "pairs": 4096,
        "key_dim": key_dim,
        "top_k": top_k,
        "key_epochs": 10,
        "value_init": value_init,
        "solver": "adam",
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 256,
    }
    for name, (top_k, key_dim, value_init, learning_rate, epochs) in _ROWS.items()
}


def preset(name: str) -> dict[str, Any]:
    """The parameters of one row of the paper's table."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}: use one of {', '.join(PRESETS)}")
    return dict(PRESETS[name])
