// Locks a name for ten seconds, extends that by one second from then on, and ends without a release.
"use strict";

const Redis = require("ioredis");

const [library, addr, name] = process.argv.slice(2);
const redis = new Redis(addr);

async function shorten() {
  if (library === "node-redlock 4") {
    const Redlock = require("redlock4");
    const lock = await new Redlock([redis]).lock(name, 10_000);
    await lock.extend(1000);
  } else {
    const { default: Redlock } = require("redlock5");
    const lock = await new Redlock([redis]).acquire([name], 10_000);
    await lock.extend(1000);
  }
  await redis.quit();
}

shorten().catch((err) => {
  console.error(err);
  process.exit(1);
});
