"""Handlers for Hodei's tasks, in Python.

A program that uses this module is started by a worker and lives on; the worker gives it jobs over its standard input:

    from hodei_handler import handler, run

    @handler("email.send")
    def send(job):
        job.progress(50, "half way")
        return {"sent_to": job.payload["to"]}

    run()

and:  hodei worker run --handler 'email.send=subprocess:python3 emails.py'

What a handler returns is the job's result; an exception fails the attempt, and `Fatal` fails the job. Jobs run in
threads. What they print goes to their logs. The module needs nothing but Python 3.9; the protocol is told in
docs/handlers.md.
"""

import io
import os
import queue
import struct
import sys
import threading
import traceback

__all__ = ["Blocked", "Cancelled", "Fatal", "Job", "Snoozed", "handler", "run"]

VERSION = 1


class Fatal(Exception):
    """To try again would not help."""


class Cancelled(Exception):
    """The job was asked to stop."""


class Snoozed(Exception):
    """Ends the attempt; the job runs again after `seconds`."""

    def __init__(self, seconds):
        super().__init__(f"snoozed for {seconds} s")
        self.seconds = seconds


class Blocked(Exception):
    """Ends the attempt; the job runs again when somebody resumes it."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


class Job:
    """One attempt at a job.

    id, job_id, execution_id, attempt, task_type: what it is. payload: as it was submitted. data: what earlier attempts
    left with set_data. input: what resumed it after it was blocked. dependencies: a list of {"id", "name", "result"}.
    tick: {"schedule", "at"} if a schedule made it. environment: its variables and secrets.
    """

    def __init__(self, program, message):
        self._program = program
        self._stop = threading.Event()
        self._children = []
        self.id = message["id"]
        self.job_id = message["job_id"]
        self.execution_id = message["execution_id"]
        self.attempt = message["attempt"]
        self.task_type = message["task_type"]
        self.payload = message["payload"]
        self.data = message["data"]
        self.input = message["input"]
        self.dependencies = message["dependencies"]
        self.tick = message["tick"]
        self.environment = message["environment"]
        self.timeout_ms = message["timeout_ms"]

    def progress(self, percent, message=""):
        """Tells how far it is, in percent."""
        self._send("progress", percent=float(percent), message=str(message))

    def set_data(self, data):
        """Rewrites the job's data, which stay over attempts, snoozes and blocks."""
        self._send("data", data=data)
        self.data = data

    def log(self, text):
        """Adds lines to the job's log, as print does."""
        self._send("log", text=str(text), stderr=False)

    def heartbeat(self):
        """Tells that it is still at work, for jobs with a limit on the time without a sign."""
        self._send("heartbeat")

    def enqueue(self, job):
        """A job to be enqueued with the end of this one, such as {"task": {"type": "email.send", "payload": {}}}."""
        pack(job)
        self._children.append(job)

    def snooze(self, seconds):
        """Ends the attempt; the job runs again after so many seconds. That uses up no attempt."""
        raise Snoozed(seconds)

    def block(self, reason):
        """Ends the attempt; the job runs again when it is resumed. That uses up no attempt."""
        raise Blocked(reason)

    @property
    def cancelled(self):
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def check(self):
        """Raises Cancelled if it was asked to stop."""
        if self.cancelled:
            raise Cancelled("the job was asked to stop")

    def wait(self, seconds):
        """Sleeps, and raises Cancelled as soon as it is asked to stop."""
        self._stop.wait(seconds)
        self.check()

    def _send(self, kind, **fields):
        self._program.send({"type": kind, "id": self.id, **fields})


_handlers = {}


def handler(task_type):
    """Declares a function as the handler of a type of tasks."""

    def declare(function):
        _handlers[task_type] = function
        return function

    return declare


def run(concurrency=None):
    """Takes jobs until the worker ends: at most `concurrency` at one time, or as many as the worker gives it."""
    _Program(concurrency).run()


