"""The ways in which updates travel, by name. Another one is a file, and a line of `COMPRESSIONS`."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.updates.compressors import Compressor, Scheme
from fedlm.fl_core.updates.float32 import FLOAT32
from fedlm.fl_core.updates.power_sgd import POWER_SGD
from fedlm.fl_core.updates.quantization import UNIFORM

COMPRESSIONS: dict[str, Compressor] = {
    **UNIFORM,
    **FLOAT32,
    **POWER_SGD,
}

ROTATED: dict[str, Any] = {
    name: dataclasses.replace(compressor, rotation=True)  # type: ignore[type-var]
    for name, compressor in COMPRESSIONS.items()
    if "rotation" in compressor.scheme.settings
}
"""Those that can rotate a tensor first, when they do."""

UploadBits = Literal[2, 4, 8, 16, 32]
COMPRESSION_OF_BITS = {2: "uniform2", 4: "uniform4", 8: "uniform8", 16: "uniform16", 32: "float32"}

if TYPE_CHECKING:
    CompressionName = str
else:
    CompressionName = Literal[tuple(COMPRESSIONS)]


def make_compressor(name: str, rotation: bool = False) -> Compressor:
    """Choose how updates travel; raises `ConfigurationError` where none is called so, or it does not rotate."""
    if name not in COMPRESSIONS:
        raise ConfigurationError(f"{setting('compression')} is {name!r}, but must be one of {', '.join(COMPRESSIONS)}")
    if rotation and name not in ROTATED:
        raise ConfigurationError(
            f"{setting('upload_rotation')} is on, but {name} does not rotate; choose one of {', '.join(ROTATED)}"
        )
    return ROTATED[name] if rotation else COMPRESSIONS[name]


def compressor_of(scheme: Scheme) -> Compressor:
    """Find what a server asks for; raises `ConfigurationError` where this software does not have exactly that."""
    for compressor in (*COMPRESSIONS.values(), *ROTATED.values()):
        if compressor.scheme == scheme:
            return compressor
    raise ConfigurationError(
        f"there is no compression of scheme {scheme.number}, version {scheme.version}, with settings {scheme.settings}"
    )
