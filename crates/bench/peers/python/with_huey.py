"""huey on Redis."""

import logging
import os

from contract import job, produce, say
from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=False)


@huey.task()
def run():
    job(os.environ.get("BENCH_MODE", "drain"))


def producer():
    # There is no bulk call: `map` enqueues one after the other.
    produce(run, lambda count: run.map(() for _ in range(count)), lambda: huey.pending_count() == 0)


def worker(mode, _total):
    os.environ["BENCH_MODE"] = mode
    logging.disable(logging.CRITICAL)
    workers, kind = {"drain": (2, "process"), "process": (4, "process"), "latency": (1, "thread")}[mode]
    consumer = huey.create_consumer(workers=workers, worker_type=kind, periodic=False)
    say(ready=True)
    consumer.run()
