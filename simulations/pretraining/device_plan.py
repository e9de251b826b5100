"""What a step of central training needs of each device, by the compiler's own count, before any device is paid for.

The programs of a step are compiled for so many devices, which need not be there: CPU devices stand in for them. No
array is made and nothing is computed, so that a model may be far larger than this machine.
"""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.simulations.pretraining.exchanged_bytes import exchanged_bytes
from fedlm.simulations.pretraining.trainer import MICROBATCHES, LoweredStep, Trainer

_FORMAT = 1


class ProgramNeeds(NamedTuple):
    """What one run of a program needs, in bytes on each device.

    Attributes:
      arguments: arrays that come in.
      outputs: arrays that come out, without those that take the place of arguments.
      temporaries: what the compiler planned in between, at its most.
      exchanged_least: what a device sends to others, where no microbatch has a unit.
      exchanged_most: the same, where all have.
    """

    arguments: int
    outputs: int
    temporaries: int
    exchanged_least: float
    exchanged_most: float


class Phase(NamedTuple):
    """A part of a step: one program, run once or for every chunk.

    Attributes:
      name: of the program.
      held: bytes on each device of what the program does not touch, but a later one needs.
      needs: of the program.
      exchanged: bytes that a device sends to others in all of a step.
    """

    name: str
    held: int
    needs: ProgramNeeds
    exchanged: float

    @property
    def memory(self) -> int:
        """Bytes on each device, at the most."""
        return self.held + self.needs.arguments + self.needs.outputs + self.needs.temporaries


class DevicePlan(NamedTuple):
    """What a step needs of each device.

    Attributes:
      devices: how many there are.
      kept: bytes on each device by what they are of: parameters, optimizer, noise state, sums, noise, and parameters
        that are not trained (frozen).
      phases: in order.
      chunks: of a batch of the expected size, at the most.
      microbatches: of such a batch, each on all devices, at the most.
    """

    devices: int
    kept: dict[str, int]
    phases: list[Phase]
    chunks: int
    microbatches: int

    @property
    def memory(self) -> int:
        """Bytes on each device, in the phase that needs most."""
        return max(phase.memory for phase in self.phases)

    @property
    def exchanged(self) -> float:
        """Bytes that each device sends to others in a step."""
        return sum(phase.exchanged for phase in self.phases)


def plan_step(
    trainer: Trainer,
    sequences_per_unit: int,
    length: int,
    *,
    bands: int = 1,
    padded_lengths: int = 1,
    cache: Path | None = None,
    compiling: Callable[[str], None] = lambda name: None,
) -> DevicePlan:
    """Compile the programs of a step, and add up what they need.

    Args:
      trainer: of the devices that are planned for.
      sequences_per_unit: K, sequences of a unit.
      length: tokens that the model reads in a sequence.
      bands: of the noise, all but one of which are kept from step to step.
      padded_lengths: how many lengths units are padded to, the greatest of which is planned for. The last chunk of each
        is not full.
      cache: folder in which what a program needs is kept, so that none is compiled twice.
      compiling: hears the name of a program before it is compiled.

    Raises:
      UncountableError: the compiler has made of a program what cannot be counted.
    """
    lowered = trainer.lower(sequences_per_unit, length)
    kept = _kept(lowered, bands)
    microbatches = math.ceil(trainer.batch_size * MICROBATCHES / trainer.chunk_units) + padded_lengths - 1
    chunks = math.ceil(trainer.batch_size / trainer.chunk_units) + padded_lengths - 1
    state = kept["parameters"] + kept["optimizer"]
    held = {
        "chunk": kept["optimizer"],
        "noise": state + kept["sums"] + kept["frozen"],
        "release": state + kept["frozen"],
        "update": kept["sums"] + kept["noise"] + kept["frozen"],
    }
    if "release" not in lowered.programs:
        held["update"] = kept["frozen"]
    phases = []
    for name, program in lowered.programs.items():
        needs = _needs(program, trainer.devices, cache, lambda name=name: compiling(name))  # type: ignore[misc]
        exchanged = needs.exchanged_most
        if name == "chunk":
            # A microbatch without units is skipped.
            one = (needs.exchanged_most - needs.exchanged_least) / MICROBATCHES
            exchanged = chunks * needs.exchanged_least + microbatches * one
        phases.append(Phase(name, held[name] + kept["noise state"], needs, exchanged))
    return DevicePlan(trainer.devices, kept, phases, chunks, microbatches)


def _kept(lowered: LoweredStep, bands: int) -> dict[str, int]:
    noise = device_bytes(lowered.noise)
    return {
        "parameters": device_bytes(lowered.state.params),
        "optimizer": device_bytes(lowered.state.optimizer),
        "noise state": (bands - 1) * noise,
        "sums": device_bytes(lowered.sums),
        "noise": noise,
        "frozen": device_bytes(lowered.frozen),
    }


def device_bytes(tree: Any) -> int:
    """Add up the bytes of arrays on each device, of shapes that have shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree_util.tree_leaves(tree)
    )


def _needs(
    program: jax.stages.Lowered, devices: int, cache: Path | None, compiling: Callable[[], None]
) -> ProgramNeeds:
    file = None if cache is None else cache / f"{_fingerprint(program, devices)}.json"
    if file is not None and file.exists():
        return ProgramNeeds(**json.loads(file.read_text()))
    compiling()
    compiled = program.compile()
    used: Any = compiled.memory_analysis()
    exchanged = exchanged_bytes(compiled.as_text() or "", devices)
    needs = ProgramNeeds(
        arguments=used.argument_size_in_bytes,
        outputs=used.output_size_in_bytes - used.alias_size_in_bytes,
        temporaries=used.temp_size_in_bytes,
        exchanged_least=sum(exchanged.least.values()),
        exchanged_most=sum(exchanged.most.values()),
    )
    if file is not None:
        make_folder(file.parent)
        write_atomically(file, json.dumps(needs._asdict()))
    return needs


def _fingerprint(program: jax.stages.Lowered, devices: int) -> str:
    about = f"{_FORMAT} {jax.__version__} {jaxlib.__version__} {jax.default_backend()} {devices}"
    return hashlib.sha256(f"{about}\n{program.as_text()}".encode()).hexdigest()
