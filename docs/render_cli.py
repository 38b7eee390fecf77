"""Renders docs/cli.md from the help of the command line: python docs/render_cli.py."""

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from excise.cli import build_parser

PAGE = Path(__file__).with_name("cli.md")
VERBS = ("demo", "train", "evaluate", "predict", "info", "forget", "restore", "erase", "curve", "report")
INTRODUCTION = """# The command line

What `excise --help` and the help of each command say. This page is generated: `python docs/render_cli.py`.
`python -m excise` is the same command.
"""


def help_of(*words: str) -> str:
    """What `excise WORDS --help` prints on a terminal of 100 columns."""
    out = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="100"), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        build_parser().parse_args([*words, "--help"])
    return out.getvalue().strip()


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for words in ((), *((verb,) for verb in VERBS)):
        parts.append(f"## {' '.join(('excise', *words))}\n\n```text\n{help_of(*words)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
