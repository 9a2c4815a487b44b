"""S3 on this host: a server of moto in a process of its own, and a proxy before it that adds latency and faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import s3fs

KEYS = {"key": "testing", "secret": "a-secret-that-must-not-be-shown"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A server of S3 with one bucket, `bucket`."""

    def __enter__(self) -> Server:
        self.port = free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                break
            time.sleep(0.05)
        self.system.mkdir("bucket")
        return self

    def __exit__(self, *_: Any) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def system(self) -> Any:
        return s3fs.S3FileSystem(**options(self.port), use_listings_cache=False, skip_instance_cache=True)

    def contents(self, store: str) -> dict[str, bytes]:
        """Every file of a store, as a copy of it on disk would hold it."""
        root = store.removeprefix("s3://")
        system = self.system
        return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in sorted(system.find(root))}


def options(port: int, **more: Any) -> dict[str, Any]:
    """Storage options for the server or the proxy at a port."""
    return {**KEYS, "endpoint_url": f"http://127.0.0.1:{port}", **more}


class Proxy(threading.Thread):
    """Passes requests to a server, after `latency` seconds; each may fail. Counts what passes, by method.

    `failing` is the share of requests answered with 500 or 503, or cut off; while `out` is set, all are cut off; the
    next `denied` ones get 403, and so do all that write, if it is `read_only`. `keys` are the access keys that requests
    were signed with.
    """

    def __init__(self, target: int, *, latency: float = 0.0, failing: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.target, self.latency, self.failing = target, latency, failing
        self.out, self.denied, self.chance = threading.Event(), 0, random.Random(0)
        self.read_only, self.keys = False, set[bytes]()
        self.port, self.requests = free_port(), Counter[str]()
        self._ready = threading.Event()

    def __enter__(self) -> Proxy:
        self.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()

    def run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26))
        self._ready.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"expect: 100-continue" in head.lower():
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = b"\r\n".join(one for one in head.split(b"\r\n") if not one.lower().startswith(b"expect:"))
                body = await reader.readexactly(_length(head))
                await asyncio.sleep(self.latency)
                method = head.partition(b" ")[0].decode()
                self.requests[method] += 1
                self.keys.update(re.findall(rb"Credential=(\w+)/", head))
                fault = 403 if self.read_only and method not in ("GET", "HEAD") else self._fault()
                if fault == 0:
                    break
                writer.write(_answer(fault) if fault else await self._forward(head, body))
                await writer.drain()
        writer.close()

    def _fault(self) -> int | None:
        """The status of a failure, 0 for a connection that breaks, or None."""
        if self.out.is_set():
            return 0
        if self.denied > 0:
            self.denied -= 1
            return 403
        return self.chance.choice([500, 503, 0]) if self.chance.random() < self.failing else None

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """The whole answer of the server to one request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 26)
        lines = [one for one in head.split(b"\r\n") if not one.lower().startswith(b"connection:")]
        writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + body)
        answer = await reader.read()
        writer.close()
        first, _, rest = answer.partition(b"\r\n\r\n")
        kept = [one for one in first.split(b"\r\n") if not one.lower().startswith(b"connection:")]
        return b"\r\n".join(kept) + b"\r\n\r\n" + rest


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _answer(status: int) -> bytes:
    code = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}[status]
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    return f"HTTP/1.1 {status} x\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
