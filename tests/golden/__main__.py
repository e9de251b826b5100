"""`python -m tests.golden --against COMMIT`: run the same commands with old code and new, and compare all that they
print and write, bit by bit."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.golden.cases import CASES, Case
from tests.golden.contents import Fields, read_folder
from tests.golden.differences import Allowed, AllowedError, Difference, compare, read_allowed
from tests.golden.inputs import write_inputs
from tests.golden.rules import normalised
from tests.golden.sides import ROOT, CommitError, Side, SideError, free_ports, write_tree

_MOST_SHOWN = 12  # differences of a case
_EPILOG = """\
The new code is this working tree as it is, with what is not committed. Both run in this environment, with seeds and the
operating system's entropy fixed; what differs by nature (times, folders, ports) is left out by tests/golden/rules.py.
A difference that is meant is a line with a reason in tests/golden/allowed.txt. Compiled programs are kept for the next
time in ~/.cache/fedlm/golden, or where JAX_COMPILATION_CACHE_DIR says.

  python -m tests.golden --against HEAD                      what my changes change
  python -m tests.golden --against main --cases help text    the same, of two cases and those that they need
  python -m tests.golden --against HEAD~1 --keep /tmp/both   keep the files of both, to look into

The exit status is 0 where nothing differs, 1 where something does, and 2 on a mistake in what was asked."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and say what differs."""
    parser = argparse.ArgumentParser(
        "python -m tests.golden",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", metavar="COMMIT", help="the old code: any commit that git knows by this name")
    parser.add_argument("--cases", metavar="NAME", nargs="+", help="run these cases alone, and those that they need")
    parser.add_argument("--list", action="store_true", help="list the cases and their commands, and run nothing")
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="keep all files below this folder; it must not be there"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="cases at once; one for each processor if not given")
    options = parser.parse_args(argv)
    cases = _chosen(parser, options.cases)
    if options.list:
        print("\n\n".join("\n  ".join([case.name, *case.lines]) for case in cases))
        return 0
    if options.against is None:
        parser.error("--against COMMIT says which code to compare with")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} is there already; give another folder")
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="fedlm-golden-"))
    try:
        return _compare_all(options.against, cases, folder.resolve(), options.jobs or len(os.sched_getaffinity(0)))
    except (CommitError, AllowedError) as error:
        parser.error(str(error))
    except SideError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _chosen(parser: argparse.ArgumentParser, names: Sequence[str] | None) -> list[Case]:
    """The cases of these names, after those that they need."""
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names or () if name not in known]:
        parser.error(f"no case is called {', '.join(unknown)}; choose from {', '.join(known)}")
    wanted = set(names or known)
    for case in reversed(CASES):
        wanted |= set(case.needs) if case.name in wanted else set()
    return [case for case in CASES if case.name in wanted]


def _compare_all(commit: str, cases: Sequence[Case], folder: Path, jobs: int) -> int:
    """Run all cases with the old code, put their files aside, and run them with the new code in the same place."""
    allowed, here = read_allowed(), folder / "run"
    name = write_tree(commit, folder / "tree")
    print(f"{len(cases)} cases, old code {name[:12]}, new code {ROOT}", flush=True)
    ports, found = free_ports(cases), []
    files: dict[tuple[str, str], dict[str, Fields]] = {}
    used = {"old": 0.0, "new": 0.0}
    sides = {"old": Side(folder / "tree", here), "new": Side(ROOT, here)}
    try:
        for which, side in sides.items():
            write_inputs(here / "inputs")
            for end in side.run(cases, ports, jobs):
                seconds = sum(end.seconds.values())
                used[which] += seconds
                about = f"{seconds:.1f} s of a processor"
                files[which, end.case] = normalised(read_folder(here / end.case))  # before other cases add to them
                if which == "new":
                    differences = list(compare(end.case, files["old", end.case], files["new", end.case]))
                    found += differences
                    _tell(end.case, differences, allowed, about)
                else:
                    print(f"{end.case:24} run with the old code ({about})", flush=True)
            side.stop()
            here.rename(folder / which)
    finally:
        for side in sides.values():
            side.stop()
    return _summary(found, allowed, f"{used['old']:.0f} s and {used['new']:.0f} s of processors")


def _tell(case: str, differences: Sequence[Difference], allowed: Sequence[Allowed], about: str) -> None:
    bad = [difference for difference in differences if not _is_allowed(difference, allowed)]
    meant = len(differences) - len(bad)
    verdict = f"{len(bad)} DIFFERENCES" if bad else "equal"
    print(f"{case:24} {verdict}{f', {meant} allowed' if meant else ''} ({about})", flush=True)
    for difference in bad[:_MOST_SHOWN]:
        print(difference.text(), flush=True)
    if len(bad) > _MOST_SHOWN:
        print(f"  and {len(bad) - _MOST_SHOWN} more; --keep FOLDER keeps the files of both", flush=True)


def _is_allowed(difference: Difference, allowed: Sequence[Allowed]) -> bool:
    return any(line.covers(difference) for line in allowed)


def _summary(found: Sequence[Difference], allowed: Sequence[Allowed], took: str) -> int:
    bad = [difference for difference in found if not _is_allowed(difference, allowed)]
    for line in allowed:
        if not any(line.covers(difference) for difference in found):
            print(f"allowed, but nothing differs so: {line.case} | {line.what}")
    print(f"{'Nothing differs' if not bad else f'{len(bad)} differences'} ({took})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
