"""Checks of settings beyond the type of a single one, the same for every command and service.

What one value allows is checked by its type when it is loaded. Here is what several settings allow
together, and what the files that they name contain.
"""

import os
import ssl
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from svc_kit.lifecycle import StartupError
from svc_kit.network import Address


class Problem(NamedTuple):
    """What is wrong with a setting."""

    service: str
    """The service's table in a file; empty if the setting belongs to none."""
    text: str
    """The setting, what is wrong, and what is allowed."""


class SettingsInvalid(StartupError):
    """Settings cannot work. The message lists all problems, by service."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(map(self._describe, self.services)))

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(problem.service for problem in self.problems))

    def texts(self, service: str) -> list[str]:
        return [text for name, text in self.problems if name == service]

    def _describe(self, service: str) -> str:
        texts = self.texts(service)
        name = f"{service} settings" if service else "settings"
        return "\n  - ".join([f"The {name} have {len(texts)} problem(s):", *texts])


def describe_setting(service: str, path: str) -> str:
    """The name of a setting in a file and in the environment; `path` is dotted, as in "tls.key"."""
    return f"[{service}] {path} (CORRAL_{service.upper()}_{path.upper().replace('.', '__')})"


class Listener(NamedTuple):
    service: str
    setting: str
    address: Address


def find_listener_conflicts(listeners: Sequence[Listener]) -> Iterator[Problem]:
    """Yield a problem for each listener whose port another one before it has."""
    for index, (service, setting, address) in enumerate(listeners):
        for other in listeners[:index]:
            if _conflict(address, other.address):
                yield Problem(
                    service,
                    f"{describe_setting(service, setting)}: {address} is the port of"
                    f" {describe_setting(other.service, other.setting)} too, {other.address}:"
                    " choose another port for one of them",
                )
                break


def _conflict(one: Address, other: Address) -> bool:
    if one.port == 0 or one.port != other.port:
        return False
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one.host, other.host)}
    # On Linux a socket of all IPv6 addresses has those of IPv4 too.
    return len(hosts) == 1 or "::" in hosts or ("0.0.0.0" in hosts and not _has_ipv6(hosts))  # noqa: S104


def _has_ipv6(hosts: Iterable[str]) -> bool:
    return any(":" in host for host in hosts)


def find_access_problem(
    listen: Address,
    *,
    has_keys: bool,
    allow_keyless: bool,
    require_keys: bool,
    has_service_token: bool,
    verifies_stored_keys: bool = True,
) -> tuple[str, str] | None:
    """Why callers with and without keys cannot be served by these settings: the setting, and what
    is wrong; None if they can. `has_service_token`: callers may have it instead of a key.
    """
    if allow_keyless and require_keys:
        return (
            "allow_keyless",
            "allow_keyless and require_keys exclude each other: set only one of them",
        )
    if require_keys and not (has_keys or verifies_stored_keys):
        return (
            "require_keys",
            "it is set, but no key can be verified: add a key to the settings, or set"
            " service_token_file and control_target for the keys of the control service",
        )
    if listen.is_loopback or allow_keyless or require_keys or has_keys or has_service_token:
        return None
    return (
        "listen",
        f"{listen} is reachable from other machines, but no API key is configured. Set require_keys"
        " and create a key with `corral keys create`, listen on 127.0.0.1, or set allow_keyless",
    )


def find_exposure(path: Path) -> str | None:
    """Why a file with a secret is no secret; None if only its user can read it. Raises OSError.

    The group may read a file of another owner, such as root: Kubernetes and systemd hand secrets
    over so. For root, which may check the settings of another user, one of another group.
    """
    status, user = path.stat(), os.geteuid()
    is_own = status.st_uid == user and (user != 0 or status.st_gid == 0)
    handed_over = 0 if is_own else stat.S_IRGRP
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~handed_over:
        return f"{path} is accessible to other users; run: chmod 600 {path}"
    return None


def find_authorities_problem(path: Path) -> str | None:
    """Why a file with certificates of authorities cannot be used; None if it can."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        return f"{path} cannot be used: {error}"
    return None


def find_tls_problem(certificate: Path | None, key: Path | None) -> tuple[str, str] | None:
    """Why a certificate and its key cannot be used together: the setting, and what is wrong; None
    if they can."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if key is not None and certificate is None:
        return "key_file", "it is the key of certificate_file, which is not set"
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")  # not asked for
    except OSError as error:  # an SSLError also if the key is not the certificate's
        with_key = f" with key {key}" if key else ""
        return (
            "certificate_file",
            f"the certificate {certificate}{with_key} cannot be used: {error}",
        )
    return None
