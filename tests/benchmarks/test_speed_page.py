"""The page on speed says what was measured."""

from benchmarks import speed_page


def test_the_page_has_the_tables_that_the_results_make():
    page = speed_page.PAGE.read_text()
    assert speed_page.with_tables(page, speed_page.read_results()) == page, "python -m benchmarks.speed_page"
