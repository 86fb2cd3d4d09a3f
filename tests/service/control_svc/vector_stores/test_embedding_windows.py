"""The length of the texts that are embedded, by what the model and its engine tell."""

from pathlib import Path

from tests.support.vectors import WordInference, paragraphs, run_vectors

TEXT = paragraphs([f"topic{number}" for number in range(60)])


async def embedded(folder: Path, fake: WordInference) -> list[str]:
    """The texts that were embedded of a file that is found afterwards."""
    async with run_vectors(folder, fake=fake) as running:
        store_id, _ = await running.vectors.create_with_files({"a": TEXT})
        texts = list(fake.embedded)
        assert set(await running.vectors.search_names(store_id, "topic7")) == {"a"}
    return texts


async def test_texts_fit_into_the_context_of_an_engine(tmp_path: Path) -> None:
    """Which may be shorter than that of the model's files."""
    fake = WordInference()
    for model in fake.models:
        model.trained_context_tokens = 8192
        model.resolved_limits.context_tokens = 128
    texts = await embedded(tmp_path, fake)

    assert 64 < max(len(each.split()) for each in texts) <= 128 - 16


async def test_tokens_of_a_model_in_text_mode_are_estimated(tmp_path: Path) -> None:
    """As a third of the bytes: its engine counts none."""
    fake = WordInference()
    for model in fake.models:
        model.upstream.text_mode = True
    texts = await embedded(tmp_path, fake)

    assert fake.num_counts == 0
    assert 1000 < max(len(each.encode()) for each in texts) <= (512 - 16) * 3
