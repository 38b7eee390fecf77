"""`python -m excise`: the same as the command `excise`."""

import sys

from excise.cli import main

if __name__ == "__main__":
    sys.exit(main())
