"""The verbs of forgetting, for the classifier: forget, restore, erase, and the curve of every mask size."""

import copy
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from excise.bottleneck import kernels
from excise.bottleneck.model import Bottleneck
from excise.errors import InputError
from excise.features.arrays import Array
from excise.forgetting.activations import record_activations
from excise.forgetting.budget import measure_budget, warning_of
from excise.forgetting.requests import IN_FORCE, Request, mask_in_force
from excise.forgetting.sizes import Goal
from excise.forgetting.tradeoff import ForgettingCurve, draw_curve
from excise.planning import Asked, Plan, Planning, checked_goal, checked_pair, checked_size

METHODS = ("activations", "examples", "exact")


class Unlearning(Planning):
    """What `KeyValueClassifier` can do once it is fitted, to forget and to undo it."""

    # -- forget -------------------------------------------------------------------------------------------------------

    def forget(
        self,
        classes: Any = None,
        X: Any = None,
        y: Any = None,
        *,
        by: str = "activations",
        pairs: Any = "auto",
        examples: int | None = None,
        rows: Any = None,
        held_out: Any = None,
        target_accuracy: float = 0.0,
        target_loss: float | None = None,
        retain_budget: float = 0.01,
        reinitialize_keys: bool = False,
        random_state: Any = None,
    ) -> Request:
        """Forget one or several classes; returns the record of what was done. `restore` undoes it until `erase`.

        Parameters
        ----------
        classes : label or list of labels
        X, y : array-likes (n, f) and (n,), optional
            Features to read. Without them the log of activations that `fit` kept is used, which costs no forward pass.
            Without `y` all rows of X belong to the forget set (or to a proxy of it). For by="exact": the training data,
            where the model does not hold its codes.
        by : {"activations", "examples", "exact"}
            Mask the pairs that the forget set activates most; or all pairs that some of its examples select; or train
            the values again without it.
        pairs : "auto" or int
            Pairs to mask, for by="activations". "auto" goes by the counts of activations: as much of a class is masked
            as the others can spare. With `held_out`, also as much as brings its examples to the target, with a margin.
        examples : "auto" or int, optional
            Examples to draw, without replacement, for by="examples"; "auto", the default, as for pairs.
        rows : list of int, optional
            Rows of the training data to forget one by one; only exactly.
        held_out : tuple (X, y), optional
            Labelled examples that the model was not trained on, never test data: those of the forget set choose the
            size, those of other classes measure what it costs. (Examples that it was trained on are remembered by
            pairs of their own, and would choose a size far too large.)
        target_accuracy, target_loss : float
            Where held-out examples stop it: no more of them recognised than this; or, for partial forgetting, where
            their mean loss meets a reference (as the paper's defence against membership attacks does).
        retain_budget : float
            Largest relative drop of accuracy on held-out rows of other classes (or on those in X); a mask that costs
            more is refused.
        reinitialize_keys : bool
            For by="exact", with X and y: draw the keys anew from what is retained, too. This cannot be restored.
        random_state : int, RandomState or None
            Draws examples and folds.
        """
        began = time.perf_counter()
        check_is_fitted(self)
        kernels.warn_if_slow()
        if by not in METHODS:
            raise InputError(f"by is {by!r}: use one of {', '.join(map(repr, METHODS))}")
        if rows is not None and by != "exact":
            raise InputError(
                "masking cannot forget single examples: others of their class share their pairs and would still answer "
                "for them; forget rows with by='exact', which trains the values again without them"
            )
        if y is not None and X is None:
            raise InputError("y are labels of X: pass both, or neither")
        labels = [] if classes is None and rows is not None else self._labels_to_forget(classes)
        if by == "exact":
            mask_only = {
                "pairs": pairs != "auto",
                "examples": examples is not None,
                "held_out": held_out is not None,
                "target_accuracy": target_accuracy != 0,
                "target_loss": target_loss is not None,
            }
            if any(mask_only.values()):
                name = next(name for name, given in mask_only.items() if given)
                raise InputError(f"{name} is about masks, and by='exact' masks nothing: leave it out")
            new, request = self._forget_exactly(labels, X, y, rows, reinitialize_keys)
        else:
            if reinitialize_keys:
                raise InputError("reinitialize_keys is for by='exact'; a mask leaves the keys as they are")
            goal = checked_goal(target_accuracy, target_loss, retain_budget)
            if goal != Goal() and (pairs if examples is None else examples) != "auto":
                raise InputError("target_accuracy and target_loss choose a size: leave pairs and examples out")
            if by == "activations" and examples is not None:
                raise InputError("examples is for by='examples'; for by='activations' set pairs")
            if by == "examples" and pairs != "auto":
                raise InputError("pairs is for by='activations'; for by='examples' set examples")
            size = checked_size("pairs" if by == "activations" else "examples", pairs if examples is None else examples)
            asked = Asked(by, size, goal, checked_pair(held_out), retain_budget, random_state)
            new, request = self._forget_by_mask(labels, asked, self._plan(labels, X, y, asked))
        if request.warning:
            warnings.warn(request.warning, stacklevel=2)  # before anything changes: a warning may be an error
        self.__dict__ = new.__dict__
        return request.record(1000 * (time.perf_counter() - began))

    def _forget_by_mask(self, labels: list[int], asked: Asked, plan: Plan) -> tuple[Any, Request]:
        shape = self.bottleneck_.keys.shape[:2]
        own = np.zeros(shape, bool)
        own.reshape(-1)[plan.pairs] = True
        per_codebook = np.count_nonzero(own & ~self._mask_in_force(), axis=1)
        fresh = int(per_codebook.sum())
        request = Request(
            id=self._next_id(),
            by=asked.by,
            classes=self.classes_[labels].tolist(),
            state="masked",
            asked=asked.size,
            size=fresh if asked.by == "activations" else plan.size,
            why=plan.why,
            masked=fresh,
            overlapping=len(plan.pairs) - fresh,
            share=fresh / own.size,
            per_codebook=per_codebook.tolist(),
            tie=plan.tie,
            sure=plan.sure,
            examples_read=plan.examples_read,
            multiply_adds=plan.examples_read * self._multiply_adds() if plan.examples_read else 0,
            mask=np.packbits(own),
        )
        new = copy.copy(self)._take_training(self)
        new._set_requests((*self.requests_, request))
        selected, counts = plan.forget_counts
        masked = new._mask_in_force().reshape(-1).take(selected)
        budget = new.budget()
        request = replace(
            request,
            covered=float((counts * masked).sum(dtype=np.int64) / max(1, counts.sum(dtype=np.int64))),
            budget=budget,
            warning=warning_of(budget, self.bottleneck_.top_k) or plan.warning,
        )
        new.requests_ = (*self.requests_, request)
        return new, request

    # -- exact forgetting ---------------------------------------------------------------------------------------------

    def _forget_exactly(
        self, labels: list[int], X: Any, y: Any, rows: Any, reinitialize_keys: bool
    ) -> tuple[Any, Request]:
        if reinitialize_keys:
            return self._forget_with_new_keys(labels, X, y, rows)
        if self.recipe_ is None:
            raise InputError(
                "by='exact' repeats what fit did, which this model does not know (it was trained by partial_fit or in "
                "torch, or comes from a file of an older excise): train one with fit"
            )
        new = copy.copy(self)._take_training(self)
        if X is not None:
            if hasattr(self, "training_codes_"):
                raise InputError("the model holds the codes of its training data: leave X and y out")
            new._code_training(X, y)
        new._need_codes()
        chosen = self._checked_rows(rows, new.training_rows_)
        request = Request(
            id=self._next_id(),
            by="exact",
            classes=self.classes_[labels].tolist(),
            state="exact",
            asked=None,
            rows=chosen,
            why="the values trained again, from the same start, on all but what was forgotten exactly",
            before=self.bottleneck_.values,
            losses=self.history_,
        )
        values, history, kept = new._refit((*self.requests_, request))
        b = self.bottleneck_
        request = replace(
            request,
            size=int(new._retained(self.requests_).sum()) - kept,
            examples_read=kept,
            multiply_adds=self.recipe_.multiply_adds(kept, len(b.keys), b.top_k, len(self.classes_))
            + (0 if X is None else len(new.training_rows_) * self._multiply_adds()),
        )
        new.bottleneck_, new.history_ = replace(b, values=values, _prepared=b._prepared), history
        new.requests_ = (*self.requests_, request)
        new.requests_ = (*self.requests_, replace(request, budget=new.budget()))
        return new, new.requests_[-1]

    def _refit(self, requests: Sequence[Request]) -> tuple[Array, list[float], int]:
        """Values trained without what the exact requests among these forget, the losses, and how many examples."""
        assert self.recipe_ is not None
        keep = self._retained(requests)
        if not keep.any():
            raise InputError("nothing would be retained: leave some of the training data to train on")
        labels = np.searchsorted(self.classes_, self.training_labels_).astype(np.int64)
        values, history = self.recipe_.train(
            self.recipe_.start(self.bottleneck_.values.shape),
            self.training_codes_,
            labels,
            keep.nonzero()[0],
            kernels.available_threads(self.n_jobs),
            self.verbose,
        )
        if self.erased_ is not None:
            values[self.erased_] = 0
        return values, history, int(keep.sum())

    def _retained(self, requests: Sequence[Request]) -> Array:
        """Which of the training codes (n,) no exact request among these forgets."""
        keep = np.ones(len(self.training_labels_), bool)
        for request in requests:
            if request.state == "exact":
                keep &= ~np.isin(self.training_labels_, request.classes)
                keep &= ~np.isin(self.training_rows_, request.rows or [])
        return keep

    def _forget_with_new_keys(self, labels: list[int], X: Any, y: Any, rows: Any) -> tuple[Any, Request]:
        if X is None or y is None:
            raise InputError("reinitialize_keys needs the training data, to place the keys anew: pass X and y")
        if any(request.state in IN_FORCE for request in self.requests_):
            raise InputError("new keys end what earlier requests masked: restore or erase those first")
        _, targets = self._split_request(X, y, labels)
        before = [r for r in self.requests_ if r.in_force]
        keep = ~np.isin(targets, [*labels, *(self._label(label) for r in before for label in r.classes)])
        chosen = self._checked_rows(rows, np.arange(len(targets)))
        keep[[row for r in before for row in r.rows or [] if row < len(keep)]] = False
        keep[chosen or []] = False
        new: Any = copy.copy(self)
        new._fit(np.asarray(X)[keep], np.asarray(y)[keep], self.classes_)
        new.training_rows_ = keep.nonzero()[0]
        if hasattr(self, "feature_names_in_"):
            new.feature_names_in_ = self.feature_names_in_
        b, examples = new.bottleneck_, int(keep.sum())
        c, m, d = b.keys.shape
        trained = new.recipe_.multiply_adds(examples, c, b.top_k, len(self.classes_))
        placed = (new.key_epochs + 1) * examples * d * (b.projection.shape[0] * c + c * m)
        request = Request(
            id=self._next_id(),
            by="exact",
            classes=self.classes_[labels].tolist(),
            state="erased",
            asked=None,
            rows=chosen,
            size=len(keep) - examples,
            why="keys and values drawn and trained anew on what is retained",
            examples_read=examples,
            multiply_adds=placed + trained,
        )
        new.requests_ = (*self.requests_, request)
        new.requests_ = (*self.requests_, replace(request, budget=new.budget()))
        return new, new.requests_[-1]

    def _code_training(self, X: Any, y: Any) -> None:
        """Take X, y for the training data: their codes are what `fit` would have kept."""
        if y is None:
            raise InputError("by='exact' needs the labels of X: pass the training data as X and y")
        X, targets = self._split_request(X, y, [], known=True)
        gone = [r for r in self.requests_ if r.state == "erased"]  # and is not learnt again
        keep = ~np.isin(targets, [self._label(label) for r in gone for label in r.classes])
        keep[[row for r in gone for row in r.rows or [] if row < len(keep)]] = False
        rows = keep.nonzero()[0]
        X, targets = X[rows] if gone else X, targets[rows]
        c, k = len(self.bottleneck_.keys), self.bottleneck_.top_k
        logged = None if self.activations_ is None else int(self.activations_.totals.sum(dtype=np.int64))
        if logged is not None and logged != len(rows) * c * k:
            raise InputError(
                f"X holds {len(rows):,} examples, and the model was trained on {logged // (c * k):,}: by='exact' needs "
                "all of its training data, in the same order"
            )
        free = self.bottleneck_.with_mask(self.base_mask_)
        self.training_codes_ = self._codes_of(free, X)
        self.training_labels_, self.training_rows_ = self.classes_[targets], rows

    def _need_codes(self) -> None:
        if not hasattr(self, "training_codes_"):
            raise InputError(
                "by='exact' needs the codes of the training data, which stay in memory with the model that was fitted: "
                "pass the training data as X and y, or load a file of codes with load_training_codes"
            )

    def _checked_rows(self, rows: Any, known: Array) -> list[int] | None:
        if rows is None:
            return None
        try:
            chosen = np.unique(np.asarray(rows))
        except ValueError:  # ragged
            chosen = np.zeros(0)
        if chosen.size == 0 or chosen.dtype.kind not in "iu" or not np.isin(chosen, known).all():
            raise InputError(f"rows must be numbers of training examples, from 0 to {int(known.max(initial=0)):,}")
        found: list[int] = chosen.tolist()
        return found

    # -- undo, and finish ---------------------------------------------------------------------------------------------

    def restore(self, id: int) -> Request:
        """Undo one request, whatever came after it; predictions are again those of the others alone, bit for bit."""
        check_is_fitted(self)
        request = self._request(id)
        if request.state == "erased":
            raise InputError(
                f"request {id} was erased: what it forgot is no longer in the model, so nothing can bring it back but "
                "training anew"
            )
        if request.state == "restored":
            raise InputError(f"request {id} is restored already")
        new = copy.copy(self)._take_training(self)
        restored = replace(request, state="restored", mask=None, before=None, losses=None)
        new.requests_ = tuple(restored if r.id == id else r for r in self.requests_)
        if request.by == "exact":
            new._restore_values(request)
        new._set_requests(new.requests_)
        self.__dict__ = new.__dict__
        return restored.record()

    def _restore_values(self, request: Request) -> None:
        """The values without one exact request; those after it are carried out again."""
        if request.before is None:
            raise InputError(f"request {request.id} cannot be restored: the values were trained on since")
        later = [r for r in self.requests_ if r.state == "exact" and r.id > request.id]
        values, losses = request.before, request.losses or []
        if later and (self.erased_ is not None or not hasattr(self, "training_codes_")):
            raise InputError(
                f"request {later[-1].id} came after request {request.id} and built on it: restore that first"
            )
        done = [r for r in self.requests_ if r.id < request.id]
        for r in later:
            mended = replace(r, before=values, losses=losses)
            values, losses, _ = self._refit((*done, mended))
            done.append(mended)
            self.requests_ = tuple(mended if x.id == r.id else x for x in self.requests_)
        self.bottleneck_, self.history_ = replace(self.bottleneck_, values=values), losses

    def erase(self, unused: bool = False) -> list[Request]:
        """Make every request in force final: masked keys and values, logs and codes of what was forgotten are dropped.

        Predictions stay the same, bit for bit. Files written before still hold what was erased: write over them.

        `unused` also erases live pairs that no retained training example selects: many of their keys are copies of
        single training examples, forgotten ones among them. New examples may then be predicted otherwise.
        """
        check_is_fitted(self)
        final = [r for r in self.requests_ if r.state in IN_FORCE]
        gone = self._mask_in_force()
        if not final and not unused and (self.erased_ is not None or not gone.any()):
            raise InputError("there is nothing to erase: no request is in force; forget something first")
        new = copy.copy(self)._take_training(self)
        forgotten = {self._label(label) for r in final for label in r.classes}
        if self.activations_ is not None:
            new.activations_ = self.activations_.without(forgotten)
        new._drop_codes(forgotten, [row for r in final for row in r.rows or []])
        if unused:
            gone = gone | (new._used() == 0).reshape(gone.shape)
        b = self.bottleneck_
        keys, values = np.array(b.keys), np.array(b.values)
        keys[gone], values[gone] = 0, 0
        new.erased_ = new.base_mask_ = gone
        new.bottleneck_ = Bottleneck(b.projection, keys, values, b.top_k, b.decoder, gone.copy())
        new.__dict__.pop("_training", None)
        ids = {r.id for r in final}
        new.requests_ = tuple(
            replace(r, state="erased", mask=None, before=None, losses=None) if r.id in ids else r
            for r in self.requests_
        )
        self.__dict__ = new.__dict__
        return [r.record() for r in self.requests_ if r.id in ids]

    def _used(self) -> Array:
        """How often training examples that are left selected each pair (c*m,)."""
        usage = self._usage()
        if usage is None:
            raise InputError("which pairs are unused is not known: this model has neither a log nor training codes")
        return usage

    def _drop_codes(self, forgotten: set[int], rows: list[int]) -> None:
        """Drop the training codes of classes and single rows, and what the rows left in the log."""
        if not hasattr(self, "training_codes_"):
            if rows and self.activations_ is not None:
                self.activations_ = None  # which entries are theirs only the codes could tell
                warnings.warn(
                    "the log of activations was erased whole, because without training codes the entries of single "
                    "examples cannot be told: load_training_codes before erasing keeps the rest",
                    stacklevel=3,
                )
            return
        keep = ~np.isin(self.training_labels_, self.classes_[sorted(forgotten)])
        single = keep & np.isin(self.training_rows_, rows)
        if single.any() and self.activations_ is not None:
            labels = np.searchsorted(self.classes_, self.training_labels_[single])
            m = self.bottleneck_.keys.shape[1]
            log = record_activations(self.training_codes_[single], labels, m, len(self.classes_))
            self.activations_ = self.activations_.plus(log, -1)
        keep &= ~single
        self.training_codes_ = self.training_codes_[keep]
        self.training_labels_, self.training_rows_ = self.training_labels_[keep], self.training_rows_[keep]

    # -- measure ------------------------------------------------------------------------------------------------------

    def budget(self) -> dict[str, Any]:
        """Live pairs, as a whole and per codebook, and the share of retained activations that masks have displaced."""
        check_is_fitted(self)
        return measure_budget(self._mask_in_force(), self.activations_, self._forgotten())

    def forgetting_curve(
        self,
        X: Any,
        y: Any,
        classes: Any,
        *,
        by: str = "activations",
        forget_set: Any = None,
        random_state: Any = None,
    ) -> ForgettingCurve:
        """Retain and forget accuracy and loss on X, y for every size of a mask that would forget `classes`.

        One pass, exact: equal, prediction by prediction, to masking and evaluating at each size. Pairs are ranked by
        the log of activations, or the training codes, or `forget_set` (features of what is to be forgotten). Requests
        in force stay in force. Nothing is changed.
        """
        check_is_fitted(self)
        kernels.warn_if_slow()
        if by not in METHODS[:2]:
            raise InputError(f"by is {by!r}: use 'activations' or 'examples'; exact forgetting has no sizes")
        labels = self._labels_to_forget(classes)
        X, targets = self._split_request(X, y, labels)
        counted = ~np.isin(targets, sorted(self._forgotten()))  # what is forgotten already is neither group's
        if not counted.all():
            X, targets = X[counted], targets[counted]
        return draw_curve(
            self.bottleneck_,
            X,
            targets,
            np.isin(targets, labels),
            self._ranking_of(labels, by, forget_set, random_state),
            self.classes_[labels].tolist(),
            kernels.available_threads(self.n_jobs),
            self.working_memory,
            self.verbose,
        )

    # -- parts --------------------------------------------------------------------------------------------------------

    def _set_requests(self, requests: tuple[Request, ...]) -> None:
        self.requests_ = requests
        shape: Any = self.bottleneck_.keys.shape[:2]
        self.bottleneck_ = self.bottleneck_.with_mask(mask_in_force(self.base_mask_, requests, shape))

    def _take_training(self, other: Any) -> Any:
        """Share the training codes of `other`, which no copy takes along."""
        for name in ("training_codes_", "training_labels_", "training_rows_", "_training"):
            if name in other.__dict__:
                self.__dict__[name] = other.__dict__[name]
        return self

    def _next_id(self) -> int:
        return max((r.id for r in self.requests_), default=0) + 1

    def _request(self, id: int) -> Request:
        for request in self.requests_:
            if request.id == id:
                return request
        known = ", ".join(f"{r.id} ({r.state})" for r in self.requests_) or "none"
        raise InputError(f"there is no request {id!r}: the model's requests are {known}")


def forgetting_curve(model: Unlearning, X: Any, y: Any, classes: Any, **options: Any) -> ForgettingCurve:
    """Accuracy and loss on X, y for every size of a mask, in one pass: `KeyValueClassifier.forgetting_curve`."""
    return model.forgetting_curve(X, y, classes, **options)
