"""Shares the CPU cores between an engine and the encoder of its model."""

import os
import signal
from contextlib import suppress


class CoreSharing:
    """Stops the encoder's process during steps, and lets it continue between them.

    The threads of a step wait for each other, so that an encoder that takes a core in the middle of
    a step delays it by more than it gains: 8 streams took 90 to 135 ms per step instead of 75 to 80
    while a picture was encoded at the lowest priority.
    """

    def __init__(self) -> None:
        self.is_encoding = False
        self._is_held = False
        self._encoder: int | None = None  # a pidfd, which never names another process

    def start(self, encoder_pid: int | None) -> None:
        """Share the cores from now on. Without `encoder_pid`, the encoder is never stopped."""
        self.end()
        self.is_encoding = True
        if encoder_pid is not None:
            with suppress(OSError):  # it has ended, or the kernel is older than 5.3
                self._encoder = os.pidfd_open(encoder_pid)
        if self._is_held:
            self._send(signal.SIGSTOP)

    def end(self) -> None:
        """Share the cores no longer."""
        self.is_encoding = False
        self._send(signal.SIGCONT)
        if self._encoder is not None:
            os.close(self._encoder)
            self._encoder = None

    def hold(self) -> None:
        """Stop the encoder until `release`."""
        self._is_held = True
        self._send(signal.SIGSTOP)

    def release(self) -> None:
        """Let the encoder continue."""
        self._is_held = False
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._encoder is not None:
            with suppress(OSError):  # it has ended
                signal.pidfd_send_signal(self._encoder, number)
