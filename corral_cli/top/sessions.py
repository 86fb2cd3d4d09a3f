"""`corral sessions`: the turns of requests that have ended, and where their prompts broke."""

from collections.abc import Iterable
from datetime import UTC
from typing import Final

import click
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2, session_pb2

from corral_cli.access import format_time, inference_options
from corral_cli.connection import Connection
from corral_cli.output import format_table, json_option, print_list

_SESSIONS: Final = (
    *("SESSION", "NAME", "PROJECT", "MODEL", "LAST TURN (UTC)"),
    *("TURNS", "BROKEN", "PROMPT", "REUSED", "OUT"),
)
_TURNS: Final = (
    *("REQUEST", "ENDED (UTC)", "END", "BROKEN IN"),
    *("AT TOKEN", "LOST", "PROMPT", "REUSED", "FIRST TOKEN", "OUT", "OUT/S"),
)


@click.command("sessions")
@click.argument("session", default="")
@json_option
@inference_options
def sessions(inference: Connection, session: str, as_json: bool) -> None:
    """List the sessions of requests that have ended, newest first, or the turns of one SESSION.

    The service remembers them since its start, the last 4096 of a day. A key without the scope
    admin sees those of its project.
    """
    request = engine_pb.ListSessionsRequest(session_id=session)
    listed = inference.list_all(request, "sessions")
    print_list(listed, as_json, turn_lines if session else session_lines)


def session_lines(listed: Iterable[session_pb2.Session]) -> list[str]:
    return format_table(_SESSIONS, map(_session_row, listed), num_text_columns=5)


def turn_lines(listed: Iterable[session_pb2.Session]) -> list[str]:
    turns = (turn for session in listed for turn in session.turns)
    return format_table(_TURNS, map(_turn_row, turns), num_text_columns=4)


def _session_row(session: session_pb2.Session) -> tuple[str, ...]:
    return (
        session.session_id,
        session.name,
        session.project,
        session.model,
        format_time(session.end_time),
        f"{session.num_turns:,}",
        f"{session.num_divergences:,}",
        f"{session.prompt_tokens:,}",
        _format_share(session),
        f"{session.completion_tokens:,}",
    )


def _turn_row(turn: session_pb2.SessionTurn) -> tuple[str, ...]:
    usage, timings, found = turn.usage, turn.timings, turn.usage.divergence
    reason = generation_pb2.FinishReason.Name(turn.finish_reason)
    is_broken = usage.HasField("divergence")
    first_token_s = timings.first_token.ToNanoseconds() / 1e9
    return (
        turn.request_id,
        turn.end_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        (turn.error_reason or reason.removeprefix("FINISH_REASON_")).lower(),
        (found.field or "not known") if is_broken else "",
        f"{found.token_index:,}" if is_broken else "",
        f"{found.lost_tokens:,}" if is_broken else "",
        f"{usage.prompt_tokens:,}",
        _format_share(usage),
        f"{first_token_s:.2f} s" if timings.HasField("first_token") else "",
        f"{usage.completion_tokens:,}",
        f"{timings.tokens_per_second:,.1f}" if timings.tokens_per_second else "",
    )


def _format_share(used: session_pb2.Session | generation_pb2.Usage) -> str:
    return f"{used.cached_tokens / used.prompt_tokens:.1%}" if used.prompt_tokens else ""
