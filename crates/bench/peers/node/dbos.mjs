// DBOS Transact on PostgreSQL: a job is a workflow without steps, started from a queue.

import { DBOS, DBOSClient } from "@dbos-inc/dbos-sdk";
import pg from "pg";
import { handler, produce } from "./contract.mjs";

const NAME = "bench";
const BATCH = 500;
const silent = { info() {}, debug() {}, warn() {}, error: console.error };
const WORKFLOW = { queueName: NAME, workflowName: "job", appVersion: "1" };

async function launch(name) {
  DBOS.setConfig({
    name,
    systemDatabaseUrl: process.env.BENCH_URL,
    applicationVersion: "1",
    runAdminServer: false,
    logger: silent,
    listenQueues: [NAME],
  });
  await DBOS.launch();
}

export async function producer() {
  // Launching creates the tables and the queue; jobs are enqueued by a client, as from another program.
  await launch("bench");
  await DBOS.registerQueue(NAME, { workerConcurrency: 1000, minPollingIntervalMs: 5 });
  await DBOS.shutdown();
  const pool = new pg.Pool({ connectionString: process.env.BENCH_URL, max: 2 });
  const client = await DBOSClient.create({
    systemDatabaseUrl: process.env.BENCH_URL,
    systemDatabasePoolSize: 16,
    applicationName: "bench",
    logger: silent,
  });
  await produce({
    one: () => client.enqueue(WORKFLOW),
    // There is no bulk call: the nearest is many in one transaction.
    bulk: async (count) => {
      const connection = await pool.connect();
      for (let left = count; left > 0; left -= BATCH) {
        await connection.query("BEGIN");
        for (let i = 0; i < Math.min(BATCH, left); i++) await client.enqueueInTransaction(connection, WORKFLOW);
        await connection.query("COMMIT");
      }
      connection.release();
    },
    empty: async () => {
      const open = "SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1";
      return (await pool.query(open)).rowCount === 0;
    },
  });
}

export async function worker(mode, total) {
  const { job, ready } = handler(mode, total);
  DBOS.registerWorkflow(job, { name: "job" });
  await launch("bench");
  if (mode === "process") await (await DBOS.retrieveQueue(NAME)).setWorkerConcurrency(16);
  ready();
}
