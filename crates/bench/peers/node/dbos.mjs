// DBOS Transact on PostgreSQL: a job is a workflow without steps, started from a queue.

import { DBOS, DBOSClient } from "@dbos-inc/dbos-sdk";
import pg from "pg";
import { handler, produce } from "./contract.mjs";

const NAME = "bench";
const AT_A_TIME = 64;
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
  const pool = new pg.Pool({ connectionString: process.env.BENCH_URL, max: 1 });
  const client = await DBOSClient.create({
    systemDatabaseUrl: process.env.BENCH_URL,
    systemDatabasePoolSize: 16,
    applicationName: "bench",
    logger: silent,
  });
  await produce({
    one: () => client.enqueue(WORKFLOW),
    // There is no bulk call, and many in one transaction are slower than many at a time.
    bulk: async (count) => {
      let left = count;
      const caller = async () => {
        while (left-- > 0) await client.enqueue(WORKFLOW);
      };
      await Promise.all(Array.from({ length: AT_A_TIME }, caller));
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
