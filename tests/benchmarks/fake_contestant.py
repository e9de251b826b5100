"""Speaks the protocol of the benchmarks' contestants, well or badly, as its argument says."""

import itertools
import os
import sys
import time

from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve

KIND = sys.argv[1]


class Fake:
    variants = ("first", "second") if KIND == "two" else ("only",)
    packages = ("numpy",)
    configuration = "made up"

    def __init__(self) -> None:
        self._rounds = itertools.count(1)

    def run_round(self, variant: str) -> RoundAnswer:
        number = next(self._rounds)
        print("a library prints")
        if number > 2 and KIND == "dies":
            os._exit(1)
        if number > 2 and KIND == "hangs":
            time.sleep(600)
        if number > 2 and KIND == "fails":
            raise ValueError("no more")
        return RoundAnswer(0.5 if variant == "second" else 0.25, 10, 3.5 if KIND == "other work" else 3.0)


answers = private_standard_output()
if KIND == "talks nonsense":
    answers.write("hello\n")
    answers.flush()
if KIND == "never ready":
    time.sleep(600)
serve(Fake(), sys.stdin, answers)
