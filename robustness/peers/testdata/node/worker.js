// A process that takes locks of node-redlock in loops, and prints what it may believe of them. worker_test.go has the same in Go.
"use strict";

const Redis = require("ioredis");

const setup = JSON.parse(process.env.PEERS_TEST_SETUP);
const redis = new Redis(setup.addr);

// The clock of the lines: that of CLOCK_MONOTONIC, which all processes of a machine share.
const now = () => process.hrtime.bigint();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const between = (min, max) => min + Math.random() * (max - min);

let stopped = false;
process.stdin.on("end", () => { stopped = true; }).resume();

function fail(err) {
  console.error(err);
  process.exit(1);
}

// Each of them has one server, and tries once: the pauses between two attempts are those of the setup.
const locks = {
  "node-redlock 4": () => {
    const Redlock = require("redlock4");
    const redlock = new Redlock([redis], { retryCount: 0 });
    redlock.on("clientError", fail);
    return {
      lock: (name, lease) => redlock.lock(name, lease),
      refused: (err) => err instanceof Redlock.LockError,
      extend: (lock, lease) => lock.extend(lease),
      release: (lock) => lock.unlock(),
    };
  },
  "node-redlock 5": () => {
    const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock5");
    const redlock = new Redlock([redis], { retryCount: 0 });
    redlock.on("error", (err) => { if (!(err instanceof ResourceLockedError)) fail(err); });
    return {
      lock: (name, lease) => redlock.acquire([name], lease),
      refused: (err) => err instanceof ExecutionError,
      extend: (lock, lease) => lock.extend(lease),
      release: (lock) => lock.release(),
    };
  },
}[setup.library]();

// until is when the library says that its hold may have ended. It counts in milliseconds of the wall clock.
function until(lock) {
  const asked = now();
  return asked + BigInt(Math.round((lock.expiration - Date.now()) * 1e6));
}

// ifHeld awaits a call, and returns null if it says that the lock is not held.
async function ifHeld(call) {
  try {
    return { result: await call };
  } catch (err) {
    if (!locks.refused(err)) throw err;
    return null;
  }
}

async function hold(id, name) {
  const draw = Math.random() * 1000;
  const doomed = draw < setup.doomed;
  const long = !doomed && draw < setup.doomed + setup.long;
  const overrun = !doomed && !long && draw < setup.doomed + setup.long + setup.overrun;
  const lease = overrun ? setup.overrunMillis : setup.leaseMillis;
  const taken = await ifHeld(locks.lock(name, lease));
  if (!taken) {
    await pause(between(setup.retryMinMillis, setup.retryMaxMillis));
    return;
  }
  let lock = taken.result;
  let ends = until(lock);
  console.log("hold", id, name, String(now()), String(ends));
  if (doomed) console.log("doomed", id);
  const extensions = doomed ? Infinity : long ? 4 : 0;
  for (let i = 0; i < extensions && !(doomed && stopped); i++) {
    await pause(lease / 3);
    const extended = await ifHeld(locks.extend(lock, lease));
    if (!extended) {
      if (now() < ends) console.log("lost", id, "extend");
      break;
    }
    lock = extended.result;
    ends = until(lock);
    console.log("until", id, String(ends));
  }
  if (overrun) await pause(lease * 1.2);
  else if (!extensions) await pause(Math.random() * setup.holdMicros / 1000);
  console.log("end", id, String(now()));
  const released = await ifHeld(locks.release(lock));
  if (!released && now() < ends) console.log("lost", id, "release");
  if (setup.restMicros > 0) await pause(setup.restMicros / 1000);
}

async function loop(id, name) {
  while (!stopped) await hold(id, name);
}

async function work() {
  await redis.ping();
  console.log("ready");
  const loops = [];
  for (const name of setup.names) {
    for (let i = 0; i < setup.loops; i++) loops.push(loop(loops.length, name));
  }
  await Promise.all(loops);
  await redis.quit();
}

work().catch(fail);
