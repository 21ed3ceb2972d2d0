"""Runs an audit's tasks: a short one in this process, and the rest of a long one in several processes.

A task is an iterator over Arrow record batches. Parsing in Python takes most of the time of a long task, and threads of
a process would share one core.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from streaming.audit.stopping import StoppedError
from streaming.errors import UnavailableError

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ALONE_SECONDS = 2.0  # starting a process takes a second of CPU, which is more than most audits' phases take
_PROCESSES = 2  # of a long task; each takes about 140 MB
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 2.0
# the first byte of a worker's messages
_NEXT, _ROWS, _END, _FAILURE = b"N", b"R", b"E", b"F"


@dataclass(slots=True, kw_only=True)
class Workers:
    """Runs tasks, one at a time or several from several threads."""

    stop: threading.Event  # once it is set, no further batch starts: StoppedError
    most: int  # how many processes work on a long task
    alone_seconds: float = ALONE_SECONDS  # how long this process works before it starts others
    _idle: list["_Worker"] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, task: Task, batches: Iterable[pa.RecordBatch], progress: Callable[[int], None] = lambda _rows: None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the task's results for the batches, in any order.

        Raises the task's error, UnavailableError if a worker dies, and StoppedError.

        Args:
            task: if other processes are started, the task is pickled, and each gets its share of reads_per_second.
            batches: the task's rows; a process gets a batch at a time.
            progress: called with the number of rows of each batch that a process takes.
        """
        source = self._noted(iter(batches), progress)
        yield from task(_for_seconds(source, self.alone_seconds))
        first = next(source, None)
        if first is not None:
            yield from self._in_processes(task, first, source)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def _noted(self, batches: Iterator[pa.RecordBatch], progress: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.stop.is_set():
                raise StoppedError
            yield batch
            progress(batch.num_rows)

    def _in_processes(
        self, task: Task, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Give each process a batch whenever it asks for one, and yield the rows that they send."""
        source = _chained(first, rest)
        workers = self._taken()
        try:
            content = pickle.dumps(_with_share(task, self.most))
            for worker in workers:
                worker.send(content)
            busy = {worker.connection: worker for worker in workers}
            while busy:
                for connection in wait(list(busy), _POLL_SECONDS):
                    if isinstance(connection, Connection):
                        yield from _answered(busy, connection, source)
                if self.stop.is_set():
                    raise StoppedError
        except BaseException:
            # a process that is in the middle of a task is of no more use
            for worker in workers:
                worker.end()
            raise
        with self._lock:
            self._idle += workers

    def _taken(self) -> list["_Worker"]:
        with self._lock:
            idle, self._idle = self._idle[: self.most], self._idle[self.most :]
        return idle + [_Worker() for _ in range(self.most - len(idle))]


def workers_for(stop: threading.Event, *, alone_seconds: float = ALONE_SECONDS) -> Workers:
    """Return as many workers as this machine has cores for; the caller closes them. Arguments as of Workers."""
    return Workers(stop=stop, most=min(len(os.sched_getaffinity(0)), _PROCESSES), alone_seconds=alone_seconds)


def _answered(
    busy: dict[Connection, "_Worker"], connection: Connection, source: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    worker = busy[connection]
    message = worker.receive()
    kind = message[:1]
    if kind == _NEXT:
        batch = next(source, None)
        worker.send(b"" if batch is None else _bytes_of(batch))
    elif kind == _ROWS:
        yield _batch_of(message[1:])
    elif kind == _FAILURE:
        raise pickle.loads(message[1:])  # noqa: S301  from a process that this process has started
    else:
        del busy[connection]


class _Worker:
    """A process that runs one task after the other."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streaming.audit.worker_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C reaches this process alone, which ends the others
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> bytes:
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def end(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def _lost(self) -> UnavailableError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_SECONDS)
        return UnavailableError(
            f"a process of this command has ended before its work was done (exit code {self._process.returncode}); its "
            "own error is above, or the system killed it because it used too much memory"
        )


def serve(connection: Connection) -> None:
    """Run each task that arrives, until the other end closes the connection."""
    with suppress(EOFError, OSError):
        while True:
            task: Task = pickle.loads(connection.recv_bytes())  # noqa: S301  from the process that started this one
            try:
                for batch in task(_asked(connection)):
                    connection.send_bytes(_ROWS + _bytes_of(batch))
            except Exception as error:
                connection.send_bytes(_FAILURE + _pickled(error))
            else:
                connection.send_bytes(_END)


def _asked(connection: Connection) -> Iterator[pa.RecordBatch]:
    while True:
        connection.send_bytes(_NEXT)
        message = connection.recv_bytes()
        if not message:
            return
        yield _batch_of(message)


def _pickled(error: Exception) -> bytes:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # noqa: S301  our own
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _with_share(task: Any, processes: int) -> Any:
    if hasattr(task, "reads_per_second"):
        return replace(task, reads_per_second=task.reads_per_second / processes)
    return task


def _for_seconds(batches: Iterator[pa.RecordBatch], seconds: float) -> Iterator[pa.RecordBatch]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _bytes_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _batch_of(content: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(content).read_next_batch()
