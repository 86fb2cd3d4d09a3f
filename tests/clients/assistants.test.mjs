// Assistants, threads and messages with the official OpenAI client for Node, against the server at CORRAL_BASE_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;

test("an assistant is created, read, changed, listed and deleted", async () => {
  const created = await client.beta.assistants.create({
    model,
    name: "Tutor",
    instructions: "Be kind.",
    tools: [{ type: "function", function: { name: "f", parameters: { type: "object" } } }],
    temperature: 0.5,
  });
  const changed = await client.beta.assistants.update(created.id, { name: "Teacher" });
  const listed = [];
  for await (const assistant of client.beta.assistants.list({ limit: 1 })) listed.push(assistant.id);
  const deleted = await client.beta.assistants.delete(created.id);

  assert.deepEqual([created.object, created.temperature, created.response_format], ["assistant", 0.5, "auto"]);
  assert.deepEqual([changed.name, changed.instructions], ["Teacher", "Be kind."]);
  assert.ok(listed.includes(created.id));
  assert.deepEqual([deleted.object, deleted.deleted], ["assistant.deleted", true]);
  await assert.rejects(client.beta.assistants.retrieve(created.id), OpenAI.NotFoundError);
});

test("messages of a thread are listed in order over several pages", async () => {
  const thread = await client.beta.threads.create({
    messages: [
      { role: "user", content: "one" },
      { role: "assistant", content: [{ type: "text", text: "two" }] },
    ],
    metadata: { user: "u" },
  });
  const added = await client.beta.threads.messages.create(thread.id, { role: "user", content: "three" });
  const texts = [];
  for await (const message of client.beta.threads.messages.list(thread.id, { order: "asc", limit: 1 })) {
    texts.push(message.content[0].text.value);
  }
  await client.beta.threads.messages.delete(added.id, { thread_id: thread.id });
  const remaining = await client.beta.threads.messages.list(thread.id);
  await client.beta.threads.delete(thread.id);

  assert.deepEqual(texts, ["one", "two", "three"]);
  assert.equal(remaining.data.length, 2);
  await assert.rejects(client.beta.threads.retrieve(thread.id), OpenAI.NotFoundError);
});
