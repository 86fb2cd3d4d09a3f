"""The failure that ends a process before it serves: one line for the operator, no traceback."""


class StartupError(Exception):
    """A service cannot start; the message says what is wrong and how to put it right.

    Each `__main__` prints it to stderr and exits with `EXIT_CODE`.
    """

    EXIT_CODE = 2
