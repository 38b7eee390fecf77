"""The scikit-learn door: a classifier on frozen features whose memory is a table of key-value pairs."""

import copy
import numbers
import warnings
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from excise.bottleneck import kernels
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.model import DECODERS, LONGEST_KEY, MOST_PAIRS, MOST_RETRIEVED, Bottleneck
from excise.bottleneck.projection import draw_projection
from excise.bottleneck.reference import Optimiser
from excise.bottleneck.values import STEPS_PER_CALL, finite_loss, finite_values
from excise.errors import InputError
from excise.features.arrays import Array, empty_array
from excise.forgetting.activations import record_activations
from excise.forgetting.exact import Recipe
from excise.forgetting.masks import unused_pairs
from excise.forgetting.requests import Request, unpack
from excise.presets import preset
from excise.unlearning import Unlearning

SOLVERS = ("adam", "sgd")
VALUE_INITS = ("zeros", "uniform", "normal")
NEVER_COPIED = ("_training", "training_codes_", "training_labels_", "training_rows_")


def _unused_need_not_be_known(model: "KeyValueClassifier") -> bool:
    """Whether `partial_fit` is honest: the pairs that no example selects are known only after all examples."""
    if model.gate_unused:
        raise AttributeError("partial_fit cannot know the pairs that no example selects: use fit, or gate_unused=False")
    return True


