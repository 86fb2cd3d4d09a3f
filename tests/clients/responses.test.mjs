// Responses and conversations with the official OpenAI client for Node, against the server at CORRAL_BASE_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 32 };

test("a response is created, retrieved, continued and deleted", async () => {
  const first = await client.responses.create(greedy);
  const second = await client.responses.create({ ...greedy, input: "Thank you!", previous_response_id: first.id });

  assert.ok(first.output_text.length > 0);
  assert.equal(second.previous_response_id, first.id);
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("an effort enables and disables reasoning, which is counted", async () => {
  const counts = [];
  for (const effort of ["low", "none"]) {
    const { usage } = await client.responses.create({ ...greedy, max_output_tokens: 200, reasoning: { effort } });
    counts.push(usage.output_tokens_details.reasoning_tokens);
  }

  assert.ok(counts[0] > 0);
  assert.equal(counts[1], 0);
});

test("the stream helper assembles the same text as the non-streamed response", async () => {
  const whole = await client.responses.create(greedy);
  const stream = client.responses.stream(greedy);
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const final = await stream.finalResponse();

  assert.equal(kinds[0], "response.created");
  assert.equal(final.output_text, whole.output_text);
});

test("a background response is streamed from any event", async () => {
  const created = await client.responses.create({ ...greedy, background: true });
  const all = [];
  for await (const event of await client.responses.retrieve(created.id, { stream: true })) all.push(event);
  const rest = [];
  for await (const event of await client.responses.retrieve(created.id, { stream: true, starting_after: 2 })) rest.push(event);

  assert.deepEqual(rest, all.slice(3));
  assert.ok(["response.completed", "response.incomplete"].includes(all.at(-1).type));
});

test("a conversation contains the input and output of its responses", async () => {
  const conversation = await client.conversations.create({ metadata: { a: "b" } });
  await client.responses.create({ ...greedy, conversation: conversation.id });
  const roles = [];
  for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) roles.push(item.role);

  assert.deepEqual(roles, ["user", "assistant"]);
  assert.equal((await client.conversations.delete(conversation.id)).deleted, true);
});
