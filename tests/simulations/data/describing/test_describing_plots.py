import pytest

from fedlm.fl_core.errors import DiskError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.describing.description import count_store, describe
from fedlm.simulations.data.describing.plots import draw_store, write_plot
from tests.simulations.data.made_up_store import import_made_up


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return import_made_up(tmp_path_factory.mktemp("plots") / "s")


def test_curves_show_what_is_described(store):
    figure = draw_store(store, count_store(store))
    _, lengths, coverage, _ = figure.axes
    train = describe(store)["splits"]["train"]
    curve = dict(zip(*lengths.lines[0].get_data(), strict=True))
    for cut, share in train["truncated_share_by_length"].items():
        assert curve[int(cut)] == pytest.approx(share)
    ranks, shares = coverage.lines[0].get_data()
    assert (ranks[-1], shares[-1]) == (7, pytest.approx(train["coverage"]))


def test_long_examples_and_empty_splits_are_drawn(tmp_path):
    words = " ".join(["alpha", "beta"] * 400)
    store = import_made_up(tmp_path / "long", [ClientText("os", [words, "alpha"])])
    figure = draw_store(store, count_store(store))
    assert figure.axes[1].get_xscale() == "log"
    assert len(figure.legends[0].get_texts()) == 1


@pytest.mark.long
def test_a_picture_that_cannot_be_written_is_the_users_matter(store, tmp_path):
    with pytest.raises(DiskError, match=r"p\.png: cannot be written"):
        write_plot(tmp_path / "missing" / "p.png", store, count_store(store))
