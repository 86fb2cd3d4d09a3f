"""Documents in files for tests."""

from io import BytesIO

from docx import Document


def pdf(*pages: str, media_box: str = "0 0 612 792") -> bytes:
    """A PDF of pages with a few lines of text each."""
    first_page = 4
    kids = " ".join(f"{first_page + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        lines = page.replace("\n", ") Tj 0 -30 Td (")
        stream = f"BT /F1 24 Tf 72 700 Td ({lines}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [{media_box}]"
            f" /Contents {first_page + 2 * number + 1} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    text, offsets = "%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(text))
        text += f"{number} 0 obj\n{each}\nendobj\n"
    size = len(objects) + 1
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    text += (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R >>\n"
        f"startxref\n{len(text)}\n%%EOF"
    )
    return text.encode()


def docx(paragraph: str, cell: str) -> bytes:
    document, packed = Document(), BytesIO()
    document.add_paragraph(paragraph)
    document.add_table(1, 2).rows[0].cells[1].text = cell
    document.save(packed)
    return packed.getvalue()
