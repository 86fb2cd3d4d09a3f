"""Signals to the encoder of an engine's model, with which it shares the CPU cores."""

import os
import signal
from contextlib import suppress


class EncoderSignals:
    """Stops the encoder's process in steps of streams, and lets it continue between them.

    The threads of a step wait for each other, so that an encoder that takes a core in the middle of
    a step delays it by more than it gains: 8 streams took 90 to 135 ms per step instead of 75 to 80
    while a picture was encoded at a low priority.
    """

    def __init__(self) -> None:
        self.is_encoding = False
        self._is_stopping = False
        self._pidfd: int | None = None

    def share(self, encoder_pid: int) -> None:
        """Share the cores from now on. Without pidfds (Linux 5.3) the encoder is not stopped."""
        self.reclaim()
        self.is_encoding = True
        with suppress(OSError, AttributeError):  # it has ended, or there are no pidfds
            self._pidfd = os.pidfd_open(encoder_pid)
        # An engine that was killed may have left it stopped.
        self._send(signal.SIGSTOP if self._is_stopping else signal.SIGCONT)

    def reclaim(self) -> None:
        """Share the cores no longer."""
        self.is_encoding = False
        self._send(signal.SIGCONT)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def stop(self) -> None:
        """Stop the encoder until `resume`."""
        self._is_stopping = True
        self._send(signal.SIGSTOP)

    def resume(self) -> bool:
        """Let the encoder continue. Return whether one was stopped."""
        was_stopping, self._is_stopping = self._is_stopping, False
        return self._send(signal.SIGCONT) and was_stopping

    def _send(self, number: signal.Signals) -> bool:
        if self._pidfd is not None:
            with suppress(OSError, AttributeError):  # it has ended
                signal.pidfd_send_signal(self._pidfd, number)
                return True
        return False
