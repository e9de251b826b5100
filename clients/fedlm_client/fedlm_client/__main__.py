"""`python -m fedlm_client`."""

import sys

from .cli import main

sys.exit(main())
