import dataclasses
import functools
import json

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.laws_file import Laws, read_laws, write_laws
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings
from fedlm.simulations.laws.surface.surface_fit import fit_surface
from tests.support.synthetic_laws import SMALL, Truth

MEASUREMENTS = SMALL.measure(Truth(batch_size=32))
RATIO = MEASUREMENTS.noise_batch_ratio
MISSING = object()


@functools.cache
def whole_laws():
    form = FORMS["chinchilla"]
    return Laws(
        surface=fit_surface(MEASUREMENTS, SurfaceSettings(draws=3)),
        forms={"chinchilla": fit_form(form, MEASUREMENTS, starts=2, draws=2)},
        held_out={"cells": {"mean_relative_error": 0.1 + 0.2}},
        source={"file": "measurements.parquet"},
        task={"length": 32},
    )


def same(one, other):
    for part in dataclasses.fields(one):
        mine, theirs = getattr(one, part.name), getattr(other, part.name)
        assert type(mine) is type(theirs), part.name
        np.testing.assert_array_equal(mine, theirs, part.name, strict=True)


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("kept", "draws"),
        [
            (RATIO >= 0, 3),
            ((RATIO < 2.0**-6) | (MEASUREMENTS.model != "model2"), 0),
            (RATIO == 0, 3),
            (RATIO > 0, 0),
        ],
        ids=["all", "without the largest noise of a model", "without noise", "noise alone"],
    )
    def test_bit_for_bit(self, tmp_path, kept, draws):
        surface = fit_surface(MEASUREMENTS.where(kept), SurfaceSettings(draws=draws, method="code"))
        write_laws(Laws(surface), tmp_path / "laws.json")
        same(surface, read_laws(tmp_path / "laws.json").surface)
        before = (tmp_path / "laws.json").read_bytes()
        write_laws(read_laws(tmp_path / "laws.json"), tmp_path / "laws.json")
        assert (tmp_path / "laws.json").read_bytes() == before

    def test_all_parts_and_none(self, tmp_path):
        laws = whole_laws()
        write_laws(laws, tmp_path / "laws.json")
        found = read_laws(tmp_path / "laws.json")
        assert dataclasses.replace(found, surface=None) == dataclasses.replace(laws, surface=None)
        write_laws(Laws(None), tmp_path / "laws.json")
        assert read_laws(tmp_path / "laws.json") == Laws(None)


class TestOtherFiles:
    @pytest.fixture
    def document(self, tmp_path):
        write_laws(whole_laws(), tmp_path / "laws.json")
        return json.loads((tmp_path / "laws.json").read_text())

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (["kind"], "a story", "is no file of laws, expected one that `fedlm laws fit`"),
            (["version"], 2, "is of version 2, expected 1. Fit again"),
            (["forms"], MISSING, "is damaged, it has no 'forms'"),
            (["surface", "loss"], MISSING, "is damaged, it has no 'loss'"),
            (["surface", "loss", 4], MISSING, r"surface.loss has the shape \(4, 38, 5\), expected \(5,"),
            (["surface", "loss", 0, 3], MISSING, "is damaged"),
            (["surface", "loss", 0, 0, 0], -1.0, "surface.loss has values that are"),
            (["surface", "learning_rates", 0, 0, 0], -0.1, "surface.learning_rates has values that are"),
            (["surface", "steps", 0], 1e9, "surface.steps does not ascend from above 0"),
            (["surface", "length"], "32", "surface.length is '32', expected a number"),
            (["surface", "batch_size"], 0, "surface.batch_size is 0, expected a number"),
            (["surface", "method"], "x", "surface.method is 'x', expected one of paper"),
            (["surface", "models"], [1, 2, 3, 4, 5], "surface.models is no list"),
        ],
    )
    def test_damaged_and_foreign_documents_are_refused(self, tmp_path, document, place, value, message):
        *outer, last = place
        part = functools.reduce(lambda part, key: part[key], outer, document)
        if value is MISSING:
            del part[last]
        else:
            part[last] = value
        (tmp_path / "laws.json").write_text(json.dumps(document))
        with pytest.raises(DataError, match=message) as error:
            read_laws(tmp_path / "laws.json")
        assert str(error.value).startswith(f"{tmp_path / 'laws.json'}: ")
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("content", [b"", b"PAR1\xff\x00", b"[" * 100_000, b'{"kind": "fedlm scaling laws", "ver'])
    def test_what_is_no_json_is_refused(self, tmp_path, content):
        with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\), expected a file of `fedlm"):
            read_laws(tmp_path / "laws.json")
        (tmp_path / "laws.json").write_bytes(content)
        with pytest.raises(DataError, match=r"is damaged, not JSON \(.*\). Fit again with `fedlm laws fit`."):
            read_laws(tmp_path / "laws.json")
