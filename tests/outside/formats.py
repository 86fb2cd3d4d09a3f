"""Formats of model families, as the service finds them: by the chat templates of their models."""

import asyncio
from functools import cache

from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from tests.support.sandbox_jobs import InlineJobs


@cache
def detected_format(source: str) -> TurnFormat:
    template = ModelTemplate.for_model(source, "<s>", "</s>", ())
    return asyncio.run(ChatTemplates(InlineJobs()).find_format(template))[0]
