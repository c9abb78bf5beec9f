// node main.mjs SYSTEM produce | node main.mjs SYSTEM work MODE N

const [system, part, mode, total] = process.argv.slice(2);
const { producer, worker } = await import(`./${system}.mjs`);
await (part === "produce" ? producer() : worker(mode, Number(total)));
