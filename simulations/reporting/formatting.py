"""Numbers as a reader sees them; what is missing is a dash."""

from collections import Counter

from fedlm.simulations.reporting.selection import Group, Spread, finite

DASH = "\N{EN DASH}"
SPACE = "\N{NO-BREAK SPACE}"


def format_perplexity(value: float | None) -> str:
    """Format a perplexity, or any positive number of unknown size, in about four digits."""
    number = finite(value)
    if number is None:
        return DASH
    return f"{number:.2e}" if abs(number) >= 1e6 else f"{number:,.{_decimals(number)}f}"


def format_percent(value: float | None) -> str:
    """Format a share as percent with two decimals."""
    number = finite(value)
    return DASH if number is None else f"{100 * number:.2f}{SPACE}%"


def format_spread(score: str, value: Spread | None) -> str:
    """Format a mean and its standard deviation over seeds, as in `231.4 ± 2.1`; that of one seed is a dash."""
    if value is None:
        return DASH
    if score == "perplexity":
        std = DASH if value.std is None else f"{value.std:,.{_decimals(value.mean)}f}"
        return SPACE.join((format_perplexity(value.mean), "±", std))
    std = DASH if value.std is None else f"{100 * value.std:.2f}"
    return SPACE.join((f"{100 * value.mean:.2f}", "±", std, "%"))


def format_number(value: float | None, decimals: int | None = None) -> str:
    """Format a number with thousands set apart, in about three digits where decimals are not given."""
    number = finite(value)
    if number is None:
        return DASH
    if decimals is None:
        decimals = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2 if abs(number) >= 0.1 else 4
    return f"{number:,.{decimals}f}"


def format_megabytes(value: float | None) -> str:
    """Format bytes as megabytes of a million bytes, without the unit."""
    return format_number(None if value is None else value / 1e6)


def format_rates(group: Group) -> str:
    """Name a combination of learning rates, such as `0.5 / 0.01`: the clients' SGD, then the server optimizer."""
    return SPACE.join((f"{group.client_learning_rate:g}", "/", f"{group.server_learning_rate:g}"))


def describe_losses(group: Group) -> str:
    """Say how many seeds were lost, such as `2 of 3 seeds diverged, 1 failed`; empty where all finished."""
    lost = Counter(result.status for result in group.results if result.status != "finished")
    words = [f"{lost[status]} {status}" for status in ("diverged", "failed") if lost[status]]
    if not words:
        return ""
    count, status = words[0].split(" ")
    seeds = "seed" if len(group.results) == 1 else "seeds"
    return ", ".join([f"{count} of {len(group.results)} {seeds} {status}", *words[1:]])


def join_words(words: list[str]) -> str:
    """Join at least one word as a sentence does: `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _decimals(value: float) -> int:
    return 0 if value >= 1000 else 1 if value >= 100 else 2
