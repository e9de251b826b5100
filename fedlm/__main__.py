"""`python -m fedlm`, where the command `fedlm` is not on the path."""

import sys

from fedlm.commands.cli import main

sys.exit(main())
