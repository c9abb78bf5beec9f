"""HyperQueue as its wheel brings it: the server and a worker are threads of one process, and there is no journal."""

import os
import time

from contract import produce, say
from hyperqueue import Client, Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

FOLDER = os.environ["BENCH_URL"]


def program(stamp):
    # Tasks are processes; the one that is timed tells the time at which it was started.
    return [os.environ["BENCH_STAMP"], "--stamp", os.environ["BENCH_PORT"]] if stamp else ["/bin/true"]


def producer():
    client = Client(FOLDER)
    open_jobs = []

    def submit(count, stamp=False):
        job = Job()
        for _ in range(count):
            job.program(program(stamp), stdout=None, stderr=None)
        open_jobs.append(client.submit(job))

    def settled():
        client.connection.wait_for_jobs([job.id for job in open_jobs], lambda _: None)
        open_jobs.clear()
        return True

    produce(lambda: submit(1, stamp=True), submit, settled)


def worker(mode, _total):
    cluster = LocalCluster(FOLDER)
    # Without a worker the tasks of a bulk submission wait.
    if mode != "idle":
        cluster.start_worker(WorkerConfig(cores=4))
    say(ready=True)
    while True:
        time.sleep(3600)