class KeyValueClassifier(Unlearning, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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
        Forbid pairs that no training example selected (then there is no `partial_fit`).
    keep_activations : bool
        Keep, for each class, which pairs its examples selected: a class is then forgotten without data. The log is
        personal data, and is stored with the model.
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
    training_codes_, training_labels_, training_rows_ : arrays (n, c, k) uint16, (n,) and (n,)
        Codes of the training data, their labels and their row numbers, after `fit`. They are personal data (the
        feature of an example can be reconstructed from its code): saving, pickling and copying leave them out;
        `save_training_codes` writes them to a file of their own.
    activations_ : Activations or None
        How often the training examples of each class selected each pair. Personal data, stored with the model.
    requests_ : tuple of Request
        What was asked to be forgotten, and what became of it.
    """

    classes_: Array
    bottleneck_: Bottleneck
    history_: list[float]

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
        keep_activations: bool = True,
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
        self.keep_activations = keep_activations
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
        new = copy.copy(self)  # takes the place of self at the very end: Ctrl-C leaves self as it was
        new._fit(X, y, None)
        self.__dict__ = new.__dict__
        return self

    def _fit(self, X: Any, y: Any, classes: Any) -> None:
        X, labels = self._validate(X, y, classes, reset=True)
        batch_size = batch_within(self.batch_size, len(X))
        seeds = _draw_seeds(self.random_state)
        recipe = self._recipe(seeds, batch_size)
        bottleneck = self._draw_bottleneck(X, batch_size, seeds)
        codes = self._code(bottleneck, X)
        threads = kernels.available_threads(self.n_jobs)
        values, self.history_ = recipe.train(bottleneck.values, codes, labels, None, threads, self.verbose)
        self._begin_anew(unused_pairs(codes, self.pairs) if self.gate_unused else None)
        self.recipe_ = recipe
        self.bottleneck_ = replace(bottleneck, values=values).with_mask(self.base_mask_)
        self.training_codes_, self.training_labels_ = codes, self.classes_[labels]
        self.training_rows_ = np.arange(len(X))
        if self.keep_activations:
            self.activations_ = record_activations(codes, labels, self.pairs, len(self.classes_))

    @available_if(_unused_need_not_be_known)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "KeyValueClassifier":
        """One epoch over X. The first call draws the keys from its own X; later calls only train values.

        Adam's moments go on from call to call. They start anew after `fit`, loading, copying, Ctrl-C, or a change of
        the parameters that they depend on. A call ends with a walk over the whole table: pass thousands of examples.
        """
        first = not hasattr(self, "bottleneck_")
        if first and classes is None:
            raise InputError("the first call of partial_fit needs classes: pass all labels that will ever be seen")
        new = copy.copy(self)
        X, labels = new._validate(X, y, classes, reset=first)
        batch_size = min(self.batch_size, len(X))
        if first:
            seeds = _draw_seeds(self.random_state)
            bottleneck, history = new._draw_bottleneck(X, batch_size, seeds), []
            new._begin_anew(None)
        else:
            self._refuse_forgotten(new.classes_[np.unique(labels)])
            check_layout(self.get_params(deep=False), self.bottleneck_)
            bottleneck, history = self.bottleneck_, self.history_
        codes = new._code(bottleneck, X)
        if first:
            training = _Training(
                bottleneck.values, self._optimiser(bottleneck.decoder), np.random.default_rng(seeds.order)
            )
        else:
            training = self._resume()
        loss = training.epoch(codes, labels, batch_size, kernels.available_threads(self.n_jobs))
        optimiser = self._optimiser(bottleneck.decoder)
        finite_loss(loss, optimiser)
        new.bottleneck_ = replace(bottleneck, values=finite_values(training.values, optimiser))
        new.history_ = [*history, loss]
        new._training = training
        new._note_further_training(codes, labels, first)
        self.__dict__ = new.__dict__
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

    def iterate_logits(self, X: Any) -> Iterator[tuple[int, Array]]:
        """Pairs (first row, logits (b, v) float32) of X chunk by chunk, where all of them would not fit in memory."""
        X = self._features(X)
        yield from self.bottleneck_.iterate_logits(X, kernels.available_threads(self.n_jobs), self.working_memory)

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
        X = self._features(X)
        best = np.empty(len(X), np.int64)
        threads = kernels.available_threads(self.n_jobs)
        for start, logits in self.bottleneck_.iterate_logits(X, threads, self.working_memory):
            best[start : start + len(logits)] = logits.argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels

    def with_mask(self, mask: Array | None) -> "KeyValueClassifier":
        """The same model, its arrays shared, under a mask (c, m) of pairs that may not be selected; None unmasks.

        The mask takes the place of any before it, the gate of unused pairs and all requests included: combine with
        `model.mask | mask`. Erased pairs stay masked. The training codes, personal data of whoever is to be forgotten,
        stay behind.
        """
        check_is_fitted(self)
        other = copy.copy(self)
        other.bottleneck_ = self.bottleneck_.with_mask(mask)
        if self.erased_ is not None:
            other.bottleneck_ = self.bottleneck_.with_mask(other.mask | self.erased_)
        other.base_mask_ = other.bottleneck_.mask
        other.requests_ = tuple(r for r in self.requests_ if r.state != "masked" or self._is_within(r, other.mask))
        return other

    def _is_within(self, request: Request, mask: Array) -> bool:
        """Whether a mask holds all that a request masks: then it is still forgotten."""
        assert request.mask is not None
        return not (unpack(request.mask, self.bottleneck_.keys.shape[:2]) & ~mask).any()

    @property
    def mask(self) -> Array:
        """The mask (c, m) in force, True = masked; empty where there is none."""
        check_is_fitted(self)
        mask = self.bottleneck_.mask
        return np.zeros(self.bottleneck_.keys.shape[:2], bool) if mask is None else mask

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file, whole or not at all; training codes are left out."""
        from excise.storage import save

        save(self, path)

    def save_training_codes(self, path: str | PathLike[str]) -> None:
        """Write the codes of the training data to a file of their own, which is personal data.

        After `erase` it has to be written anew: the file of before still holds the codes of what was erased.
        """
        from excise.codesfile import save_codes

        check_is_fitted(self)
        save_codes(self, path)

    def load_training_codes(self, path: str | PathLike[str]) -> None:
        """Read codes that `save_training_codes` wrote for this very model, so that it can forget exactly.

        Rows of classes that were erased since are left out. Which single rows were erased is known to no one by then:
        a file written before would bring them back.
        """
        from excise.codesfile import load_codes

        check_is_fitted(self)
        self.training_codes_, self.training_labels_, self.training_rows_ = load_codes(self, path)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _validate(self, X: Any, y: Any, classes: Any, reset: bool) -> tuple[Array, Array]:
        """Check parameters and data, set classes_; returns X (n, f) as it is, and indices into classes_ (n,)."""
        kernels.warn_if_slow()
        check_parameters(self.get_params(deep=False))
        # X stays as it is, of any numeric type: it is cast, and seen to be finite, chunk by chunk.
        X, y = validate_data(self, X, y, reset=reset, ensure_all_finite=False)
        seen = _distinct(y)
        check_classification_targets(y)
        if reset:
            self.classes_ = seen if classes is None else _distinct(classes)
        elif classes is not None and not np.array_equal(_distinct(classes), self.classes_):
            raise InputError(f"classes changed between calls of partial_fit: they were {_some(self.classes_)}")
        if len(self.classes_) < 2:
            raise InputError(f"there is only one class, {self.classes_.tolist()[0]!r}: a classifier needs at least two")
        unseen = seen[~np.isin(seen, self.classes_)]
        if len(unseen):
            raise InputError(f"label {unseen.tolist()[0]!r} was never declared: the classes are {_some(self.classes_)}")
        return X, np.searchsorted(self.classes_, y).astype(np.int64)

    def _begin_anew(self, mask: Array | None) -> None:
        """No request was made yet, and nothing is known of how the values were trained."""
        self.base_mask_, self.erased_, self.requests_ = mask, None, ()
        self.recipe_ = self.activations_ = None

    def _note_further_training(self, codes: Array, labels: Array, first: bool) -> None:
        """After an epoch on further examples: they are in the log too, and values no longer follow a recipe."""
        self.recipe_ = None
        self.requests_ = tuple(replace(r, before=None) for r in self.requests_)
        if not self.keep_activations:
            self.activations_ = None  # a log that misses examples would be trusted
        elif first or self.activations_ is not None:
            more = record_activations(codes, labels, self.pairs, len(self.classes_))
            self.activations_ = more if self.activations_ is None else self.activations_.plus(more)

    def _refuse_forgotten(self, labels: Array) -> None:
        for request in self.requests_:
            again = [label for label in request.classes if request.in_force and label in labels.tolist()]
            if again:
                raise InputError(
                    f"y has class {again[0]!r}, which request {request.id} made the model forget: leave its rows out"
                )

    def _recipe(self, seeds: "_Seeds", batch_size: int) -> Recipe:
        optimiser = self._optimiser(self.decoder)
        return Recipe(self.value_init, self.epochs, batch_size, optimiser, seeds.values, seeds.order)

    def _draw_bottleneck(self, X: Array, batch_size: int, seeds: "_Seeds") -> Bottleneck:
        """A bottleneck whose keys cover X and whose values are not trained yet."""
        projection = draw_projection(X.shape[1], self.codebooks, self.key_dim, np.random.default_rng(seeds.projection))
        keys = initialize_keys(
            X,
            projection,
            self.pairs,
            passes=self.key_epochs,
            batch_size=batch_size,
            generator=np.random.default_rng(seeds.keys),
            threads=kernels.available_threads(self.n_jobs),
            working_memory=self.working_memory,
            verbose=self.verbose,
        )
        values = self._recipe(seeds, batch_size).start((self.codebooks, self.pairs, len(self.classes_)))
        return Bottleneck(projection, keys, values, self.top_k, self.decoder)

    def _code(self, bottleneck: Bottleneck, X: Array) -> Array:
        """Codes (n, c, k) of X, in a temporary file where they outgrow `working_memory`."""
        codes = empty_array((len(X), len(bottleneck.keys), bottleneck.top_k), np.uint16, self.working_memory)
        threads = kernels.available_threads(self.n_jobs)
        return bottleneck.codes(X, codes, threads, self.working_memory, self.verbose)

    def _resume(self) -> "_Training":
        """The training that the last `partial_fit` left, which no longer belongs to self; else one that starts anew."""
        training = self.__dict__.pop("_training", None)
        optimiser = self._optimiser(self.bottleneck_.decoder)
        if isinstance(training, _Training) and training.goes_on(self.bottleneck_.values, optimiser):
            return training
        return _Training(
            self.bottleneck_.values, optimiser, np.random.default_rng(_draw_seeds(self.random_state).order)
        )

    def _optimiser(self, decoder: str) -> Optimiser:
        return Optimiser(
            solver=self.solver,
            learning_rate=self.learning_rate,
            label_smoothing=self.label_smoothing,
            gradient_clip=self.gradient_clip,
            l2=self.l2,
            decoder=decoder,
        )

    def _features(self, X: Any) -> Array:
        check_is_fitted(self)
        kernels.warn_if_slow()
        X = validate_data(self, X, reset=False, ensure_all_finite=False)
        return X  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in NEVER_COPIED}


