"""Settings of this folder's tests."""

import sys
from pathlib import Path

# Under importlib mode a test finds the helper modules beside it only so.
sys.path.insert(0, str(Path(__file__).parent))
