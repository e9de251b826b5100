"""Time a mask and an addition of Flower's SecAgg+ in CPU seconds: `python flower_masks.py LENGTH BITS`."""

import json
import sys
import time

import numpy as np
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

TIMES = 3


def main() -> None:
    length, modulus = int(sys.argv[1]), 1 << int(sys.argv[2])
    total = [np.zeros(length, np.int64)]
    begin = time.process_time()
    for number in range(TIMES):
        mask = pseudo_rand_gen(bytes([number]) * 44, modulus, [(length,)])
        total = parameters_mod(parameters_addition(total, mask), modulus)
    masked = time.process_time()
    for _ in range(TIMES):
        total = parameters_addition(total, mask)
    added = time.process_time()
    print(json.dumps({"mask": (masked - begin) / TIMES, "add": (added - masked) / TIMES}))


if __name__ == "__main__":
    main()
