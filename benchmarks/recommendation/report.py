"""The report: tables, verdicts and pictures, as a page of Markdown."""

from pathlib import Path
from typing import Any

from benchmarks.recommendation.claims import Evidence, Spread, not_yet, pairs, selection_costs, verdicts
from benchmarks.recommendation.grid import best_rate, chosen_points, rate_points
from benchmarks.recommendation.models import CONTROLS, MODELS, VARIANTS
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.evaluation.recommendation.metrics import GROUPS

REPORT = "report.md"
CAPTIONS = {
    "epsilon": "Scores by epsilon; points are means, whiskers reach from seed to seed",
    "sharing": "Sharing (figure 2 of the paper)",
    "controls": "Re-attention and its controls",
    "curves": "Heldout scores over epochs (figure 6)",
    "rates": "Rates and batch sizes (figure 7)",
    "popularity": "By popularity of the right item",
}


def write_report(evidence: Evidence, folder: Path) -> Path:
    """Write the page and its pictures; returns the page."""
    from benchmarks.recommendation.plots import draw

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in draw(evidence).items():
        beside = folder / f"{name}.partial.png"
        figure.savefig(beside, dpi=110)
        beside.replace(folder / f"{name}.png")
    path = folder / REPORT
    write_atomically(path, "\n\n".join(_sections(evidence)) + "\n")
    return path


def _sections(evidence: Evidence) -> list[str]:
    scale, about = evidence.scale, evidence.results.about
    left = not_yet([*rate_points(scale), *chosen_points(evidence.results, scale)], evidence.results)
    data = about["data"]
    lines = [
        "# Private recommendation on Amazon Games, after DPFormer",
        f"{data['users']:,} users, {data['items']:,} items with at least {scale.item_interactions} interactions, "
        f"{data['interactions']:,} interactions in training, of users with at least {scale.user_interactions} of "
        "these items. The last item of a user is ranked among all items that the user has not met. Width 64, two "
        f"blocks, one head, {scale.length} items; Adam, a fifth of the steps warm-up, then linear decay; gradients "
        f"brought to norm 1; {scale.epochs} epochs; batches of {scale.batch_size:,} and dropout {scale.dropout:g}, "
        f"without privacy {scale.plain_batch_size} and {scale.plain_dropout:g}; delta {scale.delta:g}; the unit is a "
        "user. Noise follows from the seed, so that all of it can be computed again: epsilon is that of the same "
        "training with noise of the operating system's entropy. " + _missing(left),
        "## Claims",
        "A claim holds where the scores of all seeds are on one side of those of all others, does not hold where they "
        "are on the other, and is not decided where they overlap. Numbers are NDCG@10 in per cent by epsilon, mean "
        "and standard deviation over seeds, unless they are named.",
        _table(
            ["claim", "paper", "here", "verdict"],
            [[one.claim, one.paper, one.found, one.verdict] for one in verdicts(evidence)],
        ),
        "Phantom clipping, its other idea, is measured by `python -m benchmarks.clipping.recommenders`.",
        "## Scores",
        *(_scores(evidence, metric) for metric in ("ndcg@10", "hit@10")),
        f"A user more or less among the {data['users']:,} that are ranked for moves HIT@10 by little: its standard "
        f"error over users is {100 * _user_error(evidence):.2f}, the same users for all models.",
        "## Seed by seed",
        "Trainings of one seed begin with the same parameters and draw the same batches, so that what moves both goes "
        "out of their ratio: NDCG@10 of the one over that of the other, in per cent, by seed. Numbers of one seed at "
        "several epsilons are not independent of each other.",
        _pairs(evidence),
        "## By popularity",
        f"HIT@10, per cent, epsilon {scale.rate_epsilon:g}; each third has about as many interactions of training.",
        _by_popularity(evidence),
        "## Learning rates",
        f"The best for heldout users among {_list(scale.rates)} at epsilon {scale.rate_epsilon:g}, "
        f"among {_list(scale.plain_rates)} without privacy, seed {scale.seeds[0]}: "
        + "; ".join(_rates(evidence))
        + ". "
        + _selection(evidence),
        *(f"![{caption}]({name}.png)" for name, caption in CAPTIONS.items()),
    ]
    return lines


