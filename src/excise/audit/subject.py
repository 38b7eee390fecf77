"""The models that a report compares on one set of test examples: before, after, trivial controls and exact re-fits."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from excise.bottleneck import kernels
from excise.bottleneck.model import Bottleneck
from excise.errors import InputError
from excise.estimator import KeyValueClassifier
from excise.evaluation import label_indices
from excise.features.arrays import Array, empty_array
from excise.forgetting.controls import matched_mask, random_mask
from excise.forgetting.exact import Recipe
from excise.forgetting.masks import activation_counts
from excise.progress import track

DRAWS = 3  # of every random control


class Skip(Exception):  # noqa: N818 - it is no error
    """What cannot be measured; its text says why."""


class Training(NamedTuple):
    """What an exact re-fit starts from."""

    codes: Array  # (n, c, k)
    labels: Array  # (n,) indices of classes
    rows: Array  # (n,) numbers in the training data


class Subject:
    """A model with requests in force, test examples, and the logits of all that it is compared with."""

    def __init__(
        self,
        model: KeyValueClassifier,
        X: Any,
        y: Any,
        before: KeyValueClassifier | None,
        train: tuple[Any, Any] | None,
        random_state: Any,
        verbose: int,
    ):
        check_is_fitted(model)
        self.model, self.given, self.verbose = model, before, verbose
        self.requests = [request for request in model.requests_ if request.in_force]
        if not self.requests:
            raise InputError("there is nothing to report: no request is in force; forget something first")
        self.threads, self.memory = kernels.available_threads(model.n_jobs), model.working_memory
        self.classes: list[Any] = model.classes_.tolist()
        self.forgotten = sorted(model._forgotten())  # indices of classes
        self.X, self.labels = labelled(model, X, y)
        self.forget = np.isin(self.labels, self.forgotten)  # (n,) which test examples
        self._check_test_data()
        self.train = None if train is None else labelled(model, *train)
        self.skipped: list[dict[str, str]] = []
        self.seconds: dict[str, float] = {}
        self._seeds = check_random_state(random_state).randint(2**31, size=4).tolist()
        self._training: Training | str | None = None  # a text says why there is none
        self.before: Bottleneck | None = None
        try:
            self.before = _before(model, before)
        except Skip as reason:
            self.skip("before", str(reason))
        self.oracle: Bottleneck | None = None
        self.logits: dict[str, list[Array]] = {}  # (n, v) by name, one for each draw
        self._measure()

    def skip(self, what: str, why: str) -> None:
        """Note that a part of the report is missing."""
        self.skipped.append({"what": what, "why": why})

    @property
    def best(self) -> dict[str, Array]:
        """Predicted classes (n,) by name, of the first draw where there are several."""
        return {name: tables[0].argmax(axis=1) for name, tables in self.logits.items()}

    @property
    def groups(self) -> dict[str, Array]:
        """Which test examples (n,) are of retained, and which of forgotten classes."""
        return {"retain": ~self.forget, "forget": self.forget}

    def newly_masked(self) -> Array:
        """The mask (c, m) of what the requests masked."""
        after = self.model._mask_in_force()
        return after if self.before is None or self.before.mask is None else after & ~self.before.mask

    def recipe(self) -> Recipe:
        """How the values were trained."""
        for owner in self._owners():
            if owner.recipe_ is not None:
                found: Recipe = owner.recipe_
                return found
        raise Skip("how the values were trained is not known (partial_fit follows no recipe), so it cannot be repeated")

    def training(self) -> Training:
        """Codes of the training data under all keys, looked for once."""
        if self._training is None:
            try:
                self._training = self._find_training()
            except Skip as reason:
                self._training = str(reason)
        if isinstance(self._training, str):
            raise Skip(self._training)
        return self._training

    def retained(self, labels: Array, rows: Array) -> Array:
        """Which training examples (n,) no request in force forgets."""
        keep: Array = ~np.isin(labels, self.forgotten)
        for request in self.requests:
            keep &= ~np.isin(rows, request.rows or [])
        return keep

    # -- parts --------------------------------------------------------------------------------------------------------

    def _check_test_data(self) -> None:
        missing = [label for label in self.forgotten if not (self.labels == label).any()]
        lacks = f"class {self.classes[missing[0]]!r}, which was forgotten" if missing else "a retained class"
        if missing or self.forget.all():
            raise InputError(
                f"X has no example of {lacks}: a report needs test examples of all forgotten and of retained classes"
            )

    def _owners(self) -> list[KeyValueClassifier]:
        return [self.model] if self.given is None else [self.model, self.given]

    def _measure(self) -> None:
        """The logits of every model that there is."""
        steps: dict[str, Callable[[], list[Array]]] = {
            "before": lambda: [self._logits(self._need_before())],
            "after": lambda: [self._logits(self.model.bottleneck_)],
            "knock_out": self._knock_out,
            "random_mask": self._random_masks,
            "matched_mask": self._matched_masks,
            "oracle": self._oracle,
            "oracle_other_order": self._other_oracle,
            "oracle_new_keys": self._oracle_with_new_keys,
        }
        for name, find in steps.items():
            try:
                self.logits[name] = find()
            except Skip as reason:
                self.skip(f"accuracy.{name}", str(reason))

    def _logits(self, bottleneck: Bottleneck) -> Array:
        table = empty_array((len(self.X), len(self.classes)), np.float32, self.memory)
        with track("report", len(self.X), "examples", self.verbose) as progress:
            for start, part in bottleneck.iterate_logits(self.X, self.threads, self.memory):
                table[start : start + len(part)] = part
                progress.advance(len(part))
        return table

    def _need_before(self) -> Bottleneck:
        if self.before is None:
            raise Skip("the model before the requests is not known")
        return self.before

    def _knock_out(self) -> list[Array]:
        """The logits before, those of the forgotten classes at minus infinity."""
        self._need_before()
        if not self.forgotten:
            raise Skip("no class was forgotten, only single examples")
        table = self.logits["before"][0].copy()
        table[:, self.forgotten] = -np.inf
        return [table]

    def _random_masks(self) -> list[Array]:
        live, masked = self._to_control()
        generator = np.random.default_rng(self._seeds[0])
        return [self._under(random_mask(live, int(masked.sum()), generator)) for _ in range(DRAWS)]

    def _matched_masks(self) -> list[Array]:
        live, masked = self._to_control()
        totals, generator = self._totals(), np.random.default_rng(self._seeds[1])
        return [self._under(matched_mask(masked, live, totals, generator)) for _ in range(DRAWS)]

    def _to_control(self) -> tuple[Array, Array]:
        """Pairs (c, m) that were live before, and those that the requests masked."""
        before, masked = self._need_before(), self.newly_masked()
        if not masked.any():
            raise Skip("no pair was masked, so there is no mask to compare with")
        return np.ones(masked.shape, bool) if before.mask is None else ~before.mask, masked

    def _under(self, mask: Array) -> Array:
        before = self._need_before()
        return self._logits(before.with_mask(mask if before.mask is None else mask | before.mask))

    def _totals(self) -> Array:
        """How often all training examples selected each pair: (c*m,)."""
        for owner in reversed(self._owners()):  # the model before knows of more
            if owner.activations_ is not None:
                totals: Array = owner.activations_.totals
                return totals
        try:
            codes = self.training().codes
        except Skip:
            raise Skip("it needs the log of activations or the codes of the training data; there is neither") from None
        return activation_counts(codes, self.model.bottleneck_.keys.shape[1]).reshape(-1)

    # -- exact re-fits ------------------------------------------------------------------------------------------------

    def _oracle(self) -> list[Array]:
        began = time.perf_counter()
        self.oracle = self._refit(self.recipe())
        self.seconds["oracle"] = time.perf_counter() - began
        return [self._logits(self.oracle)]

    def _other_oracle(self) -> list[Array]:
        if self.oracle is None:
            raise Skip("there is no exact re-fit to repeat")
        recipe = dataclasses.replace(self.recipe(), order_seed=self._seeds[2], values_seed=self._seeds[3])
        return [self._logits(self._refit(recipe))]

    def _oracle_with_new_keys(self) -> list[Array]:
        if self.train is None:
            raise Skip("new keys need the training data: pass it as train")
        began = time.perf_counter()
        X, labels = self.train
        keep = self.retained(labels, np.arange(len(labels)))
        fresh = clone(self.model).set_params(**self.model.bottleneck_.layout, keep_activations=False, verbose=0)
        if not isinstance(fresh.random_state, int | np.integer):
            fresh.set_params(random_state=self._seeds[2])
        fresh._fit(np.asarray(X)[keep], self.model.classes_[labels[keep]], self.model.classes_)
        self.seconds["oracle_new_keys"] = time.perf_counter() - began
        return [self._logits(fresh.bottleneck_)]

    def _refit(self, recipe: Recipe) -> Bottleneck:
        """Values trained again without what was forgotten, under the same keys."""
        source, training = self._source(), self.training()
        keep = self.retained(training.labels, training.rows).nonzero()[0]
        if not len(keep):
            raise Skip("none of the training data is retained")
        shape: Any = source.values.shape
        codes, labels, _ = training
        values, _ = recipe.train(recipe.start(shape), codes, labels, keep, self.threads, self.verbose)
        return dataclasses.replace(source, values=values, _prepared=source._prepared)

    def _source(self) -> Bottleneck:
        """The keys that an exact re-fit stands on, all of them, and their mask before the requests."""
        if self.before is not None:
            return self.before
        if self.model.erased_ is None or not self.model.erased_.any():
            return self.model.bottleneck_.with_mask(self.model.base_mask_)
        raise Skip("keys were erased, and an exact re-fit needs all of them: pass the model before the requests")

    def _find_training(self) -> Training:
        source = self._source()
        for owner in self._owners():
            if hasattr(owner, "training_codes_") and _same_keys(owner, source):
                labels = label_indices(self.model.classes_, owner.training_labels_)
                return Training(owner.training_codes_, labels, owner.training_rows_)
        if self.train is None:
            raise Skip("it needs the codes of the training data, and there are none: pass the data as train")
        X, labels = self.train
        codes = empty_array((len(X), len(source.keys), source.top_k), np.uint16, self.memory)
        source.codes(X, codes, self.threads, self.memory, self.verbose)
        return Training(codes, labels, np.arange(len(X)))


def labelled(model: KeyValueClassifier, X: Any, y: Any) -> tuple[Array, Array]:
    """Features (n, f) and indices of classes (n,)."""
    X, y = model._features(X), np.asarray(y)
    if len(X) != len(y):
        raise InputError(f"there are {len(X)} examples and {len(y)} labels: pass as many of one as of the other")
    return X, label_indices(model.classes_, y)


def _before(model: KeyValueClassifier, given: KeyValueClassifier | None) -> Bottleneck:
    """The bottleneck as it was before the requests in force."""
    b = model.bottleneck_
    if given is not None:
        check_is_fitted(given)
        other = given.bottleneck_
        if not np.array_equal(given.classes_, model.classes_) or (other.axes, other.layout) != (b.axes, b.layout):
            raise InputError("before is another model: it must have the classes and the layout of the one reported on")
        return other
    in_force = [request for request in model.requests_ if request.in_force]
    if any(request.state == "erased" for request in in_force):
        raise Skip("what was forgotten is erased, so there is nothing to compare with: pass the model before as before")
    exact = [request for request in in_force if request.by == "exact"]
    values = exact[0].before if exact else b.values
    if values is None:
        raise Skip(f"the values before request {exact[0].id} are not kept: pass the model before as before")
    return dataclasses.replace(b, values=values, _prepared=[]).with_mask(model.base_mask_)


def _same_keys(owner: KeyValueClassifier, source: Bottleneck) -> bool:
    """Whether the codes of a model are codes under the keys of another; erased keys were the same once."""
    b = owner.bottleneck_
    if b.keys is source.keys:
        return True
    kept = np.ones(b.keys.shape[:2], bool) if owner.erased_ is None else ~owner.erased_
    return np.array_equal(b.projection, source.projection) and np.array_equal(b.keys[kept], source.keys[kept])
