// The official Anthropic client for Node against the server at CORRAL_BASE_URL (".../v1"). tools/test_clients.py starts
// the server.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const baseURL = process.env.CORRAL_BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, messages, temperature: 0, max_tokens: 32 };
const ask = { role: "user", content: "What is the weather in Paris?" };
const weather = {
  name: "get_weather",
  description: "Get the current weather for a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

test("a message and its stream are equal, and tokens are counted", async () => {
  const whole = await client.messages.create(greedy);
  const streamed = await client.messages.stream(greedy).finalMessage();
  const counted = await client.messages.countTokens({ model, messages });

  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
});

test("a call and its result, with the first turn sent back", async () => {
  const tools = { ...greedy, tools: [weather], max_tokens: 64 };
  const choice = { type: "tool", name: "get_weather", disable_parallel_tool_use: true };
  const stream = client.messages.stream({ ...tools, messages: [ask], tool_choice: choice });
  const first = await stream.finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
  const history = [
    ask,
    { role: "assistant", content: first.content },
    { role: "user", content: [result] },
  ];
  const second = await client.messages.create({ ...tools, messages: history });

  assert.deepEqual([call.name, Object.keys(call.input), first.stop_reason], ["get_weather", ["city"], "tool_use"]);
  assert.equal(second.content[0].type, "text");
});

test("a format is enforced", async () => {
  const format = { type: "json_schema", schema: weather.input_schema };
  const message = await client.messages.create({ ...greedy, messages: [ask], output_config: { format } });

  assert.deepEqual(Object.keys(JSON.parse(message.content[0].text)), ["city"]);
});

test("errors have their class and type", async () => {
  await assert.rejects(client.messages.create({ ...greedy, model: "nothing" }), (error) => {
    assert.ok(error instanceof Anthropic.NotFoundError);
    assert.equal(error.error.error.type, "not_found_error");
    assert.match(error.requestID, /^req_/);
    return true;
  });
});

test("a stream that is aborted frees the server", async () => {
  const story = [{ role: "user", content: "Tell me a story." }];
  const stream = client.messages.stream({ model, messages: story, max_tokens: 2000 });
  for await (const event of stream) if (event.type === "content_block_delta") break;
  stream.abort();
  const after = await client.messages.create({ ...greedy, max_tokens: 4 });

  assert.equal(after.type, "message");
});

test("a batch has results", async () => {
  const requests = [{ custom_id: "a", params: { model, messages, max_tokens: 8 } }];
  let batch = await client.messages.batches.create({ requests });
  while (batch.processing_status !== "ended") {
    await new Promise((resolve) => setTimeout(resolve, 200));
    batch = await client.messages.batches.retrieve(batch.id);
  }
  const results = [];
  for await (const each of await client.messages.batches.results(batch.id)) results.push(each);

  assert.deepEqual(results.map((each) => [each.custom_id, each.result.type]), [["a", "succeeded"]]);
});
