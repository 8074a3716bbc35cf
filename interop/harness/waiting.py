"""Waiting for what has to happen: always for a condition, never for a time."""

import time

#: How many seconds anything is awaited that takes a moment on an idle machine: only a fault, or a machine that stands still, takes so long.
PATIENCE = 60


def await_condition(condition, what: str, patience: float = PATIENCE):
    """Polls until `condition()` is true and returns its value; TimeoutError naming `what` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {patience} s")
        time.sleep(0.02)
    return value
