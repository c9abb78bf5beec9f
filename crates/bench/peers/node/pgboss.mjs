// pg-boss on PostgreSQL.

import pg from "pg";
import { PgBoss } from "pg-boss";
import { handler, produce } from "./contract.mjs";

const NAME = "bench";
const BATCH = 5000;

async function start(max) {
  const boss = new PgBoss({
    connectionString: process.env.BENCH_URL,
    max,
    useListenNotify: true,
    schedule: false,
    supervise: false,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

export async function producer() {
  const boss = await start(16);
  await boss.createQueue(NAME, { notify: true });
  const pool = new pg.Pool({ connectionString: process.env.BENCH_URL, max: 1 });
  await produce({
    one: () => boss.send(NAME, {}),
    bulk: async (count) => {
      for (let left = count; left > 0; left -= BATCH) {
        await boss.insert(NAME, Array.from({ length: Math.min(BATCH, left) }, () => ({ data: {} })));
      }
    },
    empty: async () => (await pool.query("SELECT 1 FROM pgboss.job WHERE state < 'completed' LIMIT 1")).rowCount === 0,
  });
}

export async function worker(mode, total) {
  const { started, run, ready } = handler(mode, total);
  const boss = await start(10);
  const settings = {
    drain: { batchSize: 1000, localConcurrency: 2, burstWhenBatchFull: true },
    process: { batchSize: 20, localConcurrency: 4, burstWhenBatchFull: true },
    latency: {},
  }[mode];
  await boss.work(NAME, { pollingIntervalSeconds: 0.5, ...settings }, async (jobs) => {
    if (mode !== "process") return started(jobs.length);
    for (const _ of jobs) {
      started();
      await run();
    }
  });
  ready();
}
