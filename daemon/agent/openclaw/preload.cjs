// Loaded by each Node of OpenClaw's before anything else (--require).
//
// A sandbox can be forked from a snapshot of this process. OpenSSL is seeded anew in each fork; what Node and V8 have drawn in advance is
// not, and forks would make the same identifiers of it. So nothing is drawn in advance here: randomUUID without its cache, randomInt
// without its cache, Math.random from the system's source.
'use strict';
const crypto = require('node:crypto');
const { registerHooks, syncBuiltinESMExports } = require('node:module');
const { dirname } = require('node:path');
const threads = require('node:worker_threads');
const { Worker, isMainThread, getEnvironmentData, setEnvironmentData } = threads;

// Workers load this, too, as they have the arguments of their parent. OpenClaw starts some with a list of their own.
threads.Worker = class extends Worker {
  constructor(file, options) {
    super(file, options?.execArgv ? { ...options, execArgv: ['--require', __filename, ...options.execArgv] } : options);
  }
};
Object.defineProperty(threads.Worker, 'name', { value: 'Worker' });

// OpenSSL is seeded anew in a fork because the system says another process id there. The main thread has asked for its own long before,
// a worker that begins in the fork would not have the same one, and OpenClaw takes what a worker owns for another process's. The main
// thread's is what others know the process by, before and after.
const pid = 'caisson.pid';
if (isMainThread) {
  setEnvironmentData(pid, process.pid);
} else if (getEnvironmentData(pid) !== undefined) {
  Object.defineProperty(process, 'pid', { configurable: true, enumerable: true, writable: false, value: getEnvironmentData(pid) });
}

// The gateway takes variables from a file .env where it starts. The workspace, which may have one, is the user's.
if (isMainThread && process.argv[2] === 'gateway' && process.env.OPENCLAW_CONFIG_PATH) {
  process.chdir(dirname(process.env.OPENCLAW_CONFIG_PATH));
}

// OpenClaw puts things away that nobody has used for a minute, and gets them again with the next prompt, which takes seconds: it ends its
// workers, closes its databases, and checks those in a process of its own when they are opened again. Between the turns of a session more
// than that minute passes. So what is warm stays: these timers do not fire. (For a fork no time has passed since the snapshot.)
if (isMainThread && process.argv[2] === 'gateway') {
  const { setTimeout } = globalThis;
  const never = 2 ** 31 - 1;
  const idle = /worker-task-pool|AgentDatabaseIdleTimer|openclaw-database-verify/;
  globalThis.setTimeout = function (callback, delay, ...args) {
    // Only long ones are looked at, because a stack takes time to make.
    return setTimeout(callback, delay >= 30_000 && idle.test(new Error().stack) ? never : delay, ...args);
  };
  Object.defineProperties(globalThis.setTimeout, Object.getOwnPropertyDescriptors(setTimeout)); // with what util.promisify looks for
}

// OpenClaw tells its model the name of the machine, which it asks for once. A fork has a name of its own, so it is asked for each time.
if (isMainThread && process.argv[2] === 'gateway') {
  const hooks = registerHooks({
    load(url, context, next) {
      const loaded = next(url, context);
      if (!/\/openclaw\/dist\/machine-name-[^/]*\.mjs$/.test(url)) {
        return loaded;
      }
      const source = String(loaded.source);
      const live = source.replace('if (cachedPromise) return cachedPromise;', '');
      if (live === source) {
        return loaded; // another module that only passes it on
      }
      hooks.deregister();
      return { ...loaded, source: live };
    },
  });
}

const { randomUUID, randomInt, randomFillSync, randomBytes } = crypto;

crypto.randomUUID = function (options) {
  return randomUUID(options === undefined ? { disableEntropyCache: true } : { ...options, disableEntropyCache: true });
};

// Those of the Web Crypto API: crypto.randomUUID, and the class's method for who takes it from there.
Object.defineProperty(Object.getPrototypeOf(globalThis.crypto), 'randomUUID', {
  configurable: true, enumerable: true, writable: true,
  value: function () { return crypto.randomUUID(); },
});

const span = 2 ** 48;

crypto.randomInt = function (min, max, callback) {
  if (max === undefined || typeof max === 'function') {
    [min, max, callback] = [0, min, max];
  }
  const range = max - min;
  if (!Number.isSafeInteger(min) || !Number.isSafeInteger(max) || !(range > 0 && range < span) ||
      (callback !== undefined && typeof callback !== 'function')) {
    return randomInt(min, max, callback); // which knows what to say
  }
  const limit = span - (span % range);
  let n;
  do {
    n = randomBytes(6).readUIntBE(0, 6);
  } while (n >= limit);
  n = min + (n % range);
  if (callback === undefined) {
    return n;
  }
  process.nextTick(callback, undefined, n);
};

const word = new Uint32Array(2);

Math.random = function random() {
  randomFillSync(word);
  return ((word[0] >>> 5) * 2 ** 26 + (word[1] >>> 6)) / 2 ** 53;
};

syncBuiltinESMExports();
