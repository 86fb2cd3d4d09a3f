"""Results of child processes are checked, because a file may have taken over its child."""

from typing import Any

import pytest

from inference_svc.media.decoder import ImageSize, MediaDecoder, MediaLimits
from svc_kit.errors import InvalidField
from svc_kit.sandbox.jobs import Job


class CapturedChild:
    """A runner whose jobs have a given result."""

    def __init__(self, result: Any) -> None:
        self._result = result

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        return self._result


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"width": 2, "height": 2, "rgb": bytes(11)},
        {"width": 2, "height": 2, "rgb": "x" * 12},
        {"width": -2, "height": -2, "rgb": bytes(12)},
        {"width": 1 << 16, "height": 1, "rgb": bytes(3 << 16)},
    ],
)
async def test_pictures_of_another_size_than_their_bytes_are_refused(result: Any) -> None:
    """libmtmd would read behind them."""
    decoder = MediaDecoder(CapturedChild(result), MediaLimits())

    with pytest.raises(InvalidField, match="the picture cannot be decoded"):
        await decoder.decode_image("image_url", b"x", ImageSize())


@pytest.mark.parametrize("result", [None, {}, {"samples": b""}, {"samples": bytes(9)}])
async def test_sounds_of_no_samples_are_refused(result: Any) -> None:
    """libmtmd would abort."""
    decoder = MediaDecoder(CapturedChild(result), MediaLimits())

    with pytest.raises(InvalidField, match="the sound cannot be decoded"):
        await decoder.decode_audio("input_audio", b"x", 16000)