class _Program:
    def __init__(self, concurrency):
        self._asked = concurrency
        self._reader, self._writer = _take_pipes()
        self._lock = threading.Lock()
        self._jobs = {}
        self._queue = queue.SimpleQueue()
        self._threads = 0
        self._most = 1
        self._max_frame = 1 << 20
        self._here = threading.local()
        self._over = threading.Event()
        sys.stdout = _Printer(self, sys.stdout, False)
        sys.stderr = _Printer(self, sys.stderr, True)

    def run(self):
        hello = self._receive()
        if hello is None:
            return
        if hello["version"] != VERSION:
            raise SystemExit(f"the worker speaks version {hello['version']} of the protocol, not {VERSION}")
        self._max_frame = hello["max_frame"]
        self._most = max(1, min(self._asked or hello["concurrency"], hello["concurrency"]))
        self.send(
            {"type": "hello", "version": VERSION, "task_types": sorted(_handlers), "concurrency": self._most}
        )
        pause = hello["heartbeat_ms"] / 1000
        threading.Thread(target=self._beat, args=(pause,), name="heartbeat", daemon=True).start()
        while True:
            message = self._receive()
            # Without the worker nobody wants what the jobs make.
            if message is None:
                os._exit(0)
            kind = message["type"]
            if kind == "job":
                self._take(Job(self, message))
            elif kind == "cancel":
                job = self._jobs.get(message["id"])
                if job is not None:
                    job._stop.set()
            elif kind == "shutdown":
                break
        self._over.set()
        for _ in range(self._threads):
            self._queue.put(None)

    def current(self):
        """The job of this thread, if it has one."""
        return getattr(self._here, "job", None)

    def send(self, message):
        body = pack(message)
        if len(body) > self._max_frame:
            raise ValueError(f"{len(body)} bytes are too much for one message; at most {self._max_frame} are allowed")
        frame = memoryview(struct.pack(">I", len(body)) + body)
        with self._lock:
            while frame:
                frame = frame[os.write(self._writer, frame) :]

    def _receive(self):
        head = self._reader.read(4)
        if len(head) < 4:
            return None
        (length,) = struct.unpack(">I", head)
        body = self._reader.read(length)
        return unpack(body) if len(body) == length else None

    def _beat(self, pause):
        while not self._over.wait(pause):
            self.send({"type": "heartbeat"})

    def _take(self, job):
        self._jobs[job.id] = job
        self._queue.put(job)
        if len(self._jobs) > self._threads and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=f"jobs-{self._threads}").start()

    def _work(self):
        while True:
            job = self._queue.get()
            if job is None:
                return
            self._here.job = job
            job._send("started")
            try:
                end = self._execute(job)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                self._here.job = None
            # Forgotten first: the next job may come as soon as the end is told.
            self._jobs.pop(job.id, None)
            self._finish(job, end)

    def _execute(self, job):
        try:
            function = _handlers.get(job.task_type)
            if function is None:
                raise Fatal(f"there is no handler for {job.task_type}")
            result = function(job)
            pack(result)
            return {"type": "done", "result": result, "children": job._children}
        except Snoozed as snoozed:
            delay = max(0, round(snoozed.seconds * 1000))
            return {"type": "snooze", "delay_ms": delay, "children": job._children}
        except Blocked as blocked:
            return {"type": "block", "reason": str(blocked.reason), "children": job._children}
        except BaseException as error:  # the thread goes on, whatever a handler raises
            said = str(error)
            return {
                "type": "failed",
                "error": f"{type(error).__name__}: {said}" if said else type(error).__name__,
                "detail": traceback.format_exc(),
                "fatal": isinstance(error, Fatal),
            }

    def _finish(self, job, end):
        try:
            self.send({"id": job.id, **end})
        except (TypeError, ValueError) as error:
            self.send({"type": "failed", "id": job.id, "error": str(error), "fatal": True})


