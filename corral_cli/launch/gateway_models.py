"""The models that a gateway serves to a key: what a program that is started will see."""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import httpx2
from pydantic import BaseModel, ValidationError

from corral_cli.connection import command_name
from corral_cli.launch.programs import ServedModel
from svc_kit import http_client

_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 16 << 20


class KeyRefused(click.ClickException):
    """The gateway does not accept the key."""


class _Error(BaseModel):
    message: str


class _ErrorBody(BaseModel):
    error: _Error


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None


class _ModelList(BaseModel):
    data: list[_Model]


def list_models(gateway: str, key: str, ca_file: Path | None = None) -> list[ServedModel]:
    """The models of the gateway at a URL, in its order. Raises KeyRefused, and
    click.ClickException if it does not answer as a gateway does."""
    headers = {"authorization": f"Bearer {key}"}
    verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
    url = f"{gateway}/v1/models"
    try:
        response = asyncio.run(
            http_client.get(
                url, max_bytes=_MAX_BYTES, timeout_s=_TIMEOUT_S, headers=headers, verify=verify
            )
        )
    except (httpx2.HTTPError, OSError) as error:
        reason = str(error) or type(error).__name__
        text = f"no server answers at {gateway} ({reason}). Start one in another terminal"
        raise click.ClickException(f"{text}: {command_name()} up") from error
    if response.status_code in (401, 403):
        raise KeyRefused(f"{gateway} refuses the key: {_message(response)}")
    try:
        if response.status_code != 200:
            raise click.ClickException(f"{url}: {response.status_code}, {_message(response)}")
        served = _ModelList.model_validate_json(response.content)
    except ValidationError as error:
        raise click.ClickException(f"what answers at {url} is no gateway of Corral") from error
    return [ServedModel(model.id, model.max_model_len or None) for model in served.data]


def _message(response: httpx2.Response) -> str:
    """The message of an error in OpenAI's envelope. Raises ValidationError."""
    return _ErrorBody.model_validate_json(response.content).error.message


def choose_model(models: Sequence[ServedModel], name: str | None) -> Sequence[ServedModel]:
    """The models with the chosen one first: that of the name, by default the server's first.

    Raises click.ClickException.
    """
    if not models:
        raise click.ClickException("the server has no model: corral models add, or up --model")
    known = [model.name for model in models]
    if name is not None and name not in known:
        text = f"the server has no model {name!r} (there: {', '.join(known)})"
        raise click.ClickException(text)
    index = 0 if name is None else known.index(name)
    return [models[index], *models[:index], *models[index + 1 :]]
