"""A program in a namespace: its output kept, its end awaited, never left running."""

import signal
import subprocess
import threading
import time

from harness.topology import Namespace


class Process:
    def __init__(self, namespace: Namespace, *command: str):
        self.command = command
        self._lines: list[str] = []
        self._popen = subprocess.Popen(
            namespace.argv(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {command[0]}", daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Standard output and error so far, interleaved."""
        return "".join(self._lines)

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait(self, timeout: float) -> int:
        """The exit status; after `timeout` seconds the process is killed and TimeoutError raised."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.command[0]} still ran after {timeout} s:\n{self.output[-4000:]}") from None
        self._reader.join(5)
        return status

    def terminate(self, timeout: float = 10) -> int:
        """SIGTERM, then the exit status as `wait` gives it."""
        self._popen.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._reader.join(5)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        if self.running:
            self.kill()

    def _read(self) -> None:
        for line in self._popen.stdout:
            self._lines.append(line)


def await_condition(condition, timeout: float, what: str):
    """Polls until `condition()` is true and returns its value; TimeoutError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout} s")
        time.sleep(0.02)
    return value