def _distinct(labels: Any) -> Array:
    """The labels in order, each once."""
    try:
        return np.unique(labels)
    except TypeError as error:
        raise InputError(
            f"labels of y are of kinds that cannot be compared ({error}): make all of them strings, or all numbers"
        ) from error


def _some(classes: Array) -> str:
    """The classes in words, the first of them where there are many."""
    return ", ".join(map(repr, classes[:10].tolist())) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")


class _Seeds(NamedTuple):
    """Independent sources of randomness, so that a change of one part leaves the draws of the others alone."""

    projection: int
    keys: int
    values: int
    order: int


def _draw_seeds(random_state: Any) -> _Seeds:
    drawn = check_random_state(random_state).randint(0, 2**31 - 1, size=len(_Seeds._fields))
    return _Seeds(*drawn.tolist())


class _Training:
    """What goes on from one `partial_fit` to the next: Adam's moments and the order of examples."""

    def __init__(self, values: Array, optimiser: Optimiser, order: np.random.Generator):
        self.values = values  # (c, m, v) after the last epoch
        self._optimiser, self._order = optimiser, order
        self._trainer = kernels.ValueTrainer(values, optimiser)

    def goes_on(self, values: Array, optimiser: Optimiser) -> bool:
        """Whether these are the values that it left, to be trained as before."""
        return values is self.values and optimiser == self._optimiser

    def epoch(self, codes: Array, labels: Array, batch_size: int, threads: int) -> float:
        """One pass over codes (n, c, k) in random order; the mean loss."""
        order = self._order.permutation(len(codes))
        total = 0.0
        for start in range(0, len(order), STEPS_PER_CALL * batch_size):
            part = order[start : start + STEPS_PER_CALL * batch_size]
            total += self._trainer.train(codes, labels, part, batch_size, threads)
        self.values = self._trainer.values(threads)
        return total / len(codes)


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


