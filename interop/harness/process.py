"""A program in a namespace: its output kept, its end awaited, never left running."""

import os
import signal
import subprocess
import threading
from pathlib import Path

from harness.topology import Namespace
from harness.waiting import PATIENCE


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
    def pid(self) -> int:
        return self._popen.pid

    def cpu_s(self) -> float:
        """Processor time that the program has had, utime and stime of proc_pid_stat(5); 0 when it has ended."""
        try:
            columns = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            return 0.0
        return sum(map(int, columns[11:13])) / os.sysconf("SC_CLK_TCK")

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit status; after `timeout` seconds the process is killed and TimeoutError raised."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.command[0]} still ran after {timeout} s:\n{self.output[-4000:]}") from None
        self._reader.join(PATIENCE)
        return status

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def terminate(self) -> int:
        """SIGTERM, then the exit status as `wait` gives it."""
        self._popen.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._reader.join(PATIENCE)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        if self.running:
            self.kill()

    def _read(self) -> None:
        for line in self._popen.stdout:
            self._lines.append(line)
