"""From what a caller asks to a response that has not begun."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from control_svc.domain.given_items import GivenItem
from control_svc.domain.ids import RESPONSE, IdSource
from control_svc.domain.items import Compaction, Reasoning
from control_svc.domain.ports import Clock
from control_svc.domain.response_ports import Models, Seals
from control_svc.domain.responses import NewResponse, Response, ResponseState
from control_svc.usecases.response_tools import ResponseTools
from svc_kit.errors import SealInvalid

_SEED_BITS: Final = 53


@dataclass(frozen=True)
class Requests:
    """Checks requests, and makes responses of them."""

    models: Models
    seals: Seals
    tools: ResponseTools
    ids: IdSource
    clock: Clock
    keep: timedelta | None
    """How long responses are kept; None: for ever."""

    async def make(self, project: str, asked: NewResponse) -> Response:
        """A response that has not begun.

        Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong, UnsupportedField,
        UnsupportedValue, SealInvalid, and what `Models.describe` does.
        """
        asked.check()
        self.tools.check(asked.settings.tools)
        self.check_seals(project, asked.input)
        facts = await self.models.describe(project, asked.settings)
        now = self.clock()
        keeps = self.keep if asked.settings.store else None
        return Response(
            id=self.ids.new(RESPONSE),
            state=ResponseState.QUEUED,
            created_at=now,
            expires_at=None if keeps is None else now + keeps,
            settings=asked.settings,
            model=facts.model,
            options=facts.options,
            seed=facts.seed if facts.seed is not None else secrets.randbits(_SEED_BITS),
            previous_id=asked.previous_id,
            conversation_id=asked.conversation_id,
        )

    def check_seals(self, project: str, given: tuple[GivenItem, ...]) -> None:
        """That what is sealed was sealed here, for this project. Raises SealInvalid."""
        for index, item in enumerate(given):
            match item.content:
                case Reasoning(sealed=sealed) if sealed:
                    opened: object = self.seals.open_thought(project, sealed)
                case Compaction(sealed=sealed):
                    opened = self.seals.open_summary(project, sealed)
                case _:
                    continue
            if opened is None:
                raise SealInvalid(field=f"input[{index}].encrypted_content")
