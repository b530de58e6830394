// Says something to an agent as an application with the AI SDK does, and prints what came of it as JSON.
// Usage: chat.mjs LIBRARY URL, with {token, chat, messages} on standard input.
import { readFileSync } from "node:fs";

const [library, url] = process.argv.slice(2);
const { token, chat, messages } = JSON.parse(readFileSync(0, "utf8"));
const { DefaultChatTransport, readUIMessageStream } = await import(library);

let header;
const transport = new DefaultChatTransport({
  api: url + "/api/v1/ai/chat?protocol=ui-message",
  headers: { Authorization: "Bearer " + token },
  body: { graphName: "sandbox:caisson", stateKey: chat },
  fetch: async (...args) => {
    const response = await fetch(...args);
    header = response.headers.get("x-state-key");
    return response;
  },
});
const out = { chunks: [], errors: [] };
try {
  const stream = await transport.sendMessages({
    trigger: "submit-message", chatId: chat, messages, abortSignal: undefined,
  });
  const [a, b] = stream.tee();
  const listen = (async () => {
    for await (const chunk of a) out.chunks.push(chunk);
  })();
  for await (const message of readUIMessageStream({ stream: b, onError: (e) => out.errors.push(String(e)) })) out.message = message;
  await listen;
} catch (e) {
  out.failure = String(e.message ?? e);
}
out.stateKey = header;
console.log(JSON.stringify(out));
