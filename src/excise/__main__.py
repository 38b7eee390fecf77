"""The command `excise`, also as `python -m excise`."""

import sys


def main() -> int:
    """Load the shell's door and run it."""
    try:
        from excise.cli import main as run
    except KeyboardInterrupt:
        print("excise: interrupted; no file was left half-written", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
