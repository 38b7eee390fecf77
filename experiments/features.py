"""The real features: the spatial mean of layer3 of a ResNet-50 trained on ImageNet with labels, 1024 numbers an image.

Images were resized to 224 x 224 and their pixels scaled by ImageNet's mean and deviation. To measure with features of
your own, put files `data/NAME-layer3.safetensors`, NAME as in `cifar10-resnet50`, into a folder and name it with
`--shared` or the variable EXCISE_SHARED. A file holds

    x_train, x_test   uint8 (n, f), called q below: feature = (q / 255)^2 * scale
    scale             float32 (f,)
    y_train, y_test   integers (n,), labels from 0
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from experiments.record import ROOT

SHARED = Path(os.environ.get("EXCISE_SHARED") or ROOT.parent / "shared")


class MissingFeaturesError(SystemExit):
    """Ends a script with one sentence and exit code 2."""

    def __init__(self, path: Path):
        super().__init__(2)
        self.sentence = (
            f"there are no features at {path}: name the folder that holds data/ with --shared FOLDER or EXCISE_SHARED; "
            "the file must be safetensors with x_train and x_test (uint8 q: feature = (q/255)^2 * scale), scale, "
            "y_train and y_test, as experiments/features.py describes"
        )
        print(f"error: {self.sentence}", file=sys.stderr)


@dataclass(frozen=True)
class Split:
    """Features (n, f) float32 and labels (n,) int64, for training and for testing."""

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]

    def head(self, train: int, test: int) -> "Split":
        """The first examples of either side."""
        return Split(self.x_train[:train], self.y_train[:train], self.x_test[:test], self.y_test[:test])


def path_of(name: str, shared: Path = SHARED) -> Path:
    """Where the features of a data set lie."""
    return shared / "data" / f"{name}-layer3.safetensors"


def load(name: str, shared: Path = SHARED) -> Split:
    """The features called `cifar10-resnet50` or alike."""
    path = path_of(name, shared)
    if not path.exists():
        raise MissingFeaturesError(path)
    with safe_open(path, framework="numpy") as file:
        scale = file.get_tensor("scale")
        x_train, x_test = ((file.get_tensor(f"x_{s}").astype(np.float32) / 255) ** 2 * scale for s in ("train", "test"))
        y_train, y_test = (file.get_tensor(f"y_{s}").astype(np.int64) for s in ("train", "test"))
    return Split(x_train, y_train, x_test, y_test)
