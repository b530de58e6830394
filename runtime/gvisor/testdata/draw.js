// Draws what it is asked for, in the thread it is asked for: a line "THREAD KIND" in, a value out. Threads: main, worker,
// pool (libuv's, where asynchronous calls are carried out).
'use strict';
const crypto = require('node:crypto');
const { Worker, isMainThread, parentPort } = require('node:worker_threads');

const hex = (b) => Buffer.from(b).toString('hex');
const secret = (key) => hex(key.export({ type: 'pkcs8', format: 'der' }));
const pair = (type, options) => secret(crypto.generateKeyPairSync(type, options).privateKey);

const kinds = {
  randomUUID: () => crypto.randomUUID({ disableEntropyCache: true }),
  randomBytes: () => hex(crypto.randomBytes(16)),
  getRandomValues: () => hex(crypto.getRandomValues(new Uint8Array(16))),
  x25519: () => pair('x25519'),
  ed25519: () => pair('ed25519'),
  rsa: () => pair('rsa', { modulusLength: 1024 }),
};

const pool = {
  randomBytes: () => new Promise((done) => crypto.randomBytes(16, (err, b) => done(err ? String(err) : hex(b)))),
  x25519: () => new Promise((done) => crypto.generateKeyPair('x25519', (err, _, key) => done(err ? String(err) : secret(key)))),
  webcrypto: async () => {
    const key = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, ['encrypt']);
    return hex(await crypto.subtle.exportKey('raw', key));
  },
};

if (!isMainThread) {
  parentPort.on('message', (kind) => parentPort.postMessage(kinds[kind]()));
  return;
}

const worker = new Worker(__filename);
const inWorker = (kind) => new Promise((done) => {
  worker.once('message', done);
  worker.postMessage(kind);
});

async function draw(thread, kind) {
  switch (thread) {
    case 'main': return kinds[kind]();
    case 'worker': return inWorker(kind);
    case 'pool': return pool[kind]();
    case 'ready': return 'ok';
    case 'self': return self();
  }
}

// The process as it sees itself.
async function self() {
  const { spawnSync } = require('node:child_process');
  const fs = require('node:fs');
  const problems = [];
  const expect = (what, ok) => { if (!ok) problems.push(what); };
  process.kill(process.pid, 0);
  const got = new Promise((done) => process.once('SIGUSR2', done));
  process.kill(process.pid, 'SIGUSR2');
  await got;
  const child = spawnSync('/bin/sh', ['-c', 'echo $PPID; kill -0 $PPID; cat /proc/$PPID/comm']);
  expect('child: ' + child.stdout + child.stderr, child.status === 0 && child.stdout.toString().startsWith(`${process.pid}\n`));
  expect('stat', fs.readFileSync(`/proc/${process.pid}/stat`, 'utf8').includes('('));
  expect('self', fs.readlinkSync(`/proc/${process.pid}/exe`) === fs.readlinkSync('/proc/self/exe'));
  return problems.join('; ') || 'ok';
}

async function warm() {
  for (const kind of Object.keys(kinds)) {
    await draw('main', kind);
    await draw('worker', kind);
  }
  // More at once than there are threads, so that each has drawn.
  for (let i = 0; i < 4; i++) await Promise.all(Array(16).fill(0).flatMap(() => Object.values(pool).map((f) => f())));
}

warm().then(() => {
  require('node:net').createServer((conn) => {
    conn.once('data', async (line) => {
      const [thread, kind] = line.toString().trim().split(' ');
      if (thread === 'abort') process.abort();
      try {
        conn.end(String(await draw(thread, kind)) + '\n');
      } catch (err) {
        conn.end(`error: ${err.stack}\n`);
      }
    });
  }).listen(7000, '127.0.0.1');
});
