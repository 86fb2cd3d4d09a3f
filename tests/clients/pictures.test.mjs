// Pictures and files with the official OpenAI client for Node, against the server at CORRAL_BASE_URL.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const models = (await client.models.list()).data;
const model = models.find((each) => each.input_modalities?.includes("image"))?.id;
const picture = await readFile(new URL("../../docs/understand/demo-vision.png", import.meta.url));
const url = `data:image/png;base64,${picture.toString("base64")}`;
const question = "What do you see?";
const answer = "I see a blue heart and a green ring.";
const store = async () =>
  (await client.files.create({ file: await toFile(picture, "shapes.png"), purpose: "vision" })).id;

test("a chat sees a picture by its data URL and by its file", async () => {
  const parts = [
    { type: "image_url", image_url: { url } },
    { type: "file", file: { file_id: await store() } },
  ];
  for (const part of parts) {
    const content = [part, { type: "text", text: question }];
    const chat = await client.chat.completions.create({ model, messages: [{ role: "user", content }], temperature: 0 });

    assert.equal(chat.choices[0].message.content, answer);
    assert.ok(chat.usage.prompt_tokens_details.image_tokens > 0);
  }
});

test("a response sees a picture by its data URL and by its file, and the next one too", async () => {
  const images = [{ image_url: url }, { file_id: await store() }];
  for (const image of images) {
    const content = [{ type: "input_image", detail: "auto", ...image }, { type: "input_text", text: question }];
    const first = await client.responses.create({ model, input: [{ role: "user", content }], temperature: 0 });
    const second = await client.responses.create({
      model,
      input: "Which shape is on the left?",
      previous_response_id: first.id,
      temperature: 0,
    });

    assert.equal(first.output_text, answer);
    assert.equal(second.output_text, "heart");
  }
});

test("a run sees the pictures of its thread", async () => {
  const assistant = await client.beta.assistants.create({ model, temperature: 0 });
  const parts = [
    { type: "image_file", image_file: { file_id: await store() } },
    { type: "image_url", image_url: { url } },
  ];
  for (const part of parts) {
    const content = [part, { type: "text", text: question }];
    const thread = { messages: [{ role: "user", content }] };
    const run = await client.beta.threads.createAndRunPoll({ assistant_id: assistant.id, thread }, { pollIntervalMs: 50 });
    const messages = await client.beta.threads.messages.list(run.thread_id);

    assert.equal(messages.data[0].content[0].text.value, answer);
  }
});

test("a line of a batch sees a picture", async () => {
  const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: question }];
  const body = { model, messages: [{ role: "user", content }], temperature: 0 };
  const line = JSON.stringify({ custom_id: "1", method: "POST", url: "/v1/chat/completions", body });
  const file = await client.files.create({ file: await toFile(Buffer.from(line), "lines.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  while (!["completed", "failed"].includes(batch.status)) batch = await client.batches.retrieve(batch.id);
  const output = JSON.parse(await (await client.files.content(batch.output_file_id)).text());

  assert.equal(output.response.body.choices[0].message.content, answer);
});

test("a document is part of a prompt", async () => {
  const data = Buffer.from("The secret word is banana. ".repeat(5)).toString("base64");
  const document = { type: "file", file: { filename: "note.txt", file_data: `data:text/plain;base64,${data}` } };
  const ask = async (...parts) =>
    (
      await client.chat.completions.create({
        model,
        messages: [{ role: "user", content: [...parts, { type: "text", text: "What is the secret word?" }] }],
        max_tokens: 8,
      })
    ).usage.prompt_tokens;

  assert.ok((await ask(document)) > (await ask()) + 30);
});

test("a damaged picture is refused, and the error names the part", async () => {
  const content = [{ type: "image_url", image_url: { url: url.slice(0, 200) + "==" } }];
  await assert.rejects(
    client.chat.completions.create({ model, messages: [{ role: "user", content }] }),
    (error) => error instanceof OpenAI.BadRequestError && error.param.startsWith("messages[0].content[0].image_url"),
  );
});
