"""A corpus of thousands of people, the Blog Authorship Corpus of Schler et al. 2006, from its Parquet files."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fedlm.simulations.data.importing import import_text
from fedlm.simulations.data.sources.tables.parquet import ParquetTables

SMALLEST = Path(__file__).parents[5].parent / "shared/data/blogs/blogs-03.parquet"


@pytest.mark.long
@pytest.mark.skipif(not SMALLEST.exists(), reason="needs ../shared/data/blogs/blogs-03.parquet")
def test_everybody_is_one_client_of_one_split_and_a_sentence_takes_few_bytes(tmp_path):
    header = import_text("parquet", ParquetTables((SMALLEST,)), tmp_path / "blogs", workers=1).header
    people = pc.count_distinct(pq.read_table(SMALLEST, columns=["user"])["user"]).as_py()
    assert sum(split.clients for split in header.splits.values()) == people
    stored = sum(path.stat().st_size for path in (tmp_path / "blogs").glob("*.arrow"))
    assert stored < 70 * sum(split.examples for split in header.splits.values())
