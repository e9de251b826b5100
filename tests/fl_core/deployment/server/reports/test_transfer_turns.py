"""Turns go to transfers that are fast, a few at a time; no client holds one by sending little, and none is lost."""

import asyncio
import contextlib

import pytest

from fedlm.fl_core.deployment.server.reports.transfer_turns import Turns

FAST = 1 << 20


async def take_turns(turns, number, steps, log, pause=0.0, size=FAST):
    with turns.transfer() as transfer:
        for _ in range(steps):
            await transfer.turn()
            log.append(number)
            await asyncio.sleep(pause)
            transfer.moved(size)


async def test_as_many_as_there_are_turns_go_on_and_the_others_follow_in_order():
    turns, log = Turns(2), []
    await asyncio.gather(*(take_turns(turns, number, 5, log) for number in range(6)))
    assert sorted(log) == sorted(list(range(6)) * 5)
    first = [log.index(number) for number in range(6)]
    last = [max(place for place, one in enumerate(log) if one == number) for number in range(6)]
    assert first == sorted(first)
    for number in range(2, 6):
        # Somebody had ended before it began, and no more than one beside it is under way.
        assert sum(first[other] < first[number] <= last[other] for other in range(number)) <= 1


@pytest.mark.parametrize("size", [0, 1000])
async def test_a_client_that_sends_little_keeps_nobody_waiting(size):
    turns, log = Turns(1), []
    drip = asyncio.create_task(take_turns(turns, "drip", 1000, log, 0.02, size))
    await asyncio.sleep(0)
    started = asyncio.get_running_loop().time()
    await take_turns(turns, "fast", 3, log)
    seconds = asyncio.get_running_loop().time() - started
    drip.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drip
    assert log[0] == "drip"
    assert seconds < 1


async def test_a_slow_transfer_goes_on_while_all_turns_are_taken():
    turns, log = Turns(1), []
    slow = asyncio.create_task(take_turns(turns, "slow", 4, log, 0.2, 1000))
    await asyncio.sleep(0.15)
    with turns.transfer() as holder:
        await holder.turn()
        for _ in range(100):
            await asyncio.sleep(0.01)
            holder.moved(FAST)
        assert (log.count("slow"), slow.done()) == (4, True)


async def test_a_slow_transfer_that_becomes_fast_waits_its_turn_again():
    turns, log = Turns(1), []
    with turns.transfer() as changing, turns.transfer() as holder:
        await changing.turn()
        await asyncio.sleep(0.15)
        changing.moved(1)
        await holder.turn()
        await changing.turn()
        changing.moved(FAST)
        again = asyncio.create_task(changing.turn())
        later = asyncio.create_task(take_turns(turns, "new", 1, log))
        await asyncio.sleep(0)
        waits = not again.done()
        holder.give_up()
        await again
        changing.give_up()
        await later
        assert (waits, log) == (True, ["new"])


async def test_turns_outlive_those_that_are_cancelled_while_they_wait():
    turns, log = Turns(1), []
    with turns.transfer() as holder:
        await holder.turn()
        waiting = [asyncio.create_task(take_turns(turns, number, 1, log)) for number in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        # One is cancelled in the same moment in which the turn becomes its own.
        holder.give_up()
        waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(1):
        await take_turns(turns, "last", 1, log)
    assert log == [2, 3, "last"]
