"""A child of `ChildProcess` that sends back what it gets."""

import sys

from inference_svc.engine_client.process import open_parent_pipe


def main(pipe_fd: int) -> None:
    """Answer until the parent's end is closed."""
    pipe = open_parent_pipe(pipe_fd)
    while True:
        pipe.send(pipe.recv())


if __name__ == "__main__":
    main(int(sys.argv[1]))
