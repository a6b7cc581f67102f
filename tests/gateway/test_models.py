from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.models import Models
from tests.support.fleet import Fleet
from vocabulary.errors import InvalidBody, ModelMissing, ModelNotFound, NoBackendAvailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as made:
        yield made


def test_a_model_is_built_once_on_first_use(fleet: Fleet) -> None:
    fleet.add("a", ("m", "n"))
    name, model = fleet.models.resolve("m")
    assert (name, model.name) == ("m", "m")
    assert fleet.models.resolve("m")[1] is model
    assert fleet.models.resolve("n")[1] is not model


def test_aliases_share_one_model_and_keep_the_name_for_the_backend(fleet: Fleet) -> None:
    fleet.add("a", ("m", "alias"))
    built = fleet.models.resolve("m")[1]
    models = Models({"m": built, "alias": built}, fleet._model, fleet.registry)
    assert models.resolve("alias") == ("alias", built)
    assert models.resolve("m") == ("m", built)


def test_a_configured_model_resolves_before_any_backend_serves_it(fleet: Fleet) -> None:
    fleet.add("a", ("m",))
    built = fleet.models.resolve("m")[1]
    assert Models({"later": built}, fleet._model, fleet.registry).resolve("later") == ("later", built)


@pytest.mark.parametrize("missing", [None, ""])
def test_no_model(fleet: Fleet, missing: str | None) -> None:
    with pytest.raises(NoBackendAvailable):
        fleet.models.resolve(missing)
    fleet.add("a", ("m",))
    fleet.add("b", ("m",))
    assert fleet.models.resolve(missing)[0] == "m"
    fleet.add("c", ("n",))
    with pytest.raises(ModelMissing) as caught:
        fleet.models.resolve(missing)
    assert caught.value.param == "model"


@pytest.mark.parametrize("odd", [1, True, 1.5, ["m"], {"m": "m"}])
def test_a_model_that_is_no_string(fleet: Fleet, odd: object) -> None:
    fleet.add("a", ("m",))
    with pytest.raises(InvalidBody) as caught:
        fleet.models.resolve(odd)
    assert caught.value.param == "model"


def test_an_unknown_model_is_404_once_all_backends_have_answered(fleet: Fleet) -> None:
    fleet.add("a", ("m",))
    late = fleet.add("b", ())
    with pytest.raises(NoBackendAvailable):
        fleet.models.resolve("x")
    fleet.registry.set_models(late, ("n",))
    with pytest.raises(ModelNotFound):
        fleet.models.resolve("x")
    assert fleet.models.resolve("n")[0] == "n"


def test_unknown_names_do_not_fill_the_table(fleet: Fleet) -> None:
    fleet.add("a", ("m",))
    for number in range(100):
        with pytest.raises(ModelNotFound):
            fleet.models.resolve(f"x{number}")
    assert not fleet.models._table


def test_tokens_follow_what_was_learned(fleet: Fleet) -> None:
    fleet.add("a", ("m", "n"))
    model, other = fleet.models.resolve("m")[1], fleet.models.resolve("n")[1]
    assert model.tokens_per_unit() == 0.25
    for _ in range(100):
        model.learn(300, 100)
    assert model.tokens_per_unit() == pytest.approx(1 / 3)
    assert other.tokens_per_unit() == 0.25
