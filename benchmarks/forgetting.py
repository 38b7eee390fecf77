"""Forgetting: a class from its log, the curve of all sizes, exact re-fits, and prediction under masks."""

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from experiments.record import say

from benchmarks import value_training
from benchmarks.inputs import Settings, dataset, repeated, source
from benchmarks.peers.torch_head import LinearHead
from benchmarks.peers.torch_training import TorchTrainer
from benchmarks.timing import Contender, Row, fastest, measure
from excise import KeyValueClassifier
from excise.forgetting.ranking import Ranking, rank_by_activations

PRESETS = {10: "cifar10-resnet50", 100: "cifar100-resnet50"}
EPOCHS = {10: 20, 100: 4}  # of an exact re-fit; the presets have 70 and 4
LABEL = 0  # the class that is forgotten
SIZES, TIMED = 40, 4  # evaluated one by one, and how many of them are timed
CHECKED, EXAMPLES = 50, 500  # random sizes of the curve that masking must confirm, on so many test examples
SHARE = 0.2  # of all pairs, masked or erased before a prediction

FIRST = "excise, first prediction of one example after it"
HEAD = "torch, one epoch of a linear head"
ONE, MANY = "excise, one masked evaluation", f"excise, {SIZES} sizes one by one"
BEFORE, MASKED, ERASED = "excise, nothing masked", "excise, masked", "excise, erased"
TORCH_REFITS = {f"exact re-fit by {name}": name for name in value_training.TRAINERS}


def run(settings: Settings) -> Iterator[Row]:
    """Rows of every case; a model serves all cases of its data set."""
    for classes in PRESETS:
        model = trained(settings, classes)
        inputs = {
            "features": source(settings, classes),
            "repeated_keys": float(repeated(np.array(model.bottleneck_.keys)).mean()),
        }
        for unit, part in (("requests/s", requests), ("examples/s", curves), ("examples/s", predictions)):
            for row in part(model, settings, classes):
                say(f"  {row['case']}: {row['subject']}: {1000 * row['seconds']:,.1f} ms")
                yield {**row, "unit": unit, **inputs}


def request_case(classes: int) -> str:
    """How rows and targets call it."""
    return f"forget one class from logs, {classes} classes"


def curve_case(classes: int) -> str:
    """How rows and targets call it."""
    return f"forgetting curve of all sizes, {classes} classes"


def prediction_case(classes: int) -> str:
    """How rows and targets call it."""
    return f"prediction with {SHARE:.0%} of pairs masked, {classes} classes"


def refit_name(classes: int) -> str:
    """The exact re-fit, by its epochs."""
    return f"excise, exact re-fit, {EPOCHS[classes]} epochs"


def trained(settings: Settings, classes: int) -> KeyValueClassifier:
    """The preset, trained briefly: no speed depends on how well."""
    data = dataset(settings, classes)
    layout = {"codebooks": settings.codebooks, "pairs": settings.pairs, "epochs": 2, "key_epochs": 2}
    options = {"random_state": settings.seed, "n_jobs": settings.threads}
    return KeyValueClassifier.from_preset(PRESETS[classes], **layout, **options).fit(data.x_train, data.y_train)


# -- a request ---------------------------------------------------------------------------------------------------------


def requests(model: KeyValueClassifier, settings: Settings, classes: int) -> list[Row]:
    """From the log, and what its first prediction costs; then exactly, and by fine-tuning a linear head."""
    forgetful = copy.copy(model)
    record = forgetful.forget(LABEL)
    if record.multiply_adds or record.examples_read:
        raise RuntimeError(f"forgetting from logs took {record.multiply_adds} multiply-adds, which should be none")
    details = {
        "multiply_adds": record.multiply_adds,
        "note": f"{record.masked:,} pairs masked, {record.examples_read} examples read, no multiply-add",
    }
    x = dataset(settings, classes).x_test[:1]
    rows = measure(
        request_case(classes),
        [
            Contender("excise", lambda: copy.copy(model).forget(LABEL), details=details),
            Contender(
                FIRST,
                lambda: forgetful.with_mask(forgetful.mask).predict(x),
                details={"note": "prepares the keys that are left for search"},
            ),
            Contender(refit_name(classes), lambda: with_codes(model, EPOCHS[classes]).forget(LABEL, by="exact")),
            *(torch_refits(model, settings) if classes == 10 else []),
            *heads(settings, classes),
        ],
        settings.size(15, 2),
        budget=8,
    )
    best = fastest([row for row in rows if row["subject"].startswith(HEAD)], HEAD)
    return [*rows, {**best, "form": best["form"].removeprefix(f"{HEAD}: ")}]


def with_codes(model: KeyValueClassifier, epochs: int) -> KeyValueClassifier:
    """A copy that holds the training codes, which other copies leave behind, to be re-fitted in so many epochs."""
    other = copy.copy(model)
    other.training_codes_, other.training_labels_ = model.training_codes_, model.training_labels_
    other.training_rows_, other.recipe_ = model.training_rows_, replace(model.recipe_, epochs=epochs)
    return other


def torch_refits(model: KeyValueClassifier, settings: Settings) -> Iterator[Contender]:
    """The same re-fit by torch; its steps all cost the same, so some are timed."""
    retained = np.flatnonzero(model.training_labels_ != LABEL)
    whole, classes = EPOCHS[10] * len(retained), len(model.classes_)
    some = retained[: 24 * value_training.BATCH]
    own, labels = model.training_codes_[some], model.training_labels_[some]
    rng = np.random.default_rng(settings.seed)
    details = {"note": f"timed on {len(some):,} of {whole:,} examples, scaled"}
    for name, trainer in TORCH_REFITS.items():
        gap = value_training.agreement(trainer, own, labels, settings.pairs, classes, settings)
        by_hand = value_training.TRAINERS[trainer]
        peer = TorchTrainer(own, labels, settings.pairs, classes, value_training.RATE, by_hand)

        def steps(peer: TorchTrainer = peer) -> None:
            peer.train(rng.permutation(len(some)), value_training.BATCH)

        yield Contender(name, steps, len(some) / whole, 1, {**details, **gap})


