"""The words that every program here speaks; README.md in the folder above describes them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def now():
    """Microseconds of the system's clock."""
    return time.time_ns() // 1000


def say(**answer):
    print(json.dumps(answer), flush=True)


def call_in_threads(one, count, seconds):
    times = []
    began = now()
    end = began + int(seconds * 1e6)

    def caller():
        mine = []
        while (call := now()) < end:
            one()
            mine.append(now() - call)
        times.extend(mine)

    threads = [threading.Thread(target=caller) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = now() - began
    times.sort()

    def at(share):
        return times[round((len(times) - 1) * share)] / 1000

    return {"jobs": len(times), "seconds": took / 1e6, "p50": at(0.5), "p99": at(0.99)}


def produce(one, bulk, empty):
    """Serves the commands of the measuring program with what a system can do."""
    say(ready=True)
    for line in sys.stdin:
        command, *rest = line.split()
        began = now()
        if command == "callers":
            say(**call_in_threads(one, int(rest[0]), float(rest[1])))
        elif command == "bulk":
            bulk(int(rest[0]))
            say(seconds=(now() - began) / 1e6)
        elif command == "one":
            one()
            say(began=began)
        elif command == "settle":
            while not empty():
                time.sleep(0.003)
            say(at=now())
        else:
            raise ValueError(f"no such command: {line}")


_sockets = {}


def started():
    """Tells that one more handler has started; a process that was forked gets a socket of its own."""
    stamp = now()
    pid = os.getpid()
    if pid not in _sockets:
        _sockets[pid] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _sockets[pid].sendto(f"1 {stamp}".encode(), ("127.0.0.1", int(os.environ["BENCH_PORT"])))


def job(mode):
    started()
    if mode == "process":
        subprocess.run(["/bin/true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)


def end_with_input():
    """The measuring program is gone when its end of the pipe is closed, however it ended; forked workers go, too."""

    def watch():
        while os.read(0, 64):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
