"""Pictures of every format and mode become the right RGB values."""

from io import BytesIO

import pytest
from PIL import Image, ImageChops, ImageOps, ImageStat

from inference_svc.media.decoder import ImageSize, MediaDecoder, MediaLimits
from inference_svc.media.image_job import fit
from inference_svc.media.model import DecodedImage
from tests.support.pictures import png_chunk, png_of_rows, save
from tests.support.sandbox_jobs import InlineJobs

QUADRANTS = ("red", "lime", "blue", "yellow")


async def decode(
    data: bytes, size: ImageSize | None = None, *, is_low_detail: bool = False
) -> DecodedImage:
    decoder = MediaDecoder(InlineJobs(), MediaLimits())
    return await decoder.decode_image(
        "image_url", data, size or ImageSize(), is_low_detail=is_low_detail
    )


def picture(width: int = 32, height: int = 16) -> Image.Image:
    """A picture with a colour in each quarter."""
    image = Image.new("RGB", (width, height))
    for number, color in enumerate(QUADRANTS):
        left, top = number % 2 * width // 2, number // 2 * height // 2
        image.paste(color, (left, top, left + width // 2, top + height // 2))
    return image


def rgb(image: DecodedImage) -> Image.Image:
    """A decoded picture as one of Pillow's."""
    return Image.frombytes("RGB", (image.width, image.height), image.rgb)


@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("GIF", {}), ("WEBP", {"lossless": True})]
)
async def test_lossless_formats_keep_every_pixel(format: str, options: dict[str, bool]) -> None:
    """Whatever the name of the file is: it is recognized by its bytes."""
    decoded = await decode(save(picture(), format, **options))

    assert decoded == DecodedImage(32, 16, picture().tobytes())


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
async def test_jpegs_of_every_mode_are_converted(mode: str) -> None:
    """Colours are those that Pillow shows, within the losses of JPEG."""
    flat = Image.new("RGB", (16, 16), (200, 200, 200)).convert(mode)
    decoded = await decode(save(flat, "JPEG", quality=95))

    assert 194 < min(decoded.rgb) <= max(decoded.rgb) < 206


@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        (png_of_rows(2, b"\0\x12\x34\xfe\xdc", bits=16, color=0), [0x12] * 3 + [0xFE] * 3),
        (png_of_rows(1, b"\0\x12\x34\x56\x78\x9a\xbc", bits=16, color=2), [0x12, 0x56, 0x9A]),
        (png_of_rows(8, b"\0\xa0", bits=1, color=0), ([255] * 3 + [0] * 3) * 2 + [0] * 12),
        (png_of_rows(2, b"\0\x40\x80", bits=8, color=0), [0x40] * 3 + [0x80] * 3),
        (png_of_rows(2, b"\0\x40\0\x80\xff", bits=8, color=4), [255] * 3 + [0x80] * 3),
    ],
    ids=["grey 16 bit", "RGB 16 bit", "1 bit", "grey", "grey with alpha"],
)
async def test_depths_and_modes_of_png_become_eight_bits_of_rgb(
    data: bytes, pixels: list[int]
) -> None:
    """16 bits keep their upper half; grey has three equal values; transparent is white."""
    assert list((await decode(data)).rgb) == pixels


async def test_transparent_pixels_are_white() -> None:
    """Hidden colours do not show, in palettes and in alpha channels; half of alpha is a blend."""
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    for format in ("PNG", "GIF"):
        data = save(palette, format, transparency=0)
        assert list((await decode(data)).rgb) == [255, 255, 255, 0, 0, 255]

    alpha = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    alpha.putpixel((1, 0), (0, 0, 0, 128))
    for format in ("PNG", "WEBP"):
        data = save(
            alpha, format, **({"lossless": True, "exact": True} if format == "WEBP" else {})
        )
        assert list((await decode(data)).rgb) == [255, 255, 255, 127, 127, 127]


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
async def test_an_animation_is_its_first_frame(format: str) -> None:
    """The others are not decoded."""
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    data = save(frames[0], format, save_all=True, append_images=frames[1:])

    assert rgb(await decode(data)).getpixel((0, 0)) == pytest.approx((255, 0, 0), abs=4)


@pytest.mark.parametrize("orientation", range(1, 9))
async def test_pictures_are_turned_as_their_exif_data_says(orientation: int) -> None:
    """As Pillow turns them, in all eight ways, also if they are scaled down."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(picture(32, 16), "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    decoded = await decode(data)
    halved = await decode(data, ImageSize(side=16))

    assert (decoded.width, decoded.height) == expected.size
    assert decoded.rgb == expected.tobytes()
    corners = [(0, 0), (halved.width - 1, 0), (0, halved.height - 1)]
    assert [rgb(halved).getpixel(place) for place in corners] == [
        expected.getpixel((2 * x, 2 * y)) for x, y in corners
    ]


async def test_damaged_exif_data_is_ignored() -> None:
    """As in browsers: the picture itself is sound."""
    data = save(picture(), "PNG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff\0")

    assert (await decode(data)).rgb == picture().tobytes()


@pytest.mark.parametrize(
    ("size", "side", "pixels", "fitted"),
    [
        ((1000, 500), 4096, 16_000_000, (1000, 500)),
        ((1000, 500), 512, 16_000_000, (512, 256)),
        ((500, 1000), 512, 16_000_000, (256, 512)),
        ((1000, 1000), 4096, 10_000, (100, 100)),
        ((4000, 1000), 4096, 10_000, (200, 50)),
        ((1, 1), 4096, 1, (1, 1)),
        ((1, 200), 100, 10_000, (1, 100)),
        ((200, 1), 10, 100, (10, 1)),
    ],
)
def test_pictures_are_scaled_down_and_keep_their_ratio(
    size: tuple[int, int], side: int, pixels: int, fitted: tuple[int, int]
) -> None:
    """To at most a side and a number of pixels; smaller ones keep their size."""
    assert fit(*size, side, pixels) == fitted


async def test_low_detail_means_512_pixels_a_side() -> None:
    """A pattern finer than the pixels becomes its average, not a moiré."""
    stripes = Image.new("L", (1, 2))
    stripes.putpixel((0, 0), 255)
    fine = stripes.resize((3000, 2), Image.Resampling.NEAREST)
    tall = Image.new("L", (3000, 1500))
    for y in range(0, 1500, 2):
        tall.paste(fine, (0, y))
    decoded = await decode(save(tall), is_low_detail=True)

    assert (decoded.width, decoded.height) == (512, 256)
    assert 115 < min(decoded.rgb) <= max(decoded.rgb) < 140


async def test_large_jpegs_are_scaled_like_other_pictures() -> None:
    """Though they are decoded at a half or a quarter of their size; also if they are turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = Image.effect_noise((500, 250), 60).resize((2000, 1000), Image.Resampling.BICUBIC)
    decoded = await decode(save(noise, "JPEG", quality=95, exif=exif), ImageSize(side=500))
    plain = await decode(save(noise, exif=exif), ImageSize(side=500))
    difference = ImageChops.difference(rgb(decoded), rgb(plain)).convert("L")

    assert (decoded.width, decoded.height) == (plain.width, plain.height) == (250, 500)
    assert ImageStat.Stat(difference).mean[0] < 3


async def test_text_chunks_and_profiles_do_not_matter() -> None:
    """Only pixels and orientation are read."""
    data = save(picture())
    text = png_chunk(b"tEXt", b"Comment\0hello") + png_chunk(b"iCCP", b"x\0\0broken")

    assert (await decode(data[:33] + text + data[33:])).rgb == picture().tobytes()