def heads(settings: Settings, classes: int) -> Iterator[Contender]:
    """Fine-tuning on what is retained, once with the rows shuffled and once as they lie."""
    data = dataset(settings, classes)
    retained = data.y_train != LABEL
    head = LinearHead(data.x_train[retained], data.y_train[retained], classes)
    yield Contender(f"{HEAD}: SGD, shuffled", head.shuffled)
    yield Contender(f"{HEAD}: SGD, rows as stored", head.as_stored)


# -- the curve ---------------------------------------------------------------------------------------------------------


def curves(model: KeyValueClassifier, settings: Settings, classes: int) -> list[Row]:
    """All sizes in one pass, one evaluation at the size that is chosen, and sizes evaluated one by one."""
    data, ranking = dataset(settings, classes), ranked(model)
    x, y = data.x_test, data.y_test
    forgetful = copy.copy(model)
    forgetful.forget(LABEL)
    sizes = np.linspace(0, ranking.largest, SIZES).astype(np.int64)
    timed = sizes[SIZES // TIMED // 2 :: SIZES // TIMED]
    details = {"sizes": ranking.largest + 1, "sizes_checked": check(model, ranking, settings, classes)}
    details["note"] = (
        f"{details['sizes']:,} sizes; right answers at {details['sizes_checked']} of them counted again by masking"
    )

    def one_by_one() -> None:
        for size in timed:
            at_size(model, ranking, size).predict(x)

    some = {"note": f"timed on {TIMED} of {SIZES} sizes, scaled"}
    return measure(
        curve_case(classes),
        [
            Contender("excise", lambda: model.forgetting_curve(x, y, LABEL), len(x), details=details),
            Contender(
                ONE,
                lambda: forgetful.with_mask(forgetful.mask).predict(x),
                len(x),
                details={"note": "keys prepared for search, then predicted"},
            ),
            Contender(MANY, one_by_one, len(x) * TIMED / SIZES, len(x), some),
        ],
        settings.size(7, 1),
        budget=8,
    )


def ranked(model: KeyValueClassifier) -> Ranking:
    """The pairs of the class in the order of masking."""
    pairs, counts = model.activations_.of(LABEL)
    return rank_by_activations(pairs, counts, 0, model.activations_.totals[pairs] - counts)


def at_size(model: KeyValueClassifier, ranking: Ranking, size: int) -> KeyValueClassifier:
    """The model under a mask of one size."""
    return model.with_mask(ranking.mask(size, model.mask.shape))


def check(model: KeyValueClassifier, ranking: Ranking, settings: Settings, classes: int) -> int:
    """How many random sizes were evaluated by masking; the run stops where the curve counts other right answers."""
    data = dataset(settings, classes)
    x, y = data.x_test[:EXAMPLES], data.y_test[:EXAMPLES]
    curve, forget = model.forgetting_curve(x, y, LABEL), y == LABEL
    retain_hits = np.rint(curve.retain_accuracy * curve.retain_examples)
    forget_hits = np.rint(curve.forget_accuracy * curve.forget_examples)
    if len(curve.sizes) != ranking.largest + 1:
        raise RuntimeError(f"the curve has {len(curve.sizes):,} sizes, the ranking {ranking.largest + 1:,}")
    sizes = np.random.default_rng(settings.seed).permutation(len(curve.sizes))[:CHECKED]
    for size in sizes:
        right = at_size(model, ranking, size).predict(x) == y
        if (right[~forget].sum(), right[forget].sum()) != (retain_hits[size], forget_hits[size]):
            raise RuntimeError(f"at size {size:,} the curve counts other right answers than masking gives")
    return len(sizes)


# -- predictions -------------------------------------------------------------------------------------------------------


def predictions(model: KeyValueClassifier, settings: Settings, classes: int) -> list[Row]:
    """Test examples before, under a mask, and after its pairs were erased; keys are prepared already."""
    x = dataset(settings, classes).x_test
    masked, how = forget_share(model)
    erased = copy.copy(masked)
    erased.erase()
    if not np.array_equal(masked.predict(x), erased.predict(x)):
        raise RuntimeError("erasing changed a prediction")
    contenders: list[tuple[str, Callable, Row]] = [
        (BEFORE, model.predict, {}),
        (MASKED, masked.predict, {"note": how}),
        (ERASED, erased.predict, {"note": how}),
    ]
    rows = measure(
        prediction_case(classes),
        [Contender(name, lambda f=predict: f(x), len(x), None, d) for name, predict, d in contenders],
        settings.size(15, 2),
    )
    return [{**row, "best_rate": row["work"] / row["best_seconds"]} for row in rows]


def forget_share(model: KeyValueClassifier) -> tuple[KeyValueClassifier, str]:
    """A copy that forgot as many classes as it takes to fill the mask, by their common ranking; and that in words."""
    wanted = int(SHARE * model.mask.size)
    for last in range(1, len(model.classes_)):
        other = copy.copy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what so large a mask costs
            record = other.forget(list(range(last)), pairs=wanted)
        if record.masked == wanted:
            return other, f"the {wanted:,} pairs that {last} of the classes activate most"
    raise RuntimeError(f"all classes but one activate fewer than {wanted:,} pairs")