def _list(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _missing(left: int) -> str:
    return "All trainings have ended." if not left else f"**At least {left} trainings are not there yet.**"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return (
        f"{100 * spread.mean:.2f} ± {100 * spread.deviation:.2f}"
        if len(spread.values) > 1
        else f"{100 * spread.mean:.2f}"
    )


def _scores(evidence: Evidence, metric: str) -> str:
    epsilons: list[float | None] = [*evidence.scale.epsilons, None]
    head = [f"{metric.upper()}, per cent", *("no privacy" if one is None else f"epsilon {one:g}" for one in epsilons)]
    rows = [
        [VARIANTS[variant].title, *(_number(evidence.spread(variant, epsilon, metric)) for epsilon in epsilons)]
        for variant in (*MODELS, *CONTROLS)
    ]
    popularity = f"{100 * evidence.popularity(metric):.2f}"
    return _table(head, [*rows, ["Popularity", *[""] * (len(epsilons) - 1), popularity]])


def _pairs(evidence: Evidence) -> str:
    head = ["one over the other", *(f"epsilon {epsilon:g}" for epsilon in evidence.scale.epsilons), "above 0"]
    rows = []
    for pair in pairs(evidence):
        gains = [gain for spread in pair.gains.values() for gain in spread.values]
        by_epsilon = [
            ", ".join(f"{100 * gain:+.1f}" for gain in pair.gains[epsilon].values) if epsilon in pair.gains else "?"
            for epsilon in evidence.scale.epsilons
        ]
        names = f"{VARIANTS[pair.one].title} over {VARIANTS[pair.other].title}"
        rows.append([names, *by_epsilon, f"{sum(gain > 0 for gain in gains)} of {len(gains)}"])
    return _table(head, rows)


def _by_popularity(evidence: Evidence) -> str:
    groups: list[dict[str, Any]] = evidence.results.about["data"]["popularity"]["test"]["by_popularity"]
    head = ["", *(f"{one['group']}: {one['items']:,} items, {one['users']:,} users" for one in groups)]
    rows = [
        [
            VARIANTS[variant].title,
            *(
                _number(evidence.spread(variant, evidence.scale.rate_epsilon, "hit@10", group))
                for group in range(len(GROUPS))
            ),
        ]
        for variant in (*MODELS, *CONTROLS)
    ]
    popularity = [f"{100 * evidence.popularity('hit@10', group):.2f}" for group in range(len(GROUPS))]
    return _table(head, [*rows, ["Popularity", *popularity]])


def _rates(evidence: Evidence) -> list[str]:
    found = []
    for variant, about in VARIANTS.items():
        if about.rate_of is None:
            rates = [best_rate(evidence.results, evidence.scale, variant, private) for private in (True, False)]
            shown = ["?" if rate is None else f"{rate:g}" for rate in rates]
            found.append(f"{about.title} {shown[0]}" + ("" if about.relevance else f" and {shown[1]}"))
    return found


def _selection(evidence: Evidence) -> str:
    costs = selection_costs(evidence)
    number = len(evidence.scale.rates)
    if not costs:
        return "What the choice costs follows from the trainings' noise."
    stated = ", ".join(f"{cost:.1f} in place of {epsilon:g}" for epsilon, cost in costs.items())
    return (
        "No epsilon here has paid for that choice, nor has the paper's. Had it been a private selection of one among "
        f"{number} trials on average (truncated negative binomial, eta 1; Papernot and Steinke 2022), epsilon would be "
        f"{stated}, and heldout scores would have had to be private, too."
    )


def _user_error(evidence: Evidence) -> float:
    return evidence.results.about["data"]["popularity"]["test"]["scores"]["hit@10"]["standard_error"]
