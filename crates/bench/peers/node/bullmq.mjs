// BullMQ on Redis.

import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import { handler, produce } from "./contract.mjs";

const NAME = "bench";
// Finished jobs are not kept, which is the faster way, and the advice for busy queues.
const OPTIONS = { removeOnComplete: true, removeOnFail: true };
const BATCH = 1000;

const connect = () => new IORedis(process.env.BENCH_URL, { maxRetriesPerRequest: null });

export async function producer() {
  const queue = new Queue(NAME, { connection: connect() });
  await queue.waitUntilReady();
  await produce({
    one: () => queue.add("job", {}, OPTIONS),
    bulk: async (count) => {
      for (let left = count; left > 0; left -= BATCH) {
        const jobs = Array.from({ length: Math.min(BATCH, left) }, () => ({ name: "job", data: {}, opts: OPTIONS }));
        await queue.addBulk(jobs);
      }
    },
    empty: async () => {
      const counts = await queue.getJobCounts("waiting", "active", "delayed", "prioritized");
      return Object.values(counts).every((count) => count === 0);
    },
  });
}

export async function worker(mode, total) {
  const { job, ready } = handler(mode, total);
  const concurrency = { drain: 200, process: 4, latency: 1 }[mode];
  const worker = new Worker(NAME, job, { connection: connect(), concurrency });
  await worker.waitUntilReady();
  ready();
}
