"""Lines of batches for /v1/responses: the body of a request in, the object of a response out.

Nothing is stored, whatever the body says: the batch keeps the answers.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from corral.control.v1 import tool_pb2

from control_svc.api.response_convert import new_response, response_to_pb
from control_svc.domain.jobs import JobPriority
from control_svc.usecases.answering import Answering
from openai_wire.errors import RESPONSE_PARAMS, openai_names
from openai_wire.responses import bodies
from openai_wire.responses.objects import response_object
from svc_kit.errors import UnsupportedField, UnsupportedValue


class ResponseLines:
    """Answers lines."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def answer(self, project: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The object of the response.

        Raises what a caller of HTTP would get, and what another try may end better.
        """
        body = bodies.parse_response(fields)
        for name in ("stream", "background"):
            if getattr(body, name):
                raise UnsupportedValue(field=name, value="true")
        if body.conversation is not None:
            raise UnsupportedField(field="conversation")
        with openai_names(RESPONSE_PARAMS):
            asked = bodies.new_response(body)
            _check_tools(asked.settings.tools)
            asked.settings.store = False
            response = await self._answering.answer(project, new_response(asked), JobPriority.BATCH)
        return response_object(response_to_pb(response))


def _check_tools(tools: Iterable[tool_pb2.Tool]) -> None:
    """That no remote server is called: a line may be computed again from its beginning, and would
    make its calls again. Raises UnsupportedValue."""
    for index, tool in enumerate(tools):
        if tool.HasField("mcp"):
            raise UnsupportedValue(field=f"tools[{index}].type", value="mcp")
