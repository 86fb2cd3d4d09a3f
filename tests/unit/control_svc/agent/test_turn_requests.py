"""Tool choices of turn requests."""

from control_svc.agent.model import LoopSettings
from control_svc.agent.turn import ToolSet
from control_svc.inference.turns import ChoiceMode
from control_svc.tools.model import FunctionTool, ToolChoice


def test_a_choice_of_an_unavailable_tool_allows_no_other() -> None:
    """Such as a file search without a store, or beyond its number of calls."""
    settings = LoopSettings(
        project="p", label="r", model="m", tools=(FunctionTool(name="get_weather"),), seed=0
    )
    tools = ToolSet(settings, [])
    requested = ToolChoice(mode=ChoiceMode.REQUIRED, allowed_names=("file_search",), is_one=True)
    offered = tools.offered(with_hosted=True)
    choice = tools.choice(requested, offered, is_first=True, parallel=None)
    assert choice.mode is ChoiceMode.NONE