def check_layout(params: dict[str, Any], bottleneck: Bottleneck) -> None:
    """Refuse to train on where a parameter that shaped the bottleneck was changed since."""
    for name, built in bottleneck.layout.items():
        if params[name] != built:
            raise InputError(
                f"{name} was changed to {params[name]!r} after the keys were drawn with {built!r}: "
                f"set it back, or call fit to start anew"
            )


# name: (lowest, highest)
WHOLE_NUMBERS = {
    "codebooks": (1, 65_536),
    "pairs": (1, MOST_PAIRS),
    "key_dim": (1, LONGEST_KEY),
    "top_k": (1, MOST_RETRIEVED),
    "key_epochs": (0, 10**6),
    "epochs": (0, 10**6),
    "batch_size": (1, 2**20),
}
# name: (lowest, below)
NUMBERS = {
    "learning_rate": (0.0, np.inf),
    "label_smoothing": (0.0, 1.0),
    "l2": (0.0, np.inf),
    "working_memory": (1.0, np.inf),
}
NAMES = {"value_init": VALUE_INITS, "decoder": DECODERS, "solver": SOLVERS}


def check_parameters(params: dict[str, Any]) -> None:
    """Refuse a parameter outside its range with one sentence that names the range."""
    for name, (low, high) in WHOLE_NUMBERS.items():
        value = params[name]
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not low <= int(value) <= high:
            raise InputError(f"{name} is {value!r}: it must be a whole number from {low:,} to {high:,}")
    if params["top_k"] > params["pairs"]:
        raise InputError(f"top_k is {params['top_k']}: it cannot exceed pairs, which is {params['pairs']}")
    for name, (least, bound) in NUMBERS.items():
        value = params[name]
        if not isinstance(value, numbers.Real) or not least <= float(value) < bound:
            raise InputError(f"{name} is {value!r}: it must be a number of at least {least:g} and below {bound:g}")
    clip = params["gradient_clip"]
    if clip is not None and not (isinstance(clip, numbers.Real) and 0 < float(clip) < np.inf):
        raise InputError(f"gradient_clip is {clip!r}: it must be None or a positive number")
    for name, allowed in NAMES.items():
        if params[name] not in allowed:
            raise InputError(f"{name} is {params[name]!r}: use one of {', '.join(map(repr, allowed))}")
    for name in ("gate_unused", "keep_activations"):
        if not isinstance(params[name], bool | np.bool_):
            raise InputError(f"{name} is {params[name]!r}: it must be True or False")
    n_jobs = params["n_jobs"]
    if n_jobs is not None and (not isinstance(n_jobs, numbers.Integral) or n_jobs == 0):
        raise InputError(f"n_jobs is {n_jobs!r}: use a positive number of threads, -1 for all cores, or None")
    seed = params["random_state"]
    if isinstance(seed, numbers.Integral) and not 0 <= int(seed) < 2**32:
        raise InputError(f"random_state is {seed}: it must be a whole number from 0 to {2**32 - 1:,}, or None")
