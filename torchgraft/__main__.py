"""`python -m torchgraft` is the command `torchgraft`."""

import sys

from torchgraft.cli import main

sys.exit(main())
