"""The report for people: whole, valid, of nothing but its data, and safe whatever a class is called."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SMALL, blobs
from excise import ExciseError, InputError, KeyValueClassifier
from excise.report import make_report
from excise.report_figures import MOST_DESTINATIONS, destinations
from excise.report_page import render_html, render_markdown, write_report

NASTY = np.array(["<script>alert(1)</script>", 'a"b|c`_*', "cow & calf", "a name that is longer than its place"])
SECTIONS = [
    "Asked and done", "Accuracy", "Distance to an exact re-fit", "Every size of the mask",
    "Where the forgotten examples go", "Retained classes", "Cost", "What is left", "Limits", "Not measured",
]  # fmt: skip
VOID = {"meta", "br"}


def measured(names: Any = None, forget: Any = 0, erase: bool = False, by: str = "activations") -> dict[str, Any]:
    X, y = blobs(200, classes=4, seed=3)
    y = y if names is None else names[y]
    model = KeyValueClassifier(**SMALL | {"top_k": 2}).fit(X[:120], y[:120])
    model.forget(forget, by=by)
    if erase:
        model.erase()
    return make_report(model, X[120:], y[120:], milliseconds={1: 1.5})


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measured(NASTY, NASTY[0])


CASES = {
    "masked": lambda: measured(),
    "several": lambda: measured(forget=[0, 2]),
    "nasty": lambda: measured(NASTY, list(NASTY[:2])),
    "exact": lambda: measured(by="exact"),
    "erased": lambda: measured(erase=True),
}


class Checker(HTMLParser):
    """Refuses what does not close in order; gathers tags, attributes and text."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def texts(self, tag: str) -> list[str]:
        return [name for name, _ in self.tags if name == tag]


@pytest.mark.parametrize("case", CASES)
def test_pages_are_whole_and_stand_alone(case: str) -> None:
    report = CASES[case]()
    page = render_html(report)
    found = Checker(page)
    words = " ".join(found.words)
    assert [title for title in SECTIONS if title not in words] == []
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not [
        name for _, attributes in found.tags for name in attributes if name in ("src", "href") or name[:2] == "on"
    ]
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "nan" not in re.findall(r"[a-z]+", words.lower())
    assert "None" not in words
    assert "svg" in tags


@pytest.mark.parametrize("case", CASES)
def test_markdown_has_every_section(case: str) -> None:
    text = render_markdown(CASES[case]())
    assert [line[3:] for line in text.splitlines() if line.startswith("## ") and line != "## Warnings"] == SECTIONS
    assert "None" not in text
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_names_of_classes_are_only_text(report: dict[str, Any]) -> None:
    page, text = render_html(report), render_markdown(report)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a&quot;b|c`_*" in page
    assert "<script" not in text
    assert 'a"b\\|c\\`\\_\\*' in text


def test_pages_come_from_the_data_alone(report: dict[str, Any]) -> None:
    again = json.loads(json.dumps(report))
    assert render_html(again) == render_html(report)
    assert render_markdown(again) == render_markdown(report)


def test_the_numbers_are_those_of_the_data(report: dict[str, Any]) -> None:
    page, text = render_html(report), render_markdown(report)
    for row in report["accuracy"].values():
        if row is not None:
            assert f"{row['retain']['accuracy']:.1%}" in page
            assert f"{row['retain']['accuracy']:.1%}" in text
    assert "no claim of legal compliance" in page
    assert "no claim of legal compliance" in text
    for warning in report["warnings"]:
        assert warning.split(":")[0] in text
    for part in report["skipped"]:
        assert part["why"] in page


def test_pictures_show_every_point_and_the_chosen_size(report: dict[str, Any]) -> None:
    tags = Checker(render_html(report)).tags
    classes = [attributes.get("class") for _, attributes in tags]
    assert classes.count("dot") == len(report["curve"]["pairs"])
    assert classes.count("curve retain") == classes.count("curve forget") == 1
    assert classes.count("level oracle") == classes.count("level knock-out") == 2
    assert classes.count("chosen-line") == 2
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")


def test_rare_destinations_are_added_up() -> None:
    sides = {side: [{"class": i, "count": 30 - i} for i in range(25)] for side in ("after", "oracle")}
    found = destinations({**sides, "knock_out": None})
    assert len(found) == MOST_DESTINATIONS
    assert found[-1][0] == "16 others"
    assert sum(of["after"] or 0 for _, of in found) == sum(30 - i for i in range(25))
    assert {of["knock_out"] for _, of in found} == {None}


def test_many_classes_fit() -> None:
    report = measured()
    row = report["collateral"]["classes"][0]
    report["collateral"]["classes"] = [{**row, "class": i, "change_points": i / 10 - 4} for i in range(99)]
    report["redirection"] *= 14
    page = render_html(report)
    assert "The other 79 classes changed by \u22122.0 to +5.8 points." in page
    assert "has 2 forgotten classes more" in page


@pytest.mark.parametrize("suffix", [".json", ".html", ".md"])
def test_reports_are_written_whole(suffix: str, tmp_path: Path, report: dict[str, Any]) -> None:
    path = tmp_path / f"report{suffix.upper()}"
    write_report(report, path)
    words = path.read_text()
    assert words.endswith("\n")
    if suffix == ".json":
        assert json.loads(words) == report
    else:
        assert words == (render_html(report) if suffix == ".html" else render_markdown(report))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_what_cannot_be_written_is_refused(tmp_path: Path, report: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"report\.pdf: its name must end in one of \.json, \.html, \.md"):
        write_report(report, tmp_path / "report.pdf")
    with pytest.raises(ExciseError, match="does not exist; create it first"):
        write_report(report, tmp_path / "no" / "report.html")
    broken = copy.deepcopy(report)
    del broken["cost"]
    with pytest.raises(KeyError):
        write_report(broken, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
