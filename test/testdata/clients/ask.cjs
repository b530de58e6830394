// Asks a model through the stock clients, as an agent would, and says on standard output, a JSON object a line, what
// arrives when it arrives. Arguments: openai, anthropic or litellm, and whether to stay when done.
const lib = require('node:module').createRequire('/clients/ask.cjs');
const [kind, stay] = process.argv.slice(2);
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const apiKey = 'dummy-' + kind + '-0123456789abcdef';
const copy = Buffer.from(apiKey); // outside of V8's heap, so that a search of the memory always finds the key in one piece
const defaultHeaders = { 'X-Mine': 'client-header', Cookie: 'a=client-header', 'X-Litellm-End-User-Id': 'client-header', 'X-Litellm-Api-Key': 'client-header' };
const messages = [{ role: 'user', content: 'Say something.' }];

async function openai(model) {
  const OpenAI = lib('openai');
  const client = new OpenAI({ baseURL: 'http://llm.caisson.internal/v1', apiKey, organization: 'client-header', project: 'client-header', defaultHeaders, maxRetries: 0 });
  const stream = await client.chat.completions.create({ model, messages, stream: true, max_completion_tokens: 100, user: 'client-user', stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    const piece = chunk.choices[0]?.delta?.content;
    if (piece) say({ piece });
    if (chunk.usage) say({ usage: chunk.usage.completion_tokens });
  }
}

async function anthropic(model) {
  const Anthropic = lib('@anthropic-ai/sdk');
  const client = new Anthropic({ baseURL: 'http://llm.caisson.internal', apiKey, authToken: 'client-header', defaultHeaders, maxRetries: 0 });
  const stream = client.messages.stream({ model, messages, max_tokens: 100, metadata: { user_id: 'client-user' } });
  stream.on('text', (piece) => say({ piece }));
  const message = await stream.finalMessage();
  say({ usage: message.usage.output_tokens });
}

(async () => {
  await { openai: () => openai('fast'), anthropic: () => anthropic('clever'), litellm: () => openai('proxied') }[kind]();
  say({ done: true });
  if (stay) setInterval(() => copy.length, 1000);
})().catch((err) => {
  say({ error: String(err) });
  process.exit(1);
});
