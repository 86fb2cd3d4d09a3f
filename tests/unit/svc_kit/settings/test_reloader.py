"""Settings that are read again while a service runs."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from svc_kit.settings.reloader import SettingsReloader


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


def reloader(
    read: Callable[[], GatewaySettings], applied: list[GatewaySettings]
) -> SettingsReloader[GatewaySettings]:
    """A reloader that can apply hosts, unless one is "refused"."""

    async def apply(settings: GatewaySettings) -> None:
        if "refused" in settings.allowed_hosts:
            raise StartupError("that host is refused")
        applied.append(settings)

    return SettingsReloader(GatewaySettings(), read, {"allowed_hosts": apply})


async def test_only_what_has_changed_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and other changes are named each time."""
    caplog.set_level(logging.INFO)
    applied: list[GatewaySettings] = []
    changed = GatewaySettings(allowed_hosts=("a",), log_level="debug", max_requests=7)
    reloaded = reloader(lambda: changed, applied)

    await reloaded.reload()
    await reloaded.reload()

    assert applied == [changed]
    assert logging.getLogger().level == logging.DEBUG
    assert [record.getMessage() for record in caplog.records] == [
        "reloaded the settings; changed: log_level, allowed_hosts",
        "these settings change at the next start only: max_requests",
        "reloaded the settings; changed: none",
        "these settings change at the next start only: max_requests",
    ]


async def test_settings_with_mistakes_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """They are logged, and can be corrected."""
    applied: list[GatewaySettings] = []

    def read() -> GatewaySettings:
        raise StartupError("2 problems")

    await reloader(read, applied).reload()

    assert applied == []
    assert caplog.messages == ["the settings were not reloaded: 2 problems"]


async def test_a_setting_that_cannot_be_applied_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the next signal: it counts as unchanged."""
    applied: list[GatewaySettings] = []
    hosts = ["refused"]
    reloaded = reloader(lambda: GatewaySettings(allowed_hosts=tuple(hosts)), applied)

    await reloaded.reload()
    hosts[0] = "a"
    await reloaded.reload()

    assert [each.allowed_hosts for each in applied] == [("a",)]
    assert "the setting allowed_hosts was not reloaded: that host is refused" in caplog.messages


async def test_a_hangup_while_a_service_drains_does_not_end_it() -> None:
    """The reloader has ended; the handler that the signal had before would end the process."""
    script = """
import asyncio, os, signal, sys
from gateway.config import GatewaySettings
from svc_kit.settings.reloader import SettingsReloader, reloading_on_hangup

async def main():
    reloader = SettingsReloader(GatewaySettings(), GatewaySettings, {})
    async with reloading_on_hangup(reloader.reload):
        pass
    os.kill(os.getpid(), signal.SIGHUP)
    print("drained")

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=subprocess.PIPE, start_new_session=True
    )

    assert (await process.communicate())[0] == b"drained\n"
