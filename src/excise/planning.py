"""What a request will mask, before anything is changed: whose pairs, in which order, and how many of them."""

import difflib
import numbers
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from excise.bottleneck import kernels
from excise.bottleneck.model import Bottleneck
from excise.errors import InputError
from excise.features.arrays import Array
from excise.forgetting.activations import Activations
from excise.forgetting.exact import Recipe
from excise.forgetting.masks import activation_counts
from excise.forgetting.ranking import (
    Ranking,
    rank_by_activations,
    rank_codes_by_activations,
    rank_codes_by_examples,
)
from excise.forgetting.requests import Request, pack, unpack
from excise.forgetting.sizes import (
    MORE,
    MORE_EXAMPLES,
    Goal,
    choose_size,
    first_by_counts,
    pairs_of_draw,
    size_from_counts,
)


@dataclass(frozen=True)
class Asked:
    """How a request wants its mask to be found."""

    by: str  # "activations" | "examples"
    size: Any  # "auto" or a number
    goal: Goal
    held_out: Any  # None or a pair (X, y)
    retain_budget: float
    random_state: Any


@dataclass(frozen=True)
class Plan:
    """What a request will mask."""

    pairs: Array  # flat, those that are masked already included
    size: int
    why: str
    forget_counts: tuple[Array, Array]  # pairs and counts that the share covered is taken over
    tie: dict[str, int] | None = None
    sure: dict[str, Any] = field(default_factory=dict)
    examples_read: int = 0
    warning: str | None = None


