"""The command `excise`, also as `python -m excise`."""

import sys

from excise.errors import ExciseError
from excise.progress import say


def main() -> int:
    """Load the shell's door and run it."""
    try:
        from excise.cli import main as run
    except KeyboardInterrupt:
        say("excise: interrupted; no file was left half-written")
        return 130
    except ExciseError as error:  # kernels are chosen at import
        say(f"excise: error: {error}")
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
