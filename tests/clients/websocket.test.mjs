// Responses over a WebSocket with the official OpenAI client for Node, against the server at CORRAL_BASE_URL.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, test } from "node:test";
import OpenAI from "openai";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const baseURL = process.env.CORRAL_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.CORRAL_API_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 32, store: false };
const limits = { maxLanes: 4, maxBufferedEvents: 1024, maxBufferedBytes: 1 << 20 };
const opened = [];
after(() => {
  for (const each of opened) each.close();
});

function connect(options) {
  const connection = new ResponsesWS(client, options);
  opened.push(connection);
  return connection;
}

// The client's helper that assembles the responses of each lane, on an open connection.
async function openSession() {
  const connection = connect();
  const session = new ResponsesWebSocketSession(connection, limits);
  connection.on("error", () => {}); // the lane reports the error
  await once(connection.socket.platformSocket, "open");
  return session;
}

async function answer(lane, request) {
  lane.create({ ...greedy, ...request });
  return await lane.finalResponse();
}

test("a request sent before the connection is open is answered with events", async () => {
  const whole = await client.responses.create(greedy);
  const connection = connect({ headers: { "OpenAI-Beta": "responses_websockets=2026-02-06" } });
  connection.send({ type: "response.create", ...greedy, stream: true, previous_response_id: null });
  const kinds = [];
  let text = "";
  for await (const { type, message } of connection) {
    if (type !== "message") continue;
    kinds.push(message.type);
    if (message.type === "response.output_text.delta") text += message.delta;
    if (["response.completed", "response.incomplete"].includes(message.type)) break;
  }

  assert.equal(kinds[0], "response.created");
  assert.equal(text, whole.output_text);
});

test("a response that is not stored can be continued on its connection", async () => {
  const lane = (await openSession()).lane();
  const first = await answer(lane, {});
  const second = await answer(lane, { input: "Thank you!", previous_response_id: first.id });

  assert.ok(first.output_text.length > 0);
  assert.equal(second.previous_response_id, first.id);
  assert.ok(second.usage.input_tokens > first.usage.total_tokens);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("a prompt can be processed without an answer and continued", async () => {
  const lane = (await openSession()).lane();
  const read = await answer(lane, { input: "Speak English.", generate: false });
  const answered = await answer(lane, { previous_response_id: read.id });

  assert.deepEqual(read.output, []);
  assert.ok(answered.usage.input_tokens > read.usage.input_tokens);
});

test("a function is called and answered", async () => {
  const lane = (await openSession()).lane();
  const named = { type: "function", name: "get_weather" };
  const properties = { city: { enum: ["Paris", "Rome"] } };
  const tools = [{ ...named, parameters: { type: "object", properties, required: ["city"] } }];
  const asked = { input: "What is the weather in Paris?", max_output_tokens: 200, tools };
  const { id, output } = await answer(lane, { ...asked, tool_choice: named });
  const input = [{ type: "function_call_output", call_id: output[0].call_id, output: "sunny" }];
  const answered = await answer(lane, { ...asked, input, tool_choice: "none", previous_response_id: id });

  assert.deepEqual([output.length, output[0].name], [1, "get_weather"]);
  assert.ok(["Paris", "Rome"].includes(JSON.parse(output[0].arguments).city));
  assert.ok(answered.output_text.length > 0);
});

test("responses are sent to the lane of their request", async () => {
  const session = await openSession();
  const lanes = { a: session.lane("a"), b: session.lane("b"), unnamed: session.lane() };
  const asked = Object.entries(lanes).map(([of, lane]) => answer(lane, { metadata: { of } }));
  const answers = await Promise.all(asked);

  assert.deepEqual(answers.map(({ metadata }) => metadata.of), Object.keys(lanes));
  assert.equal(new Set(answers.map(({ id }) => id)).size, 3);
});

test("an error names the invalid field, and the connection stays open", async () => {
  const stranger = await answer((await openSession()).lane(), {});
  const lane = (await openSession()).lane("one");

  await assert.rejects(answer(lane, { previous_response_id: stranger.id }), ({ error }) => {
    assert.deepEqual([error.status, error.stream_id], [400, "one"]);
    assert.deepEqual([error.error.code, error.error.param], ["previous_response_not_found", "previous_response_id"]);
    return true;
  });
  assert.ok((await answer(lane, {})).output_text.length > 0);
});

test("an error listener of a connection gets the event and the message", async () => {
  const connection = connect();
  connection.send({ type: "response.create", ...greedy, model: "nobody" });
  const [error] = await new Promise((resolve) => connection.once("error", (...all) => resolve(all)));

  assert.equal(error.error.status, 404);
  assert.equal(error.message, error.error.error.message);
  assert.equal(error.error.error.code, "model_not_found");
});
