"""Tries edits (see edits.py) in a copy of the tree: builds, runs, judges, and keeps a record."""

import contextlib
import datetime
import fcntl
import os
import re
import signal
import subprocess
import sys
import time

from edits import ROOT

#: How long a test may take, in seconds. One that takes longer has shown nothing.
TEST_S = 300


class Tree:
    """A copy of the working tree with a target directory of its own, which both stay for the next time. One run at a time has it."""

    def __init__(self):
        self.work = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "trials")
        self.path = os.path.join(self.work, "tree")
        os.makedirs(self.path, exist_ok=True)
        self.lock = open(os.path.join(self.work, "lock"), "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{sys.argv[0]}: another run has {self.work}")
        self.env = {
            **os.environ,
            "CARGO_TARGET_DIR": os.path.join(self.work, "target"),
            "CARGO_PROFILE_DEV_DEBUG": "0",
            "CARGO_TERM_COLOR": "never",
            "RUST_BACKTRACE": "0",
        }
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
        )
        files = {file for file in listed.stdout.split("\0") if file and os.path.isfile(os.path.join(ROOT, file))}
        for file in files:
            self.restore(file)
        for directory, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.relpath(path, self.path) not in files:
                    os.remove(path)

    def restore(self, file):
        """Writes a file anew if it is not what it should be; only then does cargo build it again."""
        wanted, path = contents(os.path.join(ROOT, file)), os.path.join(self.path, file)
        if wanted != contents(path):
            self.write(file, wanted)
            os.chmod(path, os.stat(os.path.join(ROOT, file)).st_mode)

    def write(self, file, data):
        path = os.path.join(self.path, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(data)

    def run(self, arguments, limit_s=None, env=None):
        """The exit code and all output; the code is None if the time ran out."""
        process = subprocess.Popen(
            arguments,
            cwd=self.path,
            env={**self.env, **dict([env] if env else [])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise

    def build_test(self, test):
        package, target, _ = test
        return self.run(["cargo", "test", "--quiet", "--locked", "--no-run", *package_of(package), target])

    def run_test(self, test, env):
        package, target, name = test
        return self.run(["cargo", "test", "--locked", *package_of(package), target, "--", name], TEST_S, env)


@contextlib.contextmanager
def edited(tree, places, entry):
    """The tree with the edits of an entry, for as long as the context lasts."""
    files = places.apply(entry)
    objects = {file: os.path.splitext(file)[0] + ".o" for file in files if file.endswith(".bpf.c")}
    try:
        for file, text in files.items():
            tree.write(file, text.encode())
        for source, made in objects.items():
            # The object is in the tree, so cargo does not make it.
            subprocess.run([os.path.join(tree.path, os.path.dirname(source), "build"), os.path.join(tree.path, made)], check=True)
        yield
    finally:
        for file in [*files, *objects.values()]:
            tree.restore(file)


def try_test(tree, places, entry):
    """Whether the test of an entry fails on its assertion once the edits are made, and a sentence."""
    with edited(tree, places, entry):
        code, output = tree.build_test(entry.test)
        if code != 0:
            return False, "DOES NOT BUILD: " + output[-1500:]
        code, output = tree.run_test(entry.test, entry.env)
        tree.write(f"../logs/{entry.name}", output.encode())
        return judge_failure(code, output, entry.test[2], tree)


def package_of(words):
    """The options for a package, PACKAGE or PACKAGE/FEATURE."""
    package, _, feature = words.partition("/")
    return ["--package", package, *(["--features", feature] if feature else [])]


def contents(path):
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def passed(code, output):
    """Whether tests ran and none failed."""
    return code == 0 and re.search(r"ok\. [1-9]\d* passed", output) is not None


def judge_failure(code, output, name, tree):
    """Whether the test failed on its assertion, and a sentence: where, or what happened in its place.

    A panic of the test's own thread in code of the tests counts. A process that dies, a time that runs out, a panic in the code under test, one of
    another thread, which may be wanted, do not."""
    if code is None:
        return False, f"TOOK MORE THAN {TEST_S} s"
    if code == 0:
        return False, "NOTHING FAILED"
    failed = [test for test in re.findall(r"^test (\S+) \.\.\. FAILED$", output, re.M) if name in test]
    if not failed:
        return False, "ENDED WITHOUT A FAILED TEST"
    elsewhere = None
    for test in failed:
        said = re.search(rf"^---- {re.escape(test)} stdout ----$(.*?)(?=^---- |^failures:$|\Z)", output, re.M | re.S)
        panics = re.findall(r"^thread '([^']*)'.* panicked at (\S+?):(\d+):\d+:\n(.*)", said[1] if said else "", re.M)
        for thread, path, line, message in panics:
            where = f"{path}:{line}: {message.replace(tree.path, '')}"
            if thread not in (test, "main"):
                elsewhere = f"PANICKED IN ANOTHER THREAD: {where}"
            elif is_test_code(os.path.join(tree.path, path), int(line)):
                return True, where
            else:
                elsewhere = f"PANICKED IN THE CODE UNDER TEST: {where}"
    return False, elsewhere or "FAILED WITHOUT A PANIC"


def is_test_code(path, line):
    parts = path.split(os.sep)
    if "tests" in parts[:-1] or parts[-1] == "tests.rs":
        return True
    source = (contents(path) or b"").decode()
    return "#[cfg(test)]" in "".join(source.splitlines(keepends=True)[:line])


def commit():
    """The commit of the working tree, with a plus if it has changes of its own."""
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    changes = subprocess.run(["git", "-C", ROOT, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    return head + ("+" if changes.strip() else "")


class Record:
    """A table of verdicts in a file. A run writes the rows that it has tried and leaves the others."""

    def __init__(self, path, title, names):
        self.path, self.title, self.names = path, title, names
        self.commit = commit()
        self.row_by_name = {}
        if path and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                rows = [line.strip().strip("|").split(" | ") for line in file if line.startswith("| ")]
            self.row_by_name = {row[0].strip(): [cell.strip() for cell in row] for row in rows if row[0].strip() in names}

    def add(self, name, is_good, text, seconds):
        # Where the tree lies tells nobody anything.
        text = re.sub(r"\s+", " ", text).replace(f"{ROOT}/", "").replace("|", "\\|")[:160]
        self.row_by_name[name] = [name, "yes" if is_good else "**no**", text, f"{seconds:.0f}", self.commit, f"{datetime.date.today()}"]
        if self.path:
            self.write()

    def write(self):
        rows = [self.row_by_name[name] for name in self.names if name in self.row_by_name]
        good = sum(row[1] == "yes" for row in rows)
        seconds = sum(int(row[3]) for row in rows)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(f"<!-- Written by {os.path.basename(sys.argv[0])} --record. -->\n{self.title}\n\n")
            file.write(f"{good} of {len(rows)} are caught, {len(self.names) - len(rows)} were not tried; {seconds} s in all.\n\n")
            file.write("| name | caught | by | s | commit | day |\n|---|---|---|---:|---|---|\n")
            file.writelines("| " + " | ".join(row) + " |\n" for row in rows)


def try_all(entries, judge, record):
    """Judges each entry, prints and records it; the number of those that nothing caught."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    missed = 0
    for entry in entries:
        started = time.monotonic()
        is_good, text = judge(entry)
        missed += not is_good
        seconds = time.monotonic() - started
        print(f"{'caught' if is_good else 'NOT CAUGHT':10} {entry.name:32} {seconds:4.0f} s  {text}", flush=True)
        record.add(entry.name, is_good, text, seconds)
    print(f"{len(entries) - missed} of {len(entries)} caught")
    return missed


def arguments_of(script):
    """The words of the command line, and what --record names."""
    words, record = [], None
    rest = iter(sys.argv[1:])
    for word in rest:
        if word == "--record":
            record = next(rest, None) or sys.exit(f"{script}: --record needs a file")
        else:
            words.append(word)
    return words, record
