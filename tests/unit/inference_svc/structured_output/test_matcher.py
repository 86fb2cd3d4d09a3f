"""Guides on a grammar library that fails or panics."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from inference_svc.engine.constraint import Constraint, GuideError
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import document
from inference_svc.structured_output.matcher import GrammarGuide, GrammarGuides


class Panic(BaseException):
    """A panic of native code, which is not an `Exception`."""


class PanickingMatcher:
    """Panics in every method."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def panic(*_: object) -> None:
            raise Panic(name)

        return panic


class PanickingTemplate:
    """A built template whose copies panic."""

    def wait(self, _: float) -> bool:
        return True

    def copy(self) -> PanickingMatcher:
        return PanickingMatcher()

    def warm(self, used: PanickingMatcher) -> None:
        used.is_error()


@pytest.fixture
def guide() -> Iterator[GrammarGuide]:
    with ThreadPoolExecutor(1) as masks:
        guide = GrammarGuide(cast(Any, PanickingTemplate()), masks, 100)
        assert guide.wait(0.0)
        yield guide


@pytest.mark.parametrize(
    "use",
    [
        lambda guide: guide.mask(),
        lambda guide: guide.accept([1]),
        lambda guide: guide.forced_tokens(3),
        lambda guide: guide.is_finished,
    ],
    ids=["mask", "accept", "forced", "is_finished"],
)
def test_a_panic_is_raised_as_a_guide_error(
    guide: GrammarGuide, use: Callable[[GrammarGuide], object]
) -> None:
    """On the mask thread and on the step thread; the guide can still be closed."""
    with pytest.raises(GuideError, match="any further"):
        use(guide)
    guide.close()


def test_close_suppresses_a_panic(guide: GrammarGuide) -> None:
    """It raises nothing."""
    guide.close()


@pytest.mark.parametrize(
    ("grammar", "tokens", "problem"),
    [
        ('start: "ab"', [ord("b")], "forced bytes: got 'a'; applying 'b'"),
        ('start: "ab"', [5000], "token id 5000 out of range"),
        ('start: "a" nothing\nnothing: nothing', [ord("a")], "nothing can satisfy it"),
    ],
)
def test_a_guide_error_has_a_readable_message(
    grammar: str, tokens: list[int], problem: str
) -> None:
    """Without the part that llguidance writes for its log."""
    guides = GrammarGuides(lambda: byte_tokenizer(300, {}, [299]), 300)
    guide = guides.new(Constraint(document([{"lark_grammar": grammar}]), "constraint"))
    assert guide.wait(10.0)

    def accept() -> None:
        guide.accept(tokens)
        guide.mask()

    with pytest.raises(GuideError, match=f"{problem}$"):
        accept()
    guides.close()


@pytest.mark.parametrize("error", [RuntimeError("no"), Panic("no"), ValueError("no")])
def test_an_error_of_the_builder_thread_is_raised_as_a_guide_error(error: BaseException) -> None:
    def new_tokenizer() -> Any:
        raise error

    guides = GrammarGuides(new_tokenizer, 100)
    guide = guides.new(Constraint("root", "constraint"))
    with pytest.raises(GuideError):
        guide.wait(10.0)
    guide.close()
    guides.close()
