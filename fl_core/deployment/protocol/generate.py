"""Makes `messages_pb2.py` and its types of `messages.proto`: `python -m fedlm.fl_core.deployment.protocol.generate`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_DISTRIBUTION, _SOURCE = Path("clients/fedlm_client"), Path("fedlm_client/messages.proto")


def generate(out: Path) -> None:
    """Run the compiler of grpcio-tools; its output goes below `out` as it lies in the distribution of clients."""
    from grpc_tools import protoc

    words = [f"-I{_ROOT / _DISTRIBUTION}", f"--python_out={out}", f"--pyi_out={out}", str(_SOURCE)]
    if protoc.main(["protoc", *words]):
        sys.exit("protoc failed")


if __name__ == "__main__":
    generate(_ROOT / _DISTRIBUTION)
