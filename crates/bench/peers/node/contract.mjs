// The words that every program here speaks; README.md in the folder above describes them.

import { execFile } from "node:child_process";
import dgram from "node:dgram";
import { createInterface } from "node:readline";

// Date.now() has only milliseconds, so where its next one begins is looked for once on the finer clock.
const offset = (() => {
  const before = Date.now();
  let edge = before;
  while (edge === before) edge = Date.now();
  return edge * 1000 - Number(process.hrtime.bigint() / 1000n);
})();

/** Microseconds of the system's clock. */
export const now = () => offset + Number(process.hrtime.bigint() / 1000n);

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

async function callers({ one }, count, seconds) {
  const times = [];
  const began = now();
  const end = began + seconds * 1e6;
  const caller = async () => {
    while (now() < end) {
      const call = now();
      await one();
      times.push(now() - call);
    }
  };
  await Promise.all(Array.from({ length: count }, caller));
  const took = now() - began;
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.round((times.length - 1) * share)] / 1000;
  return { jobs: times.length, seconds: took / 1e6, p50: at(0.5), p99: at(0.99) };
}

/** Serves the commands of the measuring program with `{ one, bulk, empty }` of a system. */
export async function produce(system) {
  say({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...rest] = line.trim().split(" ");
    const numbers = rest.map(Number);
    const began = now();
    if (command === "callers") say(await callers(system, ...numbers));
    else if (command === "bulk") {
      await system.bulk(...numbers);
      say({ seconds: (now() - began) / 1e6 });
    } else if (command === "one") {
      await system.one();
      say({ began });
    } else if (command === "settle") {
      while (!(await system.empty())) await sleep(3);
      say({ at: now() });
    } else throw new Error(`no such command: ${line}`);
  }
  process.exit(0);
}

/** The handlers of a worker of one process: `started()` counts and tells, `job()` does the work. */
export function handler(mode, total) {
  const socket = dgram.createSocket("udp4");
  socket.unref();
  // The measuring program is gone when its end of the pipe is closed, however it ended.
  process.stdin.on("end", () => process.exit(0)).resume();
  const port = Number(process.env.BENCH_PORT);
  let seen = 0;
  let told = 0;
  const started = (jobs = 1) => {
    const time = now();
    seen += jobs;
    if (mode === "latency" || told === 0 || seen >= total) {
      socket.send(`${seen - told} ${time}`, port, "127.0.0.1");
      told = seen;
    }
  };
  const run = () => new Promise((done, fail) => execFile("/bin/true", (error) => (error ? fail(error) : done())));
  const job = async () => {
    started();
    if (mode === "process") await run();
  };
  return { started, job, run, ready: () => say({ ready: true }) };
}
