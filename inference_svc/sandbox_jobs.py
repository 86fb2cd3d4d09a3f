"""The sandbox jobs of this service and their limits."""

from dataclasses import replace
from typing import Final

from svc_kit.sandbox.jobs import MIB, Job

RENDER_TEMPLATE: Final = Job("inference_svc.chat.template_job", "render")
TOKENIZE: Final = Job(
    "inference_svc.vocabularies", "tokenize", deadline_s=20.0, memory_bytes=2048 * MIB
)
CHECK_VOCABULARY: Final = replace(TOKENIZE, function="check")
COMPILE_GRAMMAR: Final = Job(
    "inference_svc.structured_output.compile_job",
    "compile_grammar",
    deadline_s=1.5,
    memory_bytes=256 * MIB,
    output_bytes=4 * MIB,
)
DECODE_IMAGE: Final = Job(
    "inference_svc.media.image_job", "decode", deadline_s=10.0, memory_bytes=1024 * MIB
)
"""A picture of 40 million pixels takes up to a second on an idle core."""
DECODE_AUDIO: Final = Job(
    "inference_svc.media.audio_job",
    "decode",
    deadline_s=10.0,
    memory_bytes=1024 * MIB,
    output_bytes=96 * MIB,
)
"""Ten minutes of MP3 take a second or two on an idle core."""
RENDER_PAGES: Final = Job(
    "inference_svc.media.page_job",
    "render",
    deadline_s=20.0,
    memory_bytes=1024 * MIB,
    output_bytes=128 * MIB,
)
PRELOADED: Final = (
    RENDER_TEMPLATE.module,
    COMPILE_GRAMMAR.module,
    DECODE_IMAGE.module,
    DECODE_AUDIO.module,
)
"""Modules that every child imports before its first job, to reduce the latency of requests."""
