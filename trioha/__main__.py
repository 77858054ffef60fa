"""`python -m trioha` is the `trioha` command."""

import sys

from trioha.cli import main

if __name__ == "__main__":
    sys.exit(main())
