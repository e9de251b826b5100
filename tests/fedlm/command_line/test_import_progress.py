"""What the bars of an import say."""

import pytest
from rich.console import Console

from fedlm.commands.data.import_progress import ImportProgress


@pytest.mark.parametrize(
    ("done", "total", "unit", "said"),
    [
        (1, 1, "groups", "1 of 1 group "),
        (2, 3, "groups", "2 of 3 groups "),
        (5, None, "rows", "5 rows "),
        (1500, 3000, "bytes", "1.5 kB of 3.0 kB "),
    ],
)
def test_a_bar_names_its_unit_once(done, total, unit, said):
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as shown, ImportProgress(console) as progress:
        progress.update("write", done, total, unit)
    assert said in shown.get()