class Planning:
    """The part of a fitted classifier that reads logs, codes and examples, and changes nothing."""

    classes_: Array
    bottleneck_: Bottleneck
    history_: list[float]
    training_codes_: Array
    training_labels_: Array
    training_rows_: Array
    activations_: Activations | None = None
    requests_: tuple[Request, ...] = ()
    base_mask_: Array | None = None  # the mask without any request's
    erased_: Array | None = None  # pairs (c, m) whose keys and values are gone
    recipe_: Recipe | None = None  # None where the values were trained by partial_fit
    n_jobs: int | None
    working_memory: float
    verbose: int

    def _plan(self, labels: list[int], X: Any, y: Any, asked: Asked) -> Plan:
        """What to mask for some classes: from features where they are given, else from the log or training codes."""
        if X is not None:
            return self._plan_from_features(labels, X, y, asked)
        if asked.by == "examples":
            return self._plan_from_codes(labels, asked)
        return self._plan_from_log(labels, asked)

    def _plan_from_log(self, labels: list[int], asked: Asked) -> Plan:
        logs = self._logs(labels)
        for label, (_, counts) in zip(labels, logs, strict=True):
            if not len(counts):
                name = self.classes_[[label]].tolist()[0]
                raise InputError(f"no training example of class {name!r} is in the log: pass examples of it as X")
        if asked.size == "auto" and asked.held_out is None and asked.goal == Goal():
            total = self._total_activations()
            parts = [first_by_counts(*log, self._others(*log), total) for log in logs]
            pairs = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
            return Plan(pairs, len(pairs), _BY_COUNTS, _summed(logs))
        selected, counts = _summed(logs)
        ranking = rank_by_activations(selected, counts, 0, self._others(selected, counts))
        return self._cut(labels, ranking, None, asked)

    def _plan_from_codes(self, labels: list[int], asked: Asked) -> Plan:
        codes = self._training_codes_of(labels)
        if codes is None:
            raise InputError(
                "by='examples' needs examples: pass the forget set as X, or features from near it (this model does not "
                "hold its training codes)"
            )
        codes = _shuffled(codes, asked.random_state)
        return self._cut(labels, self._rank(labels, codes, asked.by), codes, asked)

    def _plan_from_features(self, labels: list[int], X: Any, y: Any, asked: Asked) -> Plan:
        X, targets = self._split_request(X, y, labels)
        wanted = np.isin(targets, labels)
        forget = X[wanted]
        if asked.by == "examples":
            forget = _shuffled(forget, asked.random_state)
            if asked.size != "auto" and asked.size <= len(forget):
                forget = forget[: asked.size]  # no other is read
        codes = self._codes_of(self.bottleneck_, forget)
        plan = self._cut(labels, self._rank(labels, codes, asked.by), codes, asked)
        pairs, read = plan.pairs, plan.examples_read + len(forget)
        if any(request.state == "masked" for request in self.requests_):
            pairs, read = np.union1d(pairs, self._masked_alike(forget, plan)), read + len(forget)
        if asked.held_out is None and not wanted.all():
            sure, more = self._check_retained(X, targets, labels, plan, asked.retain_budget)
            plan, read = replace(plan, sure={**plan.sure, **sure}), read + more
        return replace(plan, pairs=pairs, examples_read=read)

    def _cut(self, labels: list[int], ranking: Ranking, codes: Array | None, asked: Asked) -> Plan:
        """A ranking cut at the size asked for, or at the one that held-out examples or else the counts ask for."""
        sure: dict[str, Any] = {}
        size, why, read = asked.size, "as asked", 0
        if asked.held_out is not None:
            X, targets = self._split_request(asked.held_out[0], asked.held_out[1], labels)
            own = np.isin(targets, labels)
        if asked.size == "auto":
            pairs, why = self._size_by_counts(labels, ranking, codes), _BY_COUNTS
            if asked.held_out is not None:
                least = pairs if asked.goal == Goal() else 0
                pairs, why, sure = self._size_by_examples(ranking, X[own], targets[own], asked.goal, least)
                read += int(own.sum())
            elif asked.goal != Goal():
                raise InputError(
                    f"a target of {asked.goal} shows only on examples that training has not seen: pass held_out"
                )
            elif asked.by == "examples" and codes is not None:
                pairs = pairs_of_draw(ranking, activation_counts(codes, self.bottleneck_.keys.shape[1]).reshape(-1))
            size = ranking.size_of(pairs)
            if asked.by == "activations":  # a size counts live pairs, a ranking all
                size = int((~self._mask_in_force()).reshape(-1)[ranking.first(size)].sum())
        if codes is not None and asked.by == "examples":
            plan = self._cut_examples(codes, size, why)
        else:
            plan = self._cut_activations(ranking, size, why)
        if asked.held_out is not None:
            checked, more = self._check_retained(X, targets, labels, plan, asked.retain_budget)
            sure, read = {**sure, **checked}, read + more
        missed = f"the mask holds {why}: use by='exact' instead" if why.startswith(_ALL) else None
        return replace(plan, sure=sure, examples_read=read, warning=missed)

    def _size_by_counts(self, labels: list[int], ranking: Ranking, codes: Array | None) -> int:
        """Pairs to mask by the rule for logs; for examples, as many as their activations ask for."""
        if ranking.by == "examples" and codes is not None:
            ranking = self._rank(labels, codes, "activations")
        usage = self._usage()
        if usage is None:
            return size_from_counts(ranking, 0)
        logged = sum(int(counts.sum(dtype=np.int64)) for _, counts in self._logs(labels))
        return size_from_counts(ranking, int(usage.sum(dtype=np.int64)), logged)

    def _size_by_examples(
        self, ranking: Ranking, X: Array, targets: Array, goal: Goal, least: int
    ) -> tuple[int, str, dict[str, Any]]:
        """Pairs to mask so that held-out examples reach the goal, why, and how sure that is."""
        threads = kernels.available_threads(self.n_jobs)
        choice = choose_size(self.bottleneck_, ranking, X, targets, goal, threads, self.working_memory)
        if not choice.reached:
            return choice.pairs, f"{_ALL}, which did not bring held-out examples to {goal}", choice.sure
        if goal != Goal():
            return choice.pairs, f"brings held-out examples to {goal}", choice.sure
        if ranking.by == "examples":
            more = len(ranking.first(int(np.ceil(choice.size * (1 + MORE_EXAMPLES)))))
        else:
            more = int(np.ceil(choice.pairs * (1 + MORE)))
        pairs = min(max(more, least), len(ranking.pairs))
        sure = {name: value for name, value in choice.sure.items() if name != "loss"}  # that of a smaller mask
        return pairs, f"brings held-out examples to {goal}, with a margin", sure

    def _cut_activations(self, ranking: Ranking, size: int, why: str) -> Plan:
        """The first `size` live pairs of a ranking, and those before them that are masked already."""
        live = ~self._mask_in_force().reshape(-1)[ranking.pairs]
        reach = np.cumsum(live)
        total, most = int(reach[-1]) if len(reach) else 0, int((~self._mask_in_force()).sum())
        if size > most:
            raise InputError(f"pairs is {size:,}, and only {most:,} are live: ask for at most so many")
        if size > total:
            why, size = f"{why}; the forget set activates no more", total
        end = int(np.searchsorted(reach, size)) + 1 if size else 0
        tie = None
        if end and size < total:
            count = ranking.counts[end - 1]
            equal = (ranking.counts == count) & live
            tie = {"activations": int(count), "pairs": int(equal.sum()), "masked": int(equal[:end].sum())}
        return Plan(ranking.pairs[:end], size, why, (ranking.pairs, ranking.counts), tie)

    def _cut_examples(self, codes: Array, size: int, why: str) -> Plan:
        """All pairs that the first `size` of codes (n, c, k) select."""
        if size > len(codes):
            raise InputError(f"examples is {size:,}, and the forget set has {len(codes):,}: ask for at most so many")
        m = self.bottleneck_.keys.shape[1]
        return Plan(_counted(codes[:size], m)[0], size, why, _counted(codes, m))

    def _check_retained(
        self, X: Array, targets: Array, labels: list[int], plan: Plan, retain_budget: float
    ) -> tuple[dict[str, Any], int]:
        """Accuracy on rows of classes that stay, before and after, and rows read; refused beyond the budget."""
        stays = ~np.isin(targets, [*labels, *self._forgotten()])
        if not stays.any():
            return {}, 0
        X, targets = X[stays], targets[stays]
        mask = unpack(pack(plan.pairs, self._mask_in_force().size), self._mask_in_force().shape)
        before, after = (
            float((self._best(b, X) == targets).mean())
            for b in (self.bottleneck_, self.bottleneck_.with_mask(mask | self._mask_in_force()))
        )
        if after < before * (1 - retain_budget):
            raise InputError(
                f"masking {len(plan.pairs):,} pairs, {plan.why}, would lower accuracy on the {len(X):,} retained "
                f"examples from {before:.2%} to {after:.2%}, beyond retain_budget={retain_budget:g}: raise that, set a "
                "smaller size, or use by='exact'"
            )
        return {"retained_examples": len(X), "retain_before": before, "retain_after": after}, 2 * len(X)

    def _best(self, bottleneck: Bottleneck, X: Array) -> Array:
        threads = kernels.available_threads(self.n_jobs)
        best = np.empty(len(X), np.int64)
        for start, logits in bottleneck.iterate_logits(X, threads, self.working_memory):
            best[start : start + len(logits)] = logits.argmax(axis=1)
        return best

    def _masked_alike(self, forget: Array, plan: Plan) -> Array:
        """Pairs that earlier requests masked and this one would have: it keeps them when those are restored."""
        codes = self._codes_of(self.bottleneck_.with_mask(self.base_mask_), forget)
        pairs, counts = _counted(codes, self.bottleneck_.keys.shape[1])
        own = plan.forget_counts[1][np.isin(plan.forget_counts[0], plan.pairs)]
        taken = self._mask_in_force().reshape(-1)[pairs] & (counts >= (own.min() if len(own) else 1))
        alike: Array = pairs[taken]
        return alike

    def _rank(self, labels: list[int], codes: Array, by: str) -> Ranking:
        m = self.bottleneck_.keys.shape[1]
        if by == "examples":
            return rank_codes_by_examples(codes, m)
        return rank_codes_by_activations(codes, m, self._others_by_pair(labels))

    def _logs(self, labels: list[int]) -> list[tuple[Array, Array]]:
        """For each class its pairs and counts, from the log or else from training codes in memory."""
        if self.activations_ is not None:
            return [self.activations_.of(label) for label in labels]
        if not hasattr(self, "training_codes_"):
            raise InputError(
                "this model has no log of activations (keep_activations=False, erased, or a file of an older excise): "
                "pass the forget set as X"
            )
        m = self.bottleneck_.keys.shape[1]
        return [_counted(self.training_codes_[self.training_labels_ == self.classes_[label]], m) for label in labels]

    def _others(self, pairs: Array, counts: Array) -> Array | None:
        """How often examples that stay select these pairs, as far as the log tells."""
        usage = self._usage()
        if usage is None:
            return None
        others: Array = usage.take(pairs) - counts
        return others

    def _usage(self) -> Array | None:
        """How often all training examples selected each pair (c*m,), from the log or from training codes in memory."""
        if self.activations_ is not None:
            return self.activations_.totals
        if not hasattr(self, "training_codes_"):
            return None
        return activation_counts(self.training_codes_, self.bottleneck_.keys.shape[1]).reshape(-1)

    def _others_by_pair(self, labels: list[int]) -> Array | None:
        """How often training examples of other classes selected each pair (c*m,), as far as that is known."""
        usage = self._usage()
        if usage is None:
            return None
        others = usage.astype(np.int64)
        for pairs, counts in self._logs(labels):
            others[pairs] -= counts
        return others

    def _total_activations(self) -> int:
        if self.activations_ is not None:
            return self.activations_.total
        usage = self._usage()
        return 0 if usage is None else int(usage.sum(dtype=np.int64))

    # -- what is known of the model -----------------------------------------------------------------------------------

    def _codes_of(self, bottleneck: Bottleneck, X: Array) -> Array:
        return bottleneck.codes(X, None, kernels.available_threads(self.n_jobs), self.working_memory)

    def _mask_in_force(self) -> Array:
        mask = self.bottleneck_.mask
        return np.zeros(self.bottleneck_.keys.shape[:2], bool) if mask is None else mask

    def _forgotten(self) -> set[int]:
        return {self._label(label) for r in self.requests_ if r.in_force for label in r.classes}

    def _label(self, label: Any) -> int:
        """The index of a class; text finds a class that is written so."""
        names = self.classes_.tolist()
        found = [i for i, name in enumerate(names) if type(name) is type(label) and name == label]
        plain = not isinstance(label, bool)
        found = found or [i for i, name in enumerate(names) if plain and not isinstance(name, bool) and name == label]
        found = found or [i for i, name in enumerate(names) if str(name) == str(label)]
        if len(found) == 1:
            return found[0]
        near = difflib.get_close_matches(str(label), list(map(str, names)), n=1, cutoff=0.5)
        meant = f"did you mean {near[0]!r}? " if near else ""
        shown = ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        raise InputError(f"the model knows no class {label!r}: {meant}its classes are {shown}")

    def _labels_to_forget(self, classes: Any) -> list[int]:
        if classes is None:
            raise InputError("name what to forget: classes=..., one label or a list of them")
        asked = [classes] if isinstance(classes, str) or not hasattr(classes, "__iter__") else list(classes)
        if any(np.ndim(label) for label in asked):
            raise InputError("classes must be one label or a flat list of them")
        if not asked:
            raise InputError("the list of classes is empty: name at least one to forget")
        labels = sorted({self._label(c.item() if isinstance(c, np.generic) else c) for c in asked})
        for request in self.requests_:
            for label in request.classes if request.in_force else []:
                if self._label(label) in labels:
                    undo = f"restore({request.id}) brings it back" if request.state != "erased" else "for good"
                    raise InputError(f"class {label!r} is already forgotten, by request {request.id}: {undo}")
        if len(labels) + len(self._forgotten()) >= len(self.classes_):
            raise InputError(
                f"that would forget all {len(self.classes_)} classes: leave at least one, or delete the model"
            )
        return labels

    def _split_request(self, X: Any, y: Any, labels: list[int], known: bool = False) -> tuple[Array, Array]:
        """X as features (n, f) and the index of every row's class; without y all rows are of the class to forget."""
        if np.ndim(X) != 2 or (y is not None and np.ndim(y) != 1):
            raise InputError(f"features must be rows (n, f) and labels (n,): X has {np.ndim(X)} axes, y {np.ndim(y)}")
        X = self._features(X)  # type: ignore[attr-defined]
        if y is None:
            if len(labels) > 1:
                raise InputError("X has examples of several classes: say of which class each row is, as y")
            return X, np.full(len(X), labels[0])
        y = np.asarray(y)
        if len(y) != len(X):
            raise InputError(f"there are {len(X)} examples and {len(y)} labels: pass as many of one as of the other")
        index = {name: i for i, name in enumerate(self.classes_.tolist())}
        try:
            targets = np.array([index[name] for name in y.tolist()], np.int64)
        except KeyError as error:
            label, first = error.args[0], self.classes_.tolist()[0]
            self._label(label)  # says what is known
            raise InputError(
                f"y has {label!r}, and the model's labels are as {first!r}: pass labels of that kind"
            ) from None
        missing = self.classes_[[label for label in labels if not (targets == label).any()]].tolist()
        if missing and not known:
            raise InputError(
                f"there is no example of class {missing[0]!r} among those given: pass some, or leave them out"
            )
        return X, targets

    def _ranking_of(self, labels: list[int], by: str, forget_set: Any, random_state: Any) -> Ranking:
        """The live pairs in the order in which they would be masked."""
        m = self.bottleneck_.keys.shape[1]
        codes = self._training_codes_of(labels)
        if forget_set is not None:
            X = self._features(forget_set)  # type: ignore[attr-defined]
            codes = self._codes_of(self.bottleneck_, X)
        if by == "examples":
            if codes is None:
                raise InputError(
                    "by='examples' needs examples to rank pairs by: pass forget_set, or load training codes"
                )
            ranking = rank_codes_by_examples(_shuffled(codes, random_state), m)
        elif forget_set is not None and codes is not None:
            ranking = rank_codes_by_activations(codes, m, self._others_by_pair(labels))
        else:
            selected, counts = _summed(self._logs(labels))
            ranking = rank_by_activations(selected, counts, 0, self._others(selected, counts))
        live = ~self._mask_in_force().reshape(-1)[ranking.pairs]
        if live.all():
            return ranking
        others = None if ranking.others is None else ranking.others[live]
        return replace(ranking, pairs=ranking.pairs[live], counts=ranking.counts[live], others=others)

    def _training_codes_of(self, labels: list[int]) -> Array | None:
        """Codes of the training examples of some classes, where they are in memory."""
        if not hasattr(self, "training_codes_"):
            return None
        codes: Array = self.training_codes_[np.isin(self.training_labels_, self.classes_[labels])]
        return codes

    def _multiply_adds(self) -> int:
        """Of reading one example: its projection, and its distance to every live key."""
        f, c, d = self.bottleneck_.projection.shape
        return int(d * (f * c + (~self._mask_in_force()).sum()))


