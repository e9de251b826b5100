"""Many virtual clients in one process, over connections of their own, for load tests and demonstrations.

They are `fedlm.fedlm_client.client.Client`s and share compiled programs; only their devices are made up.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fedlm.clients.fleet.population import Population
from fedlm.clients.fleet.virtual_device import Tally, VirtualDevice, VirtualLink
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.limits import Limits
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.training import Channel, Trainer

_ARRIVALS_A_SECOND, _CHECK_INS_AT_ONCE = 200, 32
_LONGEST_RECHECK = 30.0


class Fleet:
    """Virtual clients of one server.

    Attributes:
      devices: one a client.
      tally: what they have done.
    """

    def __init__(
        self,
        clients: int,
        population: Population,
        dial: Callable[[int], Channel],
        trainer: Callable[[int], Trainer],
        *,
        clock: Callable[[], float] = time.time,
        participation: Callable[[int], OwnParticipation] = lambda number: OwnParticipation(),
        sums: Callable[[int], SecureSums | None] = lambda number: None,
    ):
        """Make them; nothing is sent before `run`.

        Args:
          clients: how many.
          population: that their devices are of.
          dial: from a client's number to its connection; called in the event loop.
          trainer: from a client's number to who trains on its text.
          clock: in seconds, of the population.
          participation: from a client's number to its own count of rounds; of this process alone where not given.
          sums: from a client's number to what it needs for secure sums; it takes part in none where not given.
        """
        self.tally = Tally()
        self.devices = [VirtualDevice(population, number, self.tally, clock) for number in range(clients)]
        self._dial, self._trainer = dial, trainer
        self._participation, self._sums = participation, sums
        recheck = min(population.stay_seconds / 2, _LONGEST_RECHECK)
        # They share this machine's memory.
        self._limits = Limits(keep_model=False, recheck_seconds=recheck)
        self._arriving = random.Random(population.seed)
        self._checking_in = asyncio.Semaphore(_CHECK_INS_AT_ONCE)

    def available(self) -> int:
        """Count the devices that are there now."""
        return sum(device.available() for device in self.devices)

    async def run(self, seconds: float | None = None) -> bool:
        """Take part until the server says that the run is over, or that no client may take part again.

        Returns:
          Whether the run is over for everybody; also False after so many `seconds`.

        Raises:
          ClientError: the server turns a client away.
        """
        with ThreadPoolExecutor(os.cpu_count(), "training") as workers:
            tasks = [asyncio.create_task(self._take_part(device, workers)) for device in self.devices]
            try:
                async with asyncio.timeout(seconds) as limit:
                    for task in asyncio.as_completed(tasks):
                        if await task:
                            return True
                return False
            except TimeoutError:
                if not limit.expired():
                    raise
                return False
            finally:
                for device, task in zip(self.devices, tasks, strict=True):
                    device.gone = True
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                workers.shutdown(cancel_futures=True)

    async def _take_part(self, device: VirtualDevice, workers: ThreadPoolExecutor) -> bool:
        """Be one client; returns whether the run is over for everybody."""
        # People do not all come in the same instant.
        await asyncio.sleep(self._arriving.uniform(0, len(self.devices) / _ARRIVALS_A_SECOND))
        client = Client(
            lambda: VirtualLink(self._dial(device.number), device, self._checking_in),
            self._trainer(device.number),
            conditions=device.conditions(),
            limits=self._limits,
            workers=workers,
            participation=self._participation(device.number),
            sums=self._sums(device.number),
        )
        over = await client.run_async()
        device.gone = True
        return over
