"""`fedlm account published`: statements of others, recomputed from their plans."""

import json
import re
from pathlib import Path

import pytest

from fedlm.commands.account.published import plan_in_words
from fedlm.commands.cli import main
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.mechanisms.tree_sensitivity import tree_sensitivity_squared
from fedlm.fl_core.privacy.promise.published import PUBLISHED_STATEMENTS, recompute

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "published.md"
HEAD = ["| statement | plan as published | theirs | ours | difference |", "| --- | --- | --- | --- | --- |"]


def row(name, found):
    """The line of the page's table."""
    statement = PUBLISHED_STATEMENTS[name]
    at = "" if statement.delta is None else f" at delta {statement.delta:g}"
    theirs = ", ".join(f"{quantity} {value:.6g}" for quantity, value in statement.theirs.items()) + at
    # Of a matrix that is optimised here the last digits are the machine's, unless they cancel out.
    digits = 6 if statement.seconds < 10 or statement.within < 1e-5 else 3
    ours = ", ".join(f"{quantity} {rounded_up(value, digits)}" for quantity, value in found.ours.items())
    if found.guarantee.epsilon_by_rdp is not None:
        ours += f" ({rounded_up(found.guarantee.epsilon_by_rdp, 6)} by Renyi divergences)"
    differences = ", ".join(f"{value:+.1%}" for value in found.differences.values()).replace("-0.0%", "+0.0%")
    cells = (f"`{name}`: {statement.about} ({statement.source})", statement.plan_words, theirs, ours)
    return f"| {' | '.join(cells)} | {differences}: {statement.why} |"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if one.seconds else ()) for name, one in PUBLISHED_STATEMENTS.items()],
)
def test_a_published_statement_comes_out_of_its_plan(name, compiled_for_speed):
    found = recompute(PUBLISHED_STATEMENTS[name])
    for quantity, difference in found.differences.items():
        assert abs(difference) <= PUBLISHED_STATEMENTS[name].within, (quantity, found.ours)
    assert row(name, found) in PAGE.read_text("utf-8").splitlines()


def test_the_page_has_a_line_for_each_statement_and_no_other():
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    assert lines[:2] == HEAD
    assert [line.split("`")[1] for line in lines[2:]] == list(PUBLISHED_STATEMENTS)


@pytest.mark.long
def test_no_participation_in_a_tree_of_3000_rounds_has_the_rho_of_ro_et_al():
    """The squared sensitivity falls as participations lie farther apart. Where no more fit, it has been seen before."""

    def squared(most, apart):
        return tree_sensitivity_squared([3000], most, apart)

    assert squared(3, 1) < 103, "and fewer participations are better"
    for most, near in {4: 63, 5: 255, 6: 409}.items():
        assert squared(most, near) > 103 > squared(most, near + 1)
    assert squared(8, 2999 // 7) > 103, "and more participations are worse"
    assert [squared(6, apart) for apart in (410, 511)] == [102, 102]
    assert squared(7, 2999 // 6) == 104


def test_statements_are_listed_and_one_is_printed_as_the_page_says(capsys):
    (box,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    said = []
    for line in box.splitlines():
        assert main(line.split()[1:]) == 0
        said.append(capsys.readouterr().out)
    listed, said = said
    assert all(name in listed for name in PUBLISHED_STATEMENTS)
    for words in ("epsilon, theirs  1.26", "epsilon, ours  0.946", "epsilon by RDP, ours  1.03", "(-24.85%)", "arXiv"):
        assert words in said
    for words in ("unit  example:", "adjacency  add-or-remove:", "assumptions  - "):
        assert words in said
    assert main(["account", "published", "abadi-mnist", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["theirs"] == {"epsilon": 1.26}
    assert record["ours"]["epsilon"] == pytest.approx(1.26 * (1 + record["difference"]["epsilon"]))
    assert main(["account", "published", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == PUBLISHED_STATEMENTS.keys()


@pytest.mark.long
def test_a_separation_is_named():
    statement = PUBLISHED_STATEMENTS["gboard-first-launch"]
    assert "at least 313 rounds between" in statement.plan_words
    assert "whose numbers differ by at least 314" in plan_in_words(recompute(statement))


def test_a_name_that_is_not_there_is_one_line_and_status_2(capsys):
    assert main(["account", "published", "abadi"]) == 2
    assert "did you mean `fedlm account published abadi-mnist`" in capsys.readouterr().err
