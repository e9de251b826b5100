"""The ways in which updates travel, by the bits of a value."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from fedlm.fl_core.compression.compressors import Compressor
from fedlm.fl_core.compression.float32 import Float32Upload
from fedlm.fl_core.compression.quantization import UniformQuantization
from fedlm.fl_core.errors import ConfigurationError

UploadBits = Literal[2, 4, 8, 16, 32]
COMPRESSORS: dict[int, Callable[[bool], Compressor]] = {
    2: partial(UniformQuantization, 2),
    4: partial(UniformQuantization, 4),
    8: partial(UniformQuantization, 8),
    16: partial(UniformQuantization, 16),
    32: lambda rotation: Float32Upload(),
}
"""From bits a value, and whether to rotate, to the compressor."""


def make_compressor(upload_bits: int, rotation: bool = False) -> Compressor:
    """Choose how updates travel: 2, 4, 8 or 16 bits a value, rotated or not, or 32 for float32 as it is."""
    if upload_bits not in COMPRESSORS:
        raise ConfigurationError(f"upload_bits is {upload_bits}, but must be one of {', '.join(map(str, COMPRESSORS))}")
    if rotation and upload_bits == 32:
        raise ConfigurationError("upload_rotation is on, but 32-bit uploads are not quantized; choose fewer bits")
    return COMPRESSORS[upload_bits](rotation)
