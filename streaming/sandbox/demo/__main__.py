"""`python -m streaming.sandbox.demo`."""

import sys

from streaming.sandbox.demo.play import main

if __name__ == "__main__":
    sys.exit(main())
