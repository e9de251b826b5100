import importlib.util
from pathlib import Path

import pytest

from fedlm.fedlm_client import messages_pb2
from fedlm.fl_core.deployment.protocol import generate


def test_the_generated_code_is_that_of_the_proto(tmp_path):
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    generate.generate(tmp_path)
    for kind in ("py", "pyi"):
        made = (tmp_path / f"fedlm_client/messages_pb2.{kind}").read_text()
        checked_in = Path(messages_pb2.__file__).with_name(f"messages_pb2.{kind}").read_text()
        # The compiler writes its own version into a comment and a check.
        assert without_versions(made) == without_versions(checked_in), (
            "run python -m fedlm.fl_core.deployment.protocol.generate"
        )


def without_versions(code):
    lines = code.splitlines()
    return [line for line in lines if "Protobuf Python Version" not in line and not line.strip().rstrip(",").isdigit()]
