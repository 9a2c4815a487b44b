"""Processes to be killed: each is forked from one that has imported everything, so that hundreds cost little.

Run as a script it reads one job a line, as JSON, forks a process that computes a matrix into a store, prints its
number, and then how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import wait_until


class Writers:
    """The tests' side."""

    def __enter__(self) -> Writers:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.communicate()

    def run(
        self,
        store: Path | str,
        count: int,
        *,
        kill_after: float | None = None,
        kill_when: Callable[[], bool] | None = None,
        **options: Any,
    ) -> int:
        """Start a writer, kill it at a moment or at an event, and return how it ended: 0, or minus the signal."""
        assert self._process.stdin is not None
        print(json.dumps({"store": str(store), "count": count, **options}), file=self._process.stdin, flush=True)
        process = int(self._line())
        if kill_after is not None or kill_when is not None:
            if kill_when is not None:
                wait_until(kill_when)
            else:
                time.sleep(kill_after)
            os.kill(process, 9)  # it is not reaped before its end is read, so the number is still its own
        print(file=self._process.stdin, flush=True)
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main() -> None:
    from crash.stores import make

    with contextlib.suppress(ImportError):
        import s3fs  # noqa: F401 (a second less for each process)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            status = 1
            try:
                make(**json.loads(line))
                status = 0
            finally:
                os._exit(status)
        print(process, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
