"""`python -m fedlm_client`."""

import sys

from fedlm_client.cli import main

sys.exit(main())
