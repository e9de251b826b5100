import numpy as np
import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.statements.publishing import MODEL_FILE, load_published


@pytest.mark.parametrize("content", [None, b"", b"no arrays", b"PK\3\4 cut off"])
def test_what_is_no_release_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / MODEL_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{MODEL_FILE}: not the model of a release"):
        load_published(tmp_path, {"w": np.zeros(2, np.float32)})
