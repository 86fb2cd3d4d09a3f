"""The TLS certificate of a server, read again when its files change.

New connections get the new certificate; running ones are not touched. A pair of files that cannot
be used is reported in the log and in the metrics, and the one in use stays.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
from prometheus_client import CollectorRegistry

from svc_kit.lifecycle import StartupError
from svc_kit.metrics import CertificateMetrics
from svc_kit.settings.groups import TlsSettings

_log = logging.getLogger(__name__)
POLL_INTERVAL_S: Final = 1.0
"""Interval of looking at the files. Changed ones are read once they are the same at two looks."""

_FileState = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class _Loaded:
    context: ssl.SSLContext
    key: bytes = field(repr=False)
    chain: bytes
    client_ca: bytes | None
    valid: tuple[datetime, datetime]


class ServerCertificate:
    """The certificate of a server and the authorities of its clients' certificates."""

    def __init__(self, tls: TlsSettings, registry: CollectorRegistry) -> None:
        """Raises StartupError if the files cannot be used."""
        self._tls = tls
        self._files = [tls.certificate_file, tls.key_file]
        if tls.client_ca_file is not None:
            self._files.append(tls.client_ca_file)
        self._tried = self._seen = self._file_state()
        try:
            self._loaded = _load(tls)
        except (OSError, ValueError) as error:
            raise StartupError(
                f"The TLS files cannot be loaded: the certificate {tls.certificate_file} with key "
                f"{tls.key_file} cannot be used: {error}"
            ) from error
        # A socket has one context for all its connections, so that one refers to the current one.
        self._listening = self._loaded.context
        self._listening.sni_callback = self._select_context
        self._metrics = CertificateMetrics(registry)
        self._metrics.expiry.set(self._loaded.valid[1].timestamp())
        self._reported: _Loaded | None = None
        self._report_validity()

    def refresh(self) -> None:
        """Read the files if they have changed and are complete, and use them if they are valid."""
        self._report_validity()
        state = self._file_state()
        if state == self._tried:
            return
        is_complete, self._seen = state == self._seen, state
        if not is_complete:
            return
        self._tried = state
        try:
            loaded = _load(self._tls)
            _check_validity(loaded)
        except (OSError, ValueError) as error:
            self._metrics.reloads.labels("refused").inc()
            self._metrics.refused.set(1)
            _log.error(
                "the changed TLS certificate %s is not used, the previous one stays: %s",
                self._tls.certificate_file,
                error,
            )
            return
        if self._file_state() != state:
            self._tried = None  # changed while it was read
            return
        self._loaded = loaded
        self._metrics.refused.set(0)
        self._metrics.reloads.labels("loaded").inc()
        self._metrics.expiry.set(loaded.valid[1].timestamp())
        _log.info("the TLS certificate %s was reloaded", self._tls.certificate_file)

    def _report_validity(self) -> None:
        """Log once that clients refuse the certificate in use: since the start, or from now on."""
        try:
            _check_validity(self._loaded)
        except ValueError as problem:
            if self._reported is not self._loaded:
                text = "clients refuse the TLS certificate %s: %s"
                _log.error(text, self._tls.certificate_file, problem)
                self._reported = self._loaded

    async def watch(self, interval_s: float = POLL_INTERVAL_S) -> None:
        """Call `refresh` every `interval_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.refresh)

    def listening_context(self) -> ssl.SSLContext:
        """The context of a listening socket; its new connections use the current certificate."""
        return self._listening

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC port; its new connections use the current certificate."""
        given = self._loaded

        def fetch() -> grpc.ServerCertificateConfiguration | None:  # at each handshake
            nonlocal given
            if self._loaded is given:
                return None
            given = self._loaded
            return _grpc_configuration(given)

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(given),
            fetch,  # type: ignore[arg-type]  # the stubs lack None, which means unchanged
            require_client_authentication=len(self._files) == 3,
        )

    def _select_context(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = self._loaded.context

    def _file_state(self) -> _FileState | None:
        return tuple(map(_state_of, self._files))


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


def _load(tls: TlsSettings) -> _Loaded:
    """Read the files. Raises OSError or ValueError if they cannot be used together."""
    # Imported here because it is slow to import, and only TLS needs it.
    from cryptography import x509

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])  # of the gateway; gRPC has contexts of its own
    # Raises SSLError, an OSError, also if the key is not the certificate's.
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    client_ca = None
    if tls.client_ca_file is not None:
        client_ca = tls.client_ca_file.read_bytes()
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a resumed session would not verify the client again
        context.options |= ssl.OP_NO_TICKET
    chain = tls.certificate_file.read_bytes()
    leaf = x509.load_pem_x509_certificates(chain)[0]
    valid = (leaf.not_valid_before_utc, leaf.not_valid_after_utc)
    return _Loaded(context, tls.key_file.read_bytes(), chain, client_ca, valid)


def _check_validity(loaded: _Loaded) -> None:
    start, end = loaded.valid
    if not start <= datetime.now(UTC) < end:
        raise ValueError(f"it is valid from {start} to {end}")


def _grpc_configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key, loaded.chain)], root_certificates=loaded.client_ca
    )
