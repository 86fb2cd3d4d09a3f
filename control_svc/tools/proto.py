"""Mappings of tools, tool choice, output formats and resources to protos."""

from dataclasses import replace
from typing import Any, Final

from corral.control.v1 import tool_pb2 as pb

from control_svc.tools.model import McpTool, ResponseFormat, Tool, ToolResources
from svc_kit.rpc.message_mapper import MessageMapper, OneofMapper


class _McpToolMapper(MessageMapper[McpTool, pb.McpTool]):
    """An empty list of allowed tools differs from none, which a repeated field cannot express."""

    def from_message(self, message: pb.McpTool, path: str = "", **extra: Any) -> McpTool:
        tool = super().from_message(message, path, **extra)
        allowed = tuple(message.allowed_tools) if message.limits_tools else None
        return replace(tool, allowed_tools=allowed)


TOOL: Final = OneofMapper(
    Tool,
    pb.Tool,
    uses=[_McpToolMapper(McpTool, pb.McpTool, renamed={"require_approval": "approval"})],
)
FORMAT: Final = MessageMapper(ResponseFormat, pb.AnswerFormat)
RESOURCES: Final = MessageMapper(ToolResources, pb.ToolResources, omits_default=True)