_BY_COUNTS = "as much as the counts say is enough"
_ALL = "all that was ranked"


def _summed(logs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Pairs and counts of several logs added up, by rising pair."""
    if len(logs) == 1:
        return logs[0]
    pairs, where = np.unique(np.concatenate([p for p, _ in logs]), return_inverse=True)
    counts = np.bincount(where, np.concatenate([c for _, c in logs]), len(pairs)).astype(np.int64)
    return pairs, counts.astype(np.uint16) if counts.max(initial=0) < 2**16 else counts


def _counted(codes: Array, pairs: int) -> tuple[Array, Array]:
    """The pairs that codes (n, c, k) select, and how often each."""
    counts = activation_counts(codes, pairs).reshape(-1)
    selected = counts.nonzero()[0]
    return selected, counts[selected]


def _shuffled(codes: Array, random_state: Any) -> Array:
    shuffled: Array = codes[check_random_state(random_state).permutation(len(codes))]
    return shuffled


def checked_goal(accuracy: Any, loss: Any, retain_budget: Any) -> Goal:
    """The goal, all of whose numbers are in their range."""
    for name, value, high in (
        ("target_accuracy", accuracy, 1.0),
        ("target_loss", 0.0 if loss is None else loss, np.inf),
        ("retain_budget", retain_budget, 1.0),
    ):
        if not isinstance(value, numbers.Real) or not 0 <= float(value) <= high:
            limit = "at least 0" if high == np.inf else "from 0 to 1"
            raise InputError(f"{name} is {value!r}: it must be a number {limit}")
    return Goal(float(accuracy), None if loss is None else float(loss))


def checked_pair(held_out: Any) -> Any:
    """None, or features and their labels."""
    if held_out is None or (isinstance(held_out, (tuple, list)) and len(held_out) == 2 and held_out[1] is not None):
        return held_out
    raise InputError("held_out must be a pair (X, y): features that the model was not trained on, and their labels")


def checked_size(name: str, value: Any) -> Any:
    """'auto', or a whole number of at least 1."""
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or int(value) < 1:
        raise InputError(f"{name} is {value!r}: it must be 'auto' or a whole number of at least 1")
    return int(value)
