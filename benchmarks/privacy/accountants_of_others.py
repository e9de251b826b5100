"""Epsilons by other accountants, each by its library's own ways, in an environment that has the library.

    python benchmarks/privacy/accountants_of_others.py NAME... < points.json > answers.jsonl

`accountants.py` runs this. The first line has versions, each other one the answers for a point. An answer is epsilon, a
lower bound and epsilon where the accountant has both, or why there is none.
"""

import json
import logging
import math
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version

SECONDS = 10
BYTES = 8 << 30
Answer = float | list[float]


def losses_on_a_grid(noise: float, probability: float, steps: int, delta: float, *, pessimistic: bool) -> float:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(
        noise, pessimistic_estimate=pessimistic, sampling_prob=probability, use_connect_dots=pessimistic
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def pessimistic(noise: float, probability: float, steps: int, delta: float) -> float:
    return losses_on_a_grid(noise, probability, steps, delta, pessimistic=True)


def optimistic(noise: float, probability: float, steps: int, delta: float) -> float:
    return losses_on_a_grid(noise, probability, steps, delta, pessimistic=False)


def renyi(noise: float, probability: float, steps: int, delta: float) -> float:
    import dp_accounting

    step = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(noise))
    accountant = dp_accounting.rdp.RdpAccountant()
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps)).get_epsilon(delta))


def prv_accountant(noise: float, probability: float, steps: int, delta: float) -> list[float]:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    step = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=probability)
    accountant = PRVAccountant([step], max_self_compositions=[steps], eps_error=0.01, delta_error=delta / 1000)
    low, _, high = accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])
    return [float(low), float(high)]


def opacus_prv(noise: float, probability: float, steps: int, delta: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise, probability, steps)]
    return float(accountant.get_epsilon(delta=delta))


def opacus_rdp(noise: float, probability: float, steps: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, probability, steps)]
    return float(accountant.get_epsilon(delta=delta))


ACCOUNTANTS: dict[str, Callable[[float, float, int, float], Answer]] = {
    "dp-accounting, pessimistic": pessimistic,
    "dp-accounting, optimistic": optimistic,
    "dp-accounting, Renyi": renyi,
    "prv-accountant": prv_accountant,
    "Opacus, PRV": opacus_prv,
    "Opacus, Renyi": opacus_rdp,
}


def answer(name: str, point: list[float]) -> dict[str, object]:
    noise, probability, steps, delta = point
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        found = ACCOUNTANTS[name](noise, probability, int(steps), delta)
    except TimeoutError:
        return {"none": f"more than {SECONDS} s"}
    except MemoryError:
        return {"none": f"more than {BYTES >> 30} GiB"}
    except Exception as error:  # What a library raises is what it answers.
        return {"none": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = round(time.process_time() - start, 2)
    if any(math.isnan(one) for one in (found if isinstance(found, list) else [found])):
        return {"none": "not a number", "seconds": seconds}
    return {"epsilon": found, "seconds": seconds}


def too_long(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGPROF, too_long)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    points, names = json.load(sys.stdin), sys.argv[1:]
    libraries = sorted({name.partition(",")[0].lower() for name in names})
    print(json.dumps({one: version(one) for one in libraries}))
    for point in points:
        print(json.dumps({name: answer(name, point) for name in names}), flush=True)


if __name__ == "__main__":
    main()
