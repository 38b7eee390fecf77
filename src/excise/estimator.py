"""The scikit-learn door: a classifier on frozen features whose memory is a table of key-value pairs."""

import copy
import numbers
import warnings
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from excise.bottleneck import kernels
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.model import DECODERS, LONGEST_KEY, MOST_PAIRS, MOST_RETRIEVED, Bottleneck
from excise.bottleneck.projection import draw_projection
from excise.bottleneck.reference import Array, Optimiser
from excise.bottleneck.values import empty_codes, initial_values, train_values
from excise.errors import InputError
from excise.presets import preset

SOLVERS = ("adam", "sgd")
VALUE_INITS = ("zeros", "uniform", "normal")


class KeyValueClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Discrete key-value bottleneck with a mean decoder, trained on features of a frozen backbone.

    A feature is projected into `codebooks` small heads; each head selects its `top_k` nearest of `pairs` keys; the
    mean of the values of the selected pairs is the prediction. Projection and keys are frozen before values are
    trained, so an example's code never changes, and a class can be forgotten by masking the pairs it selects.

    Parameters
    ----------
    codebooks, pairs, key_dim, top_k : int
        Layout: codebooks, pairs per codebook (at most 65,535), size of a key (1 to 64), pairs retrieved per codebook
        (1 to 32). The defaults are the paper's.
    key_epochs : int
        Passes over the features that initialise the keys, without labels.
    value_init : {"zeros", "uniform", "normal"}
        Values before training.
    decoder : {"mean", "sum"}
        How the values retrieved in one codebook are combined; codebooks are always averaged.
    solver : {"adam", "sgd"}
        Adam moves values exactly as a dense Adam over the whole table would.
    epochs, learning_rate, batch_size, label_smoothing, gradient_clip, l2
        Training of the values; `gradient_clip` bounds the L2 norm of the gradient of the whole table, `l2` adds
        l2 * values to it (every step then walks the whole table, which is slower).
    gate_unused : bool
        Forbid pairs that no training example selected.
    random_state : int, RandomState or None
        The same integer gives the same bytes, whatever the number of threads.
    n_jobs : int or None
        Threads; None uses all cores that this process may use.
    verbose : int
        1 shows progress on standard error.
    working_memory : float
        MiB that fitting and coding may take beyond the inputs, the table and the outputs. Training codes that would
        take more are kept in an unnamed temporary file.

    Attributes
    ----------
    classes_ : array of shape (v,)
    bottleneck_ : Bottleneck
        Projection (f, c, d), keys (c, m, d), values (c, m, v) and mask (c, m).
    history_ : list of float
        Mean training loss of each epoch.
    training_codes_, training_labels_ : arrays (n, c, k) uint16 and (n,) int64
        Codes of the training data and indices into `classes_`, after `fit`. They are personal data: they stay in
        memory and are never saved with the model.
    """

    def __init__(
        self,
        codebooks: int = 256,
        pairs: int = 4096,
        key_dim: int = 8,
        top_k: int = 1,
        key_epochs: int = 10,
        value_init: str = "zeros",
        decoder: str = "mean",
        solver: str = "adam",
        epochs: int = 10,
        learning_rate: float = 0.3,
        batch_size: int = 256,
        label_smoothing: float = 0.0,
        gradient_clip: float | None = None,
        l2: float = 0.0,
        gate_unused: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        working_memory: float = 256,
    ):
        self.codebooks = codebooks
        self.pairs = pairs
        self.key_dim = key_dim
        self.top_k = top_k
        self.key_epochs = key_epochs
        self.value_init = value_init
        self.decoder = decoder
        self.solver = solver
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.label_smoothing = label_smoothing
        self.gradient_clip = gradient_clip
        self.l2 = l2
        self.gate_unused = gate_unused
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.working_memory = working_memory

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "KeyValueClassifier":
        """A classifier with the paper's hyper-parameters for one data set and backbone, as `cifar10-resnet50`."""
        return cls(**{**preset(name), **overrides})

    def fit(self, X: Any, y: Any) -> "KeyValueClassifier":
        """Initialise the keys on X (n, f), code X once, and train the values on the codes."""
        X, labels = self._start(X, y, None, reset=True)
        batch_size = batch_within(self.batch_size, len(X))
        threads = kernels.available_threads(self.n_jobs)
        self._draw_bottleneck(X, batch_size, threads)
        codes = empty_codes((len(X), self.codebooks, self.top_k), self.working_memory)
        self.bottleneck_.codes(X, codes, threads, self.working_memory)
        values, self.history_ = train_values(
            self.bottleneck_.values,
            codes,
            labels,
            self._optimiser(),
            epochs=self.epochs,
            batch_size=batch_size,
            generator=self._order,
            threads=threads,
            verbose=self.verbose,
        )
        self.training_codes_, self.training_labels_ = codes, labels
        mask = unused_pairs(codes, self.pairs) if self.gate_unused else None
        self._replace(values=values, mask=mask)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "KeyValueClassifier":
        """One pass over X. The first call draws the keys from its own X; later calls only train values.

        Adam's moments go on from call to call; after `fit`, loading or unpickling they start anew.
        """
        first = not hasattr(self, "bottleneck_")
        if first and classes is None:
            raise InputError("the first call of partial_fit needs classes: pass all labels that will ever be seen")
        X, labels = self._start(X, y, classes, reset=first)
        batch_size = min(self.batch_size, len(X))
        threads = kernels.available_threads(self.n_jobs)
        if first:
            self._draw_bottleneck(X, batch_size, threads)
            self.history_ = []
        if getattr(self, "_trainer", None) is None:
            self._trainer = kernels.ValueTrainer(self.bottleneck_.values, self._optimiser())
        for name in ("training_codes_", "training_labels_"):  # they no longer hold all that the values were trained on
            self.__dict__.pop(name, None)
        if not hasattr(self, "_order"):
            self._order = np.random.default_rng(_seeds(self.random_state)[3])
        total = 0.0
        for start, codes in self.bottleneck_.iterate_codes(X, threads, self.working_memory):
            part = labels[start : start + len(codes)]
            total += self._trainer.train(codes, part, self._order.permutation(len(part)), batch_size, threads)
        self.history_.append(total / len(X))
        self._replace(values=self._trainer.values(threads))
        return self

    def codes(self, X: Any, out: Array | None = None) -> Array:
        """Codes (n, c, k) uint16 of X: the pairs it selects, nearest first; 65,535 where no live pair was left.

        `out` takes them where they do not fit in memory, as a uint16 memory map of that shape.
        """
        X = self._features(X)
        return self.bottleneck_.codes(X, out, kernels.available_threads(self.n_jobs), self.working_memory)

    def logits(self, X: Any) -> Array:
        """Logits (n, v) float32, one column per class also where there are two."""
        X = self._features(X)
        return self.bottleneck_.logits(X, kernels.available_threads(self.n_jobs), self.working_memory)

    def decision_function(self, X: Any) -> Array:
        """Logits (n, v); for two classes their difference (n,), as scikit-learn has it."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, v)."""
        logits = self.logits(X).astype(np.float64)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        p: Array = e / e.sum(axis=1, keepdims=True)
        return p

    def predict(self, X: Any) -> Array:
        """The most likely class of each row; the first of equals."""
        logits = self.logits(X)
        labels: Array = self.classes_[logits.argmax(axis=1)]
        return labels

    def with_mask(self, mask: Array | None) -> "KeyValueClassifier":
        """The same model, its arrays shared, under a mask (c, m) of pairs that may not be selected; None unmasks."""
        check_is_fitted(self)
        other = copy.copy(self)
        other.bottleneck_ = self.bottleneck_.with_mask(mask)
        return other

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file, whole or not at all; training codes are left out."""
        from excise.storage import save

        save(self, path)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _start(self, X: Any, y: Any, classes: Any, reset: bool) -> tuple[Array, Array]:
        """Validate parameters and data; set classes_; return features as they are and label indices."""
        check_parameters(self.get_params(deep=False))
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float32, np.float64, np.float16],
            ensure_all_finite=False,  # checked chunk by chunk, in bounded memory
        )
        check_classification_targets(y)
        if classes is None and not reset:
            classes = self.classes_
        if classes is not None and not reset and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes changed between calls of partial_fit: they were {list(self.classes_)}")
        known = np.unique(y if classes is None else classes)
        if len(known) < 2:
            raise InputError(
                f"y has only one class, {known.tolist()[0]!r}: a classifier needs examples of at least two"
            )
        labels = np.searchsorted(known, y)
        unseen = known[np.minimum(labels, len(known) - 1)] != y
        if unseen.any():
            raise InputError(f"label {y[unseen].tolist()[0]!r} was never declared: known classes are {known.tolist()}")
        self.classes_ = known
        if reset:
            for name in ("bottleneck_", "training_codes_", "training_labels_", "_trainer"):
                self.__dict__.pop(name, None)
        return X, labels.astype(np.int64)

    def _draw_bottleneck(self, X: Array, batch_size: int, threads: int) -> None:
        projection_seed, key_seed, value_seed, order_seed = _seeds(self.random_state)
        projection = draw_projection(
            X.shape[1], self.codebooks, self.key_dim, np.random.default_rng(projection_seed)
        )
        keys = initialize_keys(
            X,
            projection,
            self.pairs,
            passes=self.key_epochs,
            batch_size=batch_size,
            generator=np.random.default_rng(key_seed),
            threads=threads,
            working_memory=self.working_memory,
            verbose=self.verbose,
        )
        shape = (self.codebooks, self.pairs, len(self.classes_))
        values = initial_values(shape, self.value_init, np.random.default_rng(value_seed))
        self.bottleneck_ = Bottleneck(projection, keys, values, self.top_k, self.decoder)
        self._order = np.random.default_rng(order_seed)

    def _replace(self, values: Array, mask: Array | None = None) -> None:
        b = self.bottleneck_
        self._trainer = getattr(self, "_trainer", None)
        self.bottleneck_ = Bottleneck(
            b.projection, b.keys, values, b.top_k, b.decoder, b.mask if mask is None else mask
        )

    def _optimiser(self) -> Optimiser:
        return Optimiser(
            solver=self.solver,
            learning_rate=self.learning_rate,
            label_smoothing=self.label_smoothing,
            gradient_clip=self.gradient_clip,
            l2=self.l2,
            decoder=self.decoder,
        )

    def _features(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(
            self, X, reset=False, dtype=[np.float32, np.float64, np.float16], ensure_all_finite=False
        )
        return X  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_trainer"}


def _seeds(random_state: Any) -> list[int]:
    """Four independent seeds: projection, keys, values, order of examples."""
    return [int(s) for s in check_random_state(random_state).randint(0, 2**31 - 1, size=4)]


def batch_within(batch_size: int, examples: int) -> int:
    """The batch size, or all examples where there are fewer, said in a warning."""
    if examples < batch_size:
        warnings.warn(
            f"fewer examples ({examples}) than batch_size ({batch_size}): every step uses all of them; "
            f"set batch_size to at most {examples}",
            UserWarning,
            stacklevel=3,
        )
    return min(batch_size, examples)


def unused_pairs(codes: Array, pairs: int) -> Array:
    """The mask (c, m) of the pairs that no code selected."""
    from excise.forgetting.masks import activation_counts

    return activation_counts(codes, pairs) == 0


def check_parameters(params: dict[str, Any]) -> None:
    """Refuse a parameter outside its range with one sentence that names the range."""
    whole = {
        "codebooks": (1, 65_536),
        "pairs": (1, MOST_PAIRS),
        "key_dim": (1, LONGEST_KEY),
        "top_k": (1, MOST_RETRIEVED),
        "key_epochs": (0, 10**6),
        "epochs": (0, 10**6),
        "batch_size": (1, 2**20),
    }
    for name, (low, high) in whole.items():
        value = params[name]
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(f"{name} is {value!r}: it must be a whole number from {low:,} to {high:,}")
    if params["top_k"] > params["pairs"]:
        raise InputError(f"top_k is {params['top_k']}: it cannot exceed pairs, which is {params['pairs']}")
    for name, low, high in (
        ("learning_rate", 0.0, np.inf),
        ("label_smoothing", 0.0, 1.0),
        ("l2", 0.0, np.inf),
        ("working_memory", 1.0, np.inf),
    ):
        value = params[name]
        if not isinstance(value, numbers.Real) or not low <= value < high:
            raise InputError(f"{name} is {value!r}: it must be a number of at least {low:g} and below {high:g}")
    clip = params["gradient_clip"]
    if clip is not None and not (isinstance(clip, numbers.Real) and 0 < clip < np.inf):
        raise InputError(f"gradient_clip is {clip!r}: it must be None or a positive number")
    for name, allowed in (("value_init", VALUE_INITS), ("decoder", DECODERS), ("solver", SOLVERS)):
        if params[name] not in allowed:
            raise InputError(f"{name} is {params[name]!r}: use one of {', '.join(map(repr, allowed))}")


