"""Makes `messages_pb2.py` and its types of `messages.proto`: `python -m fedlm.fl_core.deployment.protocol.generate`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_SOURCE = Path("fl_core/deployment/protocol/messages.proto")


def generate(out: Path) -> None:
    """Run the compiler of grpcio-tools; its output goes below `out` as it lies below the repository's root."""
    from grpc_tools import protoc

    words = ["protoc", f"-I{_ROOT}", f"--python_out={out}", f"--pyi_out={out}", str(_ROOT / _SOURCE)]
    if protoc.main(words):
        sys.exit("protoc failed")


if __name__ == "__main__":
    generate(_ROOT)
