"""All capabilities of one run, asked together."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import FederatedOptimization, PlainAveraging
from fedlm.fl_core.runs.capabilities.interface import Builder, Capability, Ended, Opening
from fedlm.fl_core.runs.identity import Fact
from fedlm.models.base import Model, Params

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
    from fedlm.fl_core.runs.private_releases import Reservation

_Value = TypeVar("_Value")


class Capabilities(Capability):
    """Those of one run, asked together, in their order."""

    def __init__(self, kinds: Sequence[type[Capability]], ones: Iterable[Capability]):
        """Take capabilities; `kinds` are all that the command knows."""
        self._kinds, self._ones = tuple(kinds), tuple(ones)

    @staticmethod
    def read(kinds: Sequence[type[Capability]], opening: Opening) -> "Capabilities":
        """Read those of a run. Of a kind and a special form of it the run has the one that comes first."""
        found: list[Capability] = []
        for brought in opening.brought:
            opening = brought.opened(opening)
            found.append(brought)
        for kind in kinds:
            known = any(isinstance(one, kind) for one in found)
            if not known and (read := kind.of(opening)) is not None:
                opening = read.opened(opening)
                found.append(read)
        return Capabilities(kinds, found)

    def _through(self, place: str, value: _Value, *more: Any) -> _Value:
        for one in self._ones:
            value = getattr(one, place)(value, *more)
        return value

    def _first_of(self, place: str, *given: Any) -> Any:
        return next((value for one in self._ones if (value := getattr(one, place)(*given)) is not None), None)

    def _merged(self, place: str, *given: Any) -> dict[str, Any]:
        return {name: value for one in self._ones for name, value in getattr(one, place)(*given).items()}

    def store(self) -> Any:
        return self._first_of("store")

    def builder(self) -> Builder | None:
        return self._first_of("builder")

    def recorded(self, settings: dict[str, Any]) -> dict[str, Any]:
        return self._through("recorded", settings)

    def data(self, train: Any) -> Any:
        return self._through("data", train)

    def cohorts(self, cohorts: Any, clients: int) -> Any:
        return self._through("cohorts", cohorts, clients)

    def local(self, training: LocalTraining) -> LocalTraining:
        return self._through("local", training)

    def drops(self) -> bool:
        return any(one.drops() for one in self._ones)

    def optimization(self, optimization: FederatedOptimization) -> FederatedOptimization:
        return self._through("optimization", optimization)

    def averaging(self, averaging: PlainAveraging) -> PlainAveraging:
        return self._through("averaging", averaging)

    def undoes(self) -> bool:
        return any(one.undoes() for one in self._ones)

    def origins(self, origins: Origins) -> Origins:
        return self._through("origins", origins)

    def law(self) -> "TrialsLaw | None":
        return self._first_of("law")

    def planned(self, noise_ratio: Callable[[], float]) -> "Capabilities":
        return Capabilities(self._kinds, [one.planned(noise_ratio) for one in self._ones])

    def constants(self) -> dict[str, Any]:
        return self._merged("constants")

    def trained(self, model: Model) -> Model:
        return self._through("trained", model)

    def first(self, params: Params) -> Params:
        return self._through("first", params)

    def frozen(self, like: Params, folder: Path) -> Params:
        found = self._first_of("frozen", like, folder)
        return () if found is None else found

    def whole(self, frozen: Params, trained: Params) -> Params:
        for one in self._ones:
            trained = one.whole(frozen, trained)
        return trained

    def keep(self, folder: Path) -> None:
        for one in self._ones:
            one.keep(folder)

    def reservation(self, training: Phase, origins: Origins) -> "Reservation | None":
        return self._first_of("reservation", training, origins)

    def scores(self, model: Model, params: Params) -> dict[str, float | None]:
        return self._merged("scores", model, params)

    def named_facts(self) -> dict[str, Fact]:
        """Give the facts of all kinds, those of the run with their values."""
        values = self._merged("fingerprints")
        facts = {name: fact for kind in self._kinds for name, fact in kind.facts.items()}
        return {name: fact._replace(value=values.get(name)) for name, fact in facts.items()}

    def about(self) -> dict[str, Any]:
        return self._merged("about")

    def summary(self, ended: Ended) -> dict[str, Any]:
        unsaid = {name: value for kind in self._kinds for name, value in kind.unsaid.items()}
        return unsaid | self._merged("summary", ended)
