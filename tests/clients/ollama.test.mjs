// Ollama's client for Node against the server at CORRAL_BASE_URL (".../v1"). tools/test_clients.py starts the server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.CORRAL_BASE_URL.replace(/\/v1$/, "") });
const model = "demo-chat";
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { temperature: 0, num_predict: 200 };
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city.",
      parameters: { type: "object", required: ["city"], properties: { city: { type: "string" } } },
    },
  },
];

test("a stream has the text of the whole answer, and ends with the counts", async () => {
  const whole = await client.chat({ model, messages, options });
  const parts = [];
  for await (const part of await client.chat({ model, messages, options, stream: true })) parts.push(part);

  assert.equal(parts.map((part) => part.message.content).join(""), whole.message.content);
  assert.equal(parts.at(-1).done_reason, "stop");
  assert.equal(parts.at(-1).eval_count, whole.eval_count);
});

test("a call comes back with its result", async () => {
  const question = { role: "user", content: "What is the weather in Paris?" };
  const called = await client.chat({ model, messages: [question], options, tools, think: false });
  const results = called.message.tool_calls.map((call) => ({
    role: "tool",
    content: `sunny in ${call.function.arguments.city}`,
    tool_name: call.function.name,
  }));
  const history = [question, called.message, ...results];
  const answered = await client.chat({ model, messages: history, options, tools, think: false });

  assert.deepEqual(results.map((result) => result.tool_name), ["get_weather"]);
  assert.ok(answered.message.content.length > 0);
});

test("a format is kept", async () => {
  const format = { type: "object", required: ["name"], properties: { name: { type: "string" } } };
  const named = [{ role: "user", content: "Name a city." }];
  const answer = await client.chat({ model, messages: named, options, format, think: false });

  assert.equal(typeof JSON.parse(answer.message.content).name, "string");
});

test("models are listed, described, loaded and pulled", async () => {
  const listed = await client.list();
  const shown = await client.show({ model });
  const loaded = await client.generate({ model, prompt: "" });
  const running = await client.ps();
  const pulled = await client.pull({ model, stream: false });

  assert.ok(listed.models.some((each) => each.name === `${model}:latest`));
  assert.ok(shown.capabilities.includes("completion"));
  assert.equal(loaded.done_reason, "load");
  assert.ok(running.models.length > 0);
  assert.equal(pulled.status, "success");
});

test("embeddings have length 1", async () => {
  const answer = await client.embed({ model, input: ["a", "b"] });
  const [first] = answer.embeddings;

  assert.equal(answer.embeddings.length, 2);
  assert.ok(Math.abs(first.reduce((sum, value) => sum + value * value, 0) - 1) < 1e-3);
});

test("an error has its text, and the server answers after a stream is aborted", async () => {
  await assert.rejects(client.chat({ model: "missing", messages }), /model 'missing' not found/);
  const stream = await client.chat({ model, messages, stream: true });
  try {
    for await (const _ of stream) stream.abort();
  } catch (problem) {
    // Not thrown if the end of the answer had already arrived.
    assert.match(problem.message, /abort/i);
  }
  const again = await client.chat({ model, messages, options });

  assert.equal(again.message.role, "assistant");
});
