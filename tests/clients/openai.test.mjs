// The official OpenAI client for Node against the server at CORRAL_BASE_URL (".../v1"): the basic calls of an application
// that changes only its base URL. tools/test_clients.py starts the server.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, messages, temperature: 0, max_tokens: 32 };

test("models are listed and retrieved", async () => {
  const listed = await client.models.list();
  const retrieved = await client.models.retrieve(model);

  assert.equal(listed.object, "list");
  assert.deepEqual([retrieved.id, retrieved.object], [model, "model"]);
});

test("a chat completion has text, a finish reason and usage", async () => {
  const completion = await client.chat.completions.create(greedy);

  assert.equal(completion.object, "chat.completion");
  assert.ok(completion.choices[0].message.content.length > 0);
  assert.ok(["stop", "length"].includes(completion.choices[0].finish_reason));
  assert.equal(
    completion.usage.total_tokens,
    completion.usage.prompt_tokens + completion.usage.completion_tokens,
  );
});

test("an effort enables and disables reasoning, which is counted", async () => {
  const counts = [];
  for (const reasoning_effort of ["low", "none"]) {
    const { usage } = await client.chat.completions.create({ ...greedy, max_tokens: 200, reasoning_effort });
    counts.push(usage.completion_tokens_details.reasoning_tokens);
  }

  assert.ok(counts[0] > 0);
  assert.equal(counts[1], 0);
});

test("a stream has the same text as the non-streamed response, then usage", async () => {
  const whole = await client.chat.completions.create(greedy);
  const stream = await client.chat.completions.create({
    ...greedy,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);

  const text = chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(chunks.length > 2, "the text is streamed in several chunks");
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper assembles the final message", async () => {
  const runner = client.chat.completions.stream(greedy);
  const final = await runner.finalChatCompletion();

  assert.equal(final.choices[0].message.role, "assistant");
  assert.ok(final.choices[0].message.content.length > 0);
});

test("the server answers after a client aborts a stream", async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 500, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }

  const completion = await client.chat.completions.create(greedy);
  assert.ok(completion.choices[0].message.content.length > 0);
});

test("embeddings are equal in base64 and float encoding", async () => {
  const input = ["a fox", "a dog"];
  const packed = await client.embeddings.create({ model, input });
  const plain = await client.embeddings.create({ model, input, encoding_format: "float" });

  assert.equal(packed.data.length, 2);
  assert.equal(packed.data[0].embedding.length, plain.data[0].embedding.length);
  packed.data[0].embedding.forEach((value, index) => {
    assert.ok(Math.abs(value - plain.data[0].embedding[index]) < 1e-3);
  });
});

test("a text completion continues its prompt", async () => {
  const completion = await client.completions.create({
    model,
    prompt: "Once upon a time",
    max_tokens: 8,
    temperature: 0,
  });

  assert.equal(completion.object, "text_completion");
  assert.ok(completion.choices[0].text.length > 0);
});

test("an unknown model raises NotFoundError with code and message", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "nobody" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    assert.match(error.message, /nobody/);
    return true;
  });
});

test("an invalid field raises BadRequestError with its name", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, messages: [] }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.type, "invalid_request_error");
    assert.match(error.param, /messages/);
    return true;
  });
});

test("a prompt longer than the context raises BadRequestError with both lengths", async () => {
  const long = [{ role: "user", content: "word ".repeat(200_000) }];
  await assert.rejects(client.chat.completions.create({ ...greedy, messages: long }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    assert.match(error.message, /maximum context length is \d+ tokens.*resulted in \d+ tokens/);
    return true;
  });
});
