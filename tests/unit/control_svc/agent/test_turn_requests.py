"""What the loop asks of a turn."""

from control_svc.agent.turn import ToolSet
from control_svc.inference.turns import ChoiceMode
from control_svc.tools.model import FunctionTool, ToolChoice


def test_a_choice_of_what_is_not_offered_allows_nothing_else() -> None:
    """A search without a store, or one whose calls are used up, opens no other tool."""
    toolbox = ToolSet([FunctionTool(name="get_weather")], [])
    asked = ToolChoice(mode=ChoiceMode.REQUIRED, allowed_names=("file_search",), is_one=True)
    offered = toolbox.offered(with_hosted=True)
    choice = toolbox.choice(asked, offered, is_first=True, parallel=None)
    assert choice.mode is ChoiceMode.NONE
