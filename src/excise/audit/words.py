"""The sentences of a report: what a reader must not overlook, the key numbers in words, and the limits."""

from typing import Any

from excise.forgetting.requests import Request

Part = dict[str, Any]

LIMITS = (
    "The scope is the bottleneck: its keys, values and mask. The backbone that computes the features is no part of it.",
    "Measured are predictions on the test examples given here. Accuracy on forgotten classes proves little alone: the "
    "logit knock-out reaches 0% as well, at no cost.",
    "The exact re-fit is the reference with respect to the values; its keys were placed with the help of all training "
    "examples, unless they were drawn anew.",
    "No attack was run: whether an example was in the training data may still show in ways that are not measured here.",
    "Intervals are Wilson's, at 95%: they tell of the number of test examples, not of other seeds or other data.",
    "This is no claim of legal compliance. The report states a method, its scope and what was measured; whether that "
    "satisfies a law is not for software to say.",
)
OF_METHODS = {
    "activations": "Masking by activations hides the pairs that a class selects most. It forgets a class, not single "
    "examples, and examples of other classes that selected those pairs now select others.",
    "examples": "Masking by examples hides every pair that some examples of a class selected. It forgets a class, not "
    "single examples, and examples of other classes that selected those pairs now select others.",
    "exact": "The exact re-fit trains the values again on what is retained: they are those of a model that never saw "
    "the rest, under the same keys.",
}
MOST_SENTENCES = 5  # on retained classes; more of them share one
FORGOTTEN = {"retain": "retained", "forget": "forgotten"}


def limits_of(requests: list[Request]) -> list[str]:
    """What the methods used do not do, then what no report says."""
    return [*(OF_METHODS[by] for by in sorted({request.by for request in requests})), *LIMITS]


def named(labels: list[Any], most: int = 5) -> str:
    """Classes in words."""
    names = ", ".join(str(label) for label in labels[:most])
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"class{'es' if len(labels) > 1 else ''} {names}{more}"


def warnings_of(report: Part, requests: list[Request]) -> list[str]:
    """What a reader must not overlook."""
    said = [f"Request {request.id}: {request.warning}." for request in requests if request.warning]
    forget = report["accuracy"]["after"]["forget"]
    if forget is not None and forget["right"]:
        said.append(f"{forget['right']:,} of {forget['examples']:,} forgotten test examples are still recognised.")
    fallen = [row for row in report["collateral"]["classes"] if row["flagged"]]
    for row in fallen if len(fallen) <= MOST_SENTENCES else []:
        said.append(
            f"Retained class {row['class']} fell by {-row['change_points']:.1f} points, "
            f"from {row['before']:.1%} to {row['after']:.1%} of {row['examples']:,} test examples."
        )
    if len(fallen) > MOST_SENTENCES:
        names = ", ".join(f"{row['class']} ({row['change_points']:.1f})" for row in fallen)
        limit = -report["collateral"]["flagged_below_points"]
        said.append(f"{len(fallen):,} retained classes fell by more than {limit:g} points of accuracy: {names}.")
    distances = report["distance"]["rows"] if report["distance"] else {}
    after, control = distances.get("after"), distances.get("knock_out")
    nearer = [
        f"{control[group]['divergence']:.2g} against {after[group]['divergence']:.2g} nats on {name} examples"
        for group, name in FORGOTTEN.items()
        if after and control and after[group]["divergence"] > control[group]["divergence"]
    ]
    if nearer:
        said.append(f"The logit knock-out is nearer to the exact re-fit than the model now is: {', '.join(nearer)}.")
    return said


def summarise(report: Part) -> Part:
    """The key numbers, and two sentences that hold them."""
    rows, done = report["accuracy"], report["asked_and_done"]
    before, after, control = rows["before"], rows["after"], rows["knock_out"]
    distances = report["distance"]["rows"] if report["distance"] else {}
    found = {
        "forgotten": done["forgotten"],
        "pairs": done["totals"]["pairs"],
        "pairs_masked": done["totals"]["masked_by_requests"],
        "before": before and _accuracies(before),
        "after": _accuracies(after),
        "forget_interval": after["forget"] and after["forget"]["interval"],
        "retain_change": after["retain_change"],
        "knock_out": control and _accuracies(control),
        "distance": distances.get("after"),
        "knock_out_distance": distances.get("knock_out"),
        "noise_floor": distances.get("oracle_other_order"),
    }
    return {"text": " ".join(filter(None, [_what_happened(found, after), _beside_what(found)])), **found}


def _accuracies(row: Part) -> Part:
    return {group: row[group] and row[group]["accuracy"] for group in FORGOTTEN}


def _what_happened(found: Part, after: Part) -> str:
    forgotten, before, masked = found["forgotten"], found["before"], found["pairs_masked"]
    subject = named(forgotten) if forgotten else "training examples"
    said = f"{subject[0].upper()}{subject[1:]} {'was' if len(forgotten) == 1 else 'were'} forgotten"
    if masked:
        said += f" by masking {masked:,} of {found['pairs']:,} pairs ({masked / found['pairs']:.1%})"
    elif masked == 0:
        said += " by an exact re-fit"
    parts = []
    if after["forget"] is not None:
        low, high = found["forget_interval"]
        went = _went(before and before["forget"], after["forget"]["accuracy"])
        examples = f"{after['forget']['examples']:,}"
        which = f"its {examples}" if len(forgotten) == 1 else f"the {examples} forgotten"
        parts.append(f"accuracy on {which} test examples {went} (95% interval {low:.1%} to {high:.1%})")
    went = _went(before and before["retain"], after["retain"]["accuracy"])
    change = "" if found["retain_change"] is None else f" ({found['retain_change']:+.1%} relative)"
    parts.append(
        f"{'' if parts else 'accuracy '}on the {after['retain']['examples']:,} retained ones it {went}{change}"
    )
    return f"{said}: {', '.join(parts)}."


def _went(before: float | None, after: float) -> str:
    return f"is {after:.1%}" if before is None else f"went from {before:.1%} to {after:.1%}"


def _beside_what(found: Part) -> str:
    """The distance to the exact re-fit beside the noise floor, and the trivial control."""
    distance, floor, control = found["distance"], found["noise_floor"], found["knock_out"]
    parts = []
    if distance and floor:
        group = "forget" if distance["forget"] else "retain"
        apart, least = distance[group]["divergence"], floor[group]["divergence"]
        parts.append(
            f"the predictions on {FORGOTTEN[group]} examples lie {apart:.2g} nats from those of an exact re-fit, where "
            f"two such re-fits lie {least:.2g} apart"
        )
    if control:
        said = f"the trivial control, the logit at minus infinity, reaches {control['forget']:.1%}"
        said += f" with {control['retain']:.1%} retained"
        if found["knock_out_distance"]:
            said += f", {found['knock_out_distance']['forget']['divergence']:.2g} nats away"
        parts.append(said)
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
