// Makes calls with an official library: reads one as JSON from each line and prints what came of it as another, as client.py
// does.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createInterface } from 'node:readline';

const calls = {
  'openai-node': (c, options, messages) => {
    const client = new OpenAI({ ...options, baseURL: c.base + '/v1' });
    return c.path ? client.post(c.path, { body: c.body }) : client.chat.completions.create({ model: 'demo', messages });
  },
  'anthropic-node': (c, options, messages) =>
    new Anthropic({ ...options, baseURL: c.base }).messages.create({ model: 'demo', max_tokens: 10, messages }),
};

// describe returns the fields by which callers of the libraries tell errors apart.
function describe(error) {
  const bases = [];
  for (let k = error.constructor; k?.name; k = Object.getPrototypeOf(k)) bases.push(k.name);
  const inner = error.error?.error ?? error.error;
  return {
    error: error.constructor.name, bases, text: String(error), status: error.status, type: error.type ?? inner?.type,
    code: error.code ?? inner?.details?.error_code, message: inner?.message, retryAfter: error.headers?.get('retry-after'),
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const c = JSON.parse(line);
  const options = { apiKey: c.key, defaultHeaders: c.headers, maxRetries: c.retries };
  try {
    await calls[c.sdk](c, options, [{ role: 'user', content: 'x'.repeat(c.size) }]);
    console.log(JSON.stringify({ error: '' }));
  } catch (error) {
    console.log(JSON.stringify(describe(error)));
  }
}
