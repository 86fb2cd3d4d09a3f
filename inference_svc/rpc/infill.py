"""Builds prompts for text between a prefix and a suffix, from the model's own tokens for it."""

from collections.abc import Sequence
from typing import Final

from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.model_pool.catalog import ModelProcessor
from inference_svc.validation import check_count
from svc_kit.errors import InvalidField, ModelCannot

MAX_FILES: Final = 256
_REPOSITORY: Final = "project\n"
_SNIPPET: Final = "\n\n--- snippet ---\n\n"
"""What precedes a file if the model has no token for it, as in llama-server."""


async def infill_tokens(request: pb.GenerateRequest, model: ModelProcessor) -> list[int]:
    """The tokens of files, prefix and suffix, in the order in which models are trained.

    Raises InvalidField if the prompt is not a text, and ModelCannot if the model has no tokens for
    it. Control tokens in the texts are plain text.
    """
    vocabulary, infill = model.vocabulary, request.infill
    tokens = vocabulary.infill_tokens
    if tokens is None:
        model_class = model.file.model_class.value
        raise ModelCannot(model=model.name, model_class=model_class, operation="infill")
    if request.WhichOneof("prompt") == "token_ids":
        raise InvalidField(field="token_ids", problem="it cannot be combined with a suffix")
    check_count("infill.files", infill.files, MAX_FILES)
    has_names = tokens.separator is not None
    texts = [request.text, infill.suffix, _REPOSITORY, *_file_texts(infill, has_names=has_names)]
    prefix, suffix, repository, *files = await model.tokenizer.tokenize_each(
        [TextToTokenize(text) for text in texts], field="prompt"
    )
    head: list[int] = []
    if infill.files and tokens.repository is not None:
        head += [tokens.repository, *repository]
    for file in files:
        head += [*_token(tokens.separator), *file]
    begin = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    gap = [tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle]
    return [*begin, *head, *gap]


def _file_texts(infill: pb.Infill, *, has_names: bool) -> Sequence[str]:
    return [
        f"{file.name}\n{file.text}" if has_names else _SNIPPET + file.text for file in infill.files
    ]


def _token(token: int | None) -> list[int]:
    return [] if token is None else [token]
