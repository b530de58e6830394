// Holds as many megabytes as its argument says, half of them in objects, and answers on port 7000.
'use strict';
const size = Number(process.argv[2]) << 20;
const objects = [];
const buffers = [];
for (let used = 0; used < size; used += 1 << 20) {
  if ((used >> 20) % 2) {
    buffers.push(Buffer.alloc(1 << 20, `${used} some text that is not all zeroes`));
    continue;
  }
  for (let i = 0; i < 4096; i++) objects.push({ i, name: `object ${used + i}`, list: [i, i + 1, used], next: objects.at(-1) });
}
require('node:net').createServer((conn) => {
  conn.once('data', (line) => {
    let sum = 0;
    if (line.toString().startsWith('touch')) {
      for (const o of objects) sum += o.i + o.list[2] + o.name.length;
      for (const b of buffers) for (let i = 0; i < b.length; i += 4096) sum += b[i];
    }
    conn.end(`ok ${sum}\n`);
  });
}).listen(7000, '127.0.0.1');
