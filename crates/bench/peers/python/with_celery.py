"""Celery on Redis."""

import os

import redis
from celery import Celery, signals
from contract import job, produce, say

URL = os.environ["BENCH_URL"]
app = Celery("bench", broker=URL)
app.conf.update(
    # Results are not kept: nobody asks for them.
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    broker_pool_limit=16,
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    # Standard output carries the words of the measuring program.
    worker_redirect_stdouts=False,
)


@app.task(name="job")
def run():
    job(os.environ.get("BENCH_MODE", "drain"))


def producer():
    client = redis.Redis.from_url(URL)

    def bulk(count):
        # There is no bulk call: the nearest is many over one connection.
        with app.producer_pool.acquire(block=True) as connection:
            for _ in range(count):
                run.apply_async(producer=connection)

    # A message is in one of these from the call until it was acknowledged.
    produce(run.delay, bulk, lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0)


def worker(mode, _total):
    os.environ["BENCH_MODE"] = mode
    signals.worker_ready.connect(lambda **_: say(ready=True), weak=False)
    processes = {"drain": "2", "process": "4", "latency": "1"}[mode]
    app.worker_main(
        ["worker", "--pool=prefork", f"--concurrency={processes}", "--loglevel=ERROR"]
        + ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    )
