"""Write the table of scores into the model card, docs/understand/demo-model.md."""

from pathlib import Path

from tools.demo_model.records import ROOT, answers, score

PAGE = ROOT / "docs" / "understand" / "demo-model.md"
BEGIN, END = "<!-- scores: begin -->\n", "<!-- scores: end -->\n"
_COLUMNS = 3


def table() -> str:
    """Table of all skills and their scores, with several skills in a row."""
    cells = [f"| {skill} | {score(marks):.0f} " for skill, marks in answers().items()]
    cells += ["| | "] * (-len(cells) % _COLUMNS)
    rows = ["".join(cells[start : start + _COLUMNS]) for start in range(0, len(cells), _COLUMNS)]
    head = ["| skill | % " * _COLUMNS, "|---|--:" * _COLUMNS]
    return "".join(f"{row}|\n" for row in [*head, *rows])


def with_scores(card: Path, scores: str) -> str:
    """A card with a table of scores in the place of its own."""
    before, rest = card.read_text().split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}{scores}{END}{after}"


def page() -> str:
    """Return the card with the recorded scores."""
    return with_scores(PAGE, table())


def write() -> None:
    """Update the card."""
    PAGE.write_text(page())


if __name__ == "__main__":
    write()
