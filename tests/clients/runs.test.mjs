// Runs and their helpers with the official OpenAI client for Node, against the server at CORRAL_BASE_URL.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import OpenAI from "openai";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const { assistants, threads } = client.beta;
const capital = { role: "user", content: "What is the capital of France?" };
const weather = { role: "user", content: "What is the weather in Paris?" };
const getWeather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather for a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const helper = await assistants.create({ model, temperature: 0 });
const weatherman = await assistants.create({ model, temperature: 0, tools: [getWeather] });
after(async () => {
  for (const each of [helper, weatherman]) await assistants.delete(each.id);
});

async function readAnswer(run) {
  const [message] = (await threads.messages.list(run.thread_id, { run_id: run.id })).data;
  return message.content[0].text.value;
}

function makeOutputs(run) {
  const calls = run.required_action.submit_tool_outputs.tool_calls;
  return calls.map((call) => ({ tool_call_id: call.id, output: "18 degrees and sunny" }));
}

test("createAndPoll waits for the end of a run, whose step has its usage", async () => {
  const thread = await threads.create({ messages: [capital] });
  const run = await threads.runs.createAndPoll(thread.id, { assistant_id: helper.id });
  const [step] = (await threads.runs.steps.list(run.id, { thread_id: thread.id })).data;

  assert.equal(run.status, "completed");
  assert.ok((await readAnswer(run)).includes("Paris"));
  assert.ok(run.usage.completion_tokens > 0);
  assert.deepEqual(step.usage, run.usage);
});

test("stream calls its handlers, and the deltas add up to the message", async () => {
  const thread = await threads.create({ messages: [capital] });
  const kinds = [];
  let text = "";
  const stream = threads.runs.stream(thread.id, { assistant_id: helper.id });
  stream.on("event", (event) => kinds.push(event.event));
  stream.on("textDelta", (delta) => (text += delta.value));
  const [message] = await stream.finalMessages();
  const run = await stream.finalRun();

  assert.equal(run.status, "completed");
  assert.equal(message.content[0].text.value, text);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["thread.run.created", "thread.run.completed"]);
});

test("submitToolOutputsStream continues the run with the tool outputs", async () => {
  const waiting = await threads.createAndRunPoll({ assistant_id: weatherman.id, thread: { messages: [weather] } });
  assert.equal(waiting.status, "requires_action");
  const stream = threads.runs.submitToolOutputsStream(waiting.id, {
    thread_id: waiting.thread_id,
    tool_outputs: makeOutputs(waiting),
  });
  const run = await stream.finalRun();

  assert.deepEqual([run.id, run.status], [waiting.id, "completed"]);
  assert.ok((await readAnswer(run)).includes("18 degrees"));
});

test("createAndRun creates a thread and a run on it, streamed or not", async () => {
  const request = { assistant_id: helper.id, thread: { messages: [capital] } };
  const created = await threads.createAndRun(request);
  const polled = await threads.runs.poll(created.id, { thread_id: created.thread_id });
  const streamed = threads.createAndRunStream(request);
  const kinds = [];
  for await (const event of streamed) kinds.push(event.event);

  assert.equal(polled.status, "completed");
  assert.deepEqual(kinds.slice(0, 2), ["thread.created", "thread.run.created"]);
  assert.equal(await readAnswer(await streamed.finalRun()), await readAnswer(polled));
});

test("a waiting run can be cancelled only once", async () => {
  const waiting = await threads.createAndRunPoll({ assistant_id: weatherman.id, thread: { messages: [weather] } });
  const params = { thread_id: waiting.thread_id };

  assert.equal((await threads.runs.cancel(waiting.id, params)).status, "cancelled");
  await assert.rejects(threads.runs.cancel(waiting.id, params), OpenAI.BadRequestError);
});