class _Printer(io.TextIOBase):
    """What a job's thread prints goes to that job's log; everything else to standard error."""

    def __init__(self, program, stream, is_stderr):
        self._program = program
        self._stream = stream
        self._is_stderr = is_stderr
        self._begun = threading.local()

    encoding = "utf-8"
    errors = "replace"

    def writable(self):
        return True

    def fileno(self):
        return self._stream.fileno()

    @property
    def buffer(self):
        return self._stream.buffer

    def write(self, text):
        job = self._program.current()
        if job is None:
            self._stream.write(text)
            self._stream.flush()
            return len(text)
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest
        if lines:
            job._send("log", text="\n".join(lines), stderr=self._is_stderr)
        return len(text)

    def flush(self):
        job, text = self._program.current(), getattr(self._begun, "text", "")
        if job is not None and text:
            self._begun.text = ""
            job._send("log", text=text, stderr=self._is_stderr)
        self._stream.flush()


def _take_pipes():
    """Takes standard input and output for the protocol. Whoever prints from now on, in whatever language, prints to
    standard error, and whoever reads finds nothing."""
    reader = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    writer = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reader, writer


def pack(value):
    """MessagePack, of what JSON can say."""
    out = bytearray()
    _pack(value, out, 0)
    return bytes(out)


def _pack(value, out, depth):
    if depth > 100:
        raise ValueError("a value is nested too deeply")
    if value is None:
        out.append(0xC0)
    elif value is True:
        out.append(0xC3)
    elif value is False:
        out.append(0xC2)
    elif isinstance(value, int):
        _pack_int(value, out)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        text = value.encode("utf-8", "replace")
        _pack_head(len(text), out, 0xA0, 31, (0xD9, 0xDA, 0xDB))
        out += text
    elif isinstance(value, (list, tuple)):
        _pack_head(len(value), out, 0x90, 15, (None, 0xDC, 0xDD))
        for item in value:
            _pack(item, out, depth + 1)
    elif isinstance(value, dict):
        _pack_head(len(value), out, 0x80, 15, (None, 0xDE, 0xDF))
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a string")
            _pack(key, out, depth + 1)
            _pack(item, out, depth + 1)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be said in JSON")


def _pack_int(value, out):
    if 0 <= value < 0x80 or -0x20 <= value < 0:
        out += struct.pack(">b" if value < 0 else ">B", value)
    elif 0 <= value < 1 << 64:
        out += struct.pack(">BQ", 0xCF, value)
    elif -(1 << 63) <= value < 0:
        out += struct.pack(">Bq", 0xD3, value)
    else:
        raise ValueError(f"{value} has more than 64 bits")


def _pack_head(length, out, small, most, codes):
    if length <= most:
        out.append(small | length)
    elif codes[0] is not None and length < 1 << 8:
        out += struct.pack(">BB", codes[0], length)
    elif length < 1 << 16:
        out += struct.pack(">BH", codes[1], length)
    else:
        out += struct.pack(">BI", codes[2], length)


def unpack(data):
    """The value that `data` is the MessagePack of."""
    value, end = _unpack(data, 0)
    if end != len(data):
        raise ValueError("there is more than one value")
    return value


_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {1: ">B", 2: ">H", 4: ">I"}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def _unpack(data, at):
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 0x100, at
    if code < 0x90:
        return _unpack_map(data, at, code & 0x0F)
    if code < 0xA0:
        return _unpack_list(data, at, code & 0x0F)
    if code < 0xC0:
        return _text(data, at, code & 0x1F)
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        form = _NUMBERS[code]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    for sizes, take in ((_TEXTS, _text), (_BYTES, _raw), (_LISTS, _unpack_list), (_MAPS, _unpack_map)):
        if code in sizes:
            size = sizes[code]
            (length,) = struct.unpack_from(_LENGTHS[size], data, at)
            return take(data, at + size, length)
    raise ValueError(f"{code:#x} begins nothing that this module knows")


def _raw(data, at, length):
    if at + length > len(data):
        raise ValueError("the data end too early")
    return data[at : at + length], at + length


def _text(data, at, length):
    raw, at = _raw(data, at, length)
    return raw.decode("utf-8"), at


def _unpack_list(data, at, length):
    items = []
    for _ in range(length):
        item, at = _unpack(data, at)
        items.append(item)
    return items, at


def _unpack_map(data, at, length):
    found = {}
    for _ in range(length):
        key, at = _unpack(data, at)
        found[key], at = _unpack(data, at)
    return found, at
