// graphile-worker on PostgreSQL.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { handler, produce } from "./contract.mjs";

const BATCH = 5000;
const logger = new Logger(() => () => {});

export async function producer() {
  const pgPool = new pg.Pool({ connectionString: process.env.BENCH_URL, max: 16 });
  pgPool.on("error", console.error);
  pgPool.on("connect", (client) => client.on("error", console.error));
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  await produce({
    one: () => utils.addJob("job", {}),
    bulk: async (count) => {
      for (let left = count; left > 0; left -= BATCH) {
        const jobs = Array.from({ length: Math.min(BATCH, left) }, () => ({ identifier: "job", payload: {} }));
        await utils.addJobs(jobs);
      }
    },
    // A job that is done is deleted.
    empty: async () => (await pgPool.query("SELECT 1 FROM graphile_worker._private_jobs LIMIT 1")).rowCount === 0,
  });
}

export async function worker(mode, total) {
  const { job, ready } = handler(mode, total);
  // Jobs are fetched and completed in batches, except where the time to the start of one is what counts.
  const batched = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const settings = {
    drain: { concurrentJobs: 24, maxPoolSize: 10, ...batched },
    process: { concurrentJobs: 4, maxPoolSize: 10, ...batched },
    latency: { concurrentJobs: 1, maxPoolSize: 10 },
  }[mode];
  const runner = await run({
    preset: { worker: { connectionString: process.env.BENCH_URL, logger, ...settings } },
    taskList: { job },
    parsedCronItems: [],
    noHandleSignals: true,
  });
  runner.promise.catch((error) => {
    console.error(error);
    process.exit(1);
  });
  ready();
}
