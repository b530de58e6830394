// Has another Node draw randomness, through its inspector: what it prints is what that process has drawn. Argument: the port.
const [port] = process.argv.slice(2);

// Each of these would repeat in forks if something had been drawn in advance, or if the generator behind it were not seeded anew.
const expression = `(() => {
  const c = process.getBuiltinModule('node:crypto');
  const hex = (b) => Buffer.from(b).toString('hex');
  return JSON.stringify({
    randomUUID: [c.randomUUID(), c.randomUUID()],
    webUUID: [globalThis.crypto.randomUUID()],
    randomBytes: [hex(c.randomBytes(16)), hex(c.randomBytes(1000)).slice(-32)],
    getRandomValues: [hex(globalThis.crypto.getRandomValues(new Uint8Array(16)))],
    randomFill: [hex(c.randomFillSync(new Uint8Array(16)))],
    randomInt: [String(c.randomInt(2 ** 47))],
    mathRandom: [String(Math.random()), String(Math.random())],
    x25519: [hex(c.generateKeyPairSync('x25519').privateKey.export({ type: 'pkcs8', format: 'der' }))],
    ec: [hex(c.generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ type: 'pkcs8', format: 'der' }))],
    generateKey: [hex(c.generateKeySync('hmac', { length: 128 }).export())],
    prime: [c.generatePrimeSync(128, { bigint: true }).toString(16)],
    iv: [hex(c.createECDH('prime256v1').generateKeys())],
  });
})()`;

(async () => {
  const list = await (await fetch('http://127.0.0.1:' + port + '/json/list')).json();
  const socket = new WebSocket(list[0].webSocketDebuggerUrl);
  socket.onerror = (e) => { console.error(e.message); process.exit(1); };
  socket.onopen = () => socket.send(JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } }));
  socket.onmessage = (m) => {
    const answer = JSON.parse(m.data);
    if (answer.id !== 1) return;
    if (!answer.result?.result?.value) { console.error(m.data); process.exit(1); }
    console.log(answer.result.result.value);
    process.exit(0);
  };
})();
