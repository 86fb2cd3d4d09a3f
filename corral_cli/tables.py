"""Tables of commands: aligned columns below a header."""

from collections.abc import Iterable, Sequence


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, num_text_columns: int | None = None
) -> list[str]:
    """The lines of a table. Columns after the first `num_text_columns` are numbers, aligned to the
    right; default: all are text."""
    cells = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    num_text = len(header) if num_text_columns is None else num_text_columns
    return [
        "  ".join(
            cell.ljust(width) if column < num_text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
