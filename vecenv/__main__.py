"""Entry of `python -m vecenv`: the same command line as the `vecenv` script."""

from __future__ import annotations

import sys

from vecenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
