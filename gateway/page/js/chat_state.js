/** The chat of this tab: its messages, its settings, and the request that runs. */

import { batch, computed, effect, signal } from "@preact/signals";
import { ApiError, get, streamEvents } from "./api.js";
import { parseJson } from "./ui.js";

const STORAGE_ITEM = "corral.chat";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const DEFAULTS = { model: "", system: "", effort: "", tools: "", extra: "", ...Object.fromEntries(NUMBERS.map(name => [name, ""])) };
const stored = readStored();

/**
 * Messages of the user: `{id, role: "user", text, attachments}`; of the model: `{id, role:
 * "assistant", text, reasoning, calls: [{id, name, arguments, output}], state, error, timings}`,
 * where `state` is "running", "done", "stopped" or "failed".
 */
export const messages = signal(stored.messages ?? []);
export const settings = signal({ ...DEFAULTS, ...stored.settings });
export const models = signal(null);
export const modelsError = signal(null);
/** The model of the next request. */
export const model = computed(() => models.value?.find(each => each.id === settings.value.model) ?? models.value?.[0]);
/** The AbortController of the running request, or null. */
export const running = signal(null);

effect(() => {
  if (running.value) return;
  const kept = messages.value.map(({ attachments, ...rest }) => ({ ...rest, attachments: [], dropped: attachments?.map(each => each.name) }));
  sessionStorage.setItem(STORAGE_ITEM, JSON.stringify({ messages: kept, settings: settings.value }));
});

const newId = () => `${Date.now()}-${Math.random()}`; // crypto.randomUUID needs HTTPS

function readStored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORAGE_ITEM)) ?? {};
  } catch {
    return {};
  }
}

/** Read the list of models; a failure is in `modelsError`. */
export async function loadModels() {
  modelsError.value = null;
  try {
    models.value = (await get("v1/models")).data;
  } catch (error) {
    modelsError.value = error;
  }
}

export const setSetting = (name, value) => { settings.value = { ...settings.value, [name]: value }; };

/** Start anew with these messages. */
export function replaceChat(next) {
  stop();
  messages.value = next;
}

/** Send a message of the user in place of the message `index` and all after it, and answer it. */
export function send(text, attachments, index = messages.value.length) {
  messages.value = [...messages.value.slice(0, index), { id: newId(), role: "user", text, attachments }];
  return generate();
}

/** Answer again what came before the message `index`. */
export function regenerate(index) {
  messages.value = messages.value.slice(0, index);
  return generate();
}

/** Set the output of a tool call of the message `index`. */
export function setOutput(index, callId, output) {
  messages.value = messages.value.map((message, at) => at !== index ? message : {
    ...message, calls: message.calls.map(call => call.id === callId ? { ...call, output } : call),
  });
}

export function stop() {
  running.value?.abort();
}

/** Generate the next message of the model, and show it while it arrives. */
export async function generate() {
  stop();
  const controller = new AbortController();
  const before = messages.value;
  let answer = { id: newId(), role: "assistant", text: "", reasoning: "", calls: [], state: "running", error: null, timings: null };
  let frame = 0;
  const show = () => { frame = 0; if (running.value === controller) messages.value = [...before, answer]; };
  batch(() => { running.value = controller; show(); });
  let state = "done";
  let error = null;
  try {
    if (!models.value) await loadModels(); // a message sent at once must name a model too
    const body = buildRequest(before);
    for await (const { data } of streamEvents("POST", "v1/chat/completions", { body, signal: controller.signal })) {
      answer = addChunk(answer, data);
      frame ||= requestAnimationFrame(show);
    }
  } catch (problem) {
    state = controller.signal.aborted ? "stopped" : "failed";
    if (state === "failed") error = problem instanceof ApiError ? problem.message : `The connection broke: ${problem.message}`;
  }
  cancelAnimationFrame(frame);
  answer = { ...answer, state, error };
  batch(() => {
    show();
    if (running.value === controller) running.value = null;
  });
}

function addChunk(answer, chunk) {
  const delta = chunk.choices[0]?.delta ?? {};
  const calls = [...answer.calls];
  for (const { index, id, function: { name, arguments: text } } of delta.tool_calls ?? []) {
    const call = calls[index] ?? { id: "", name: "", arguments: "", output: "" };
    calls[index] = { ...call, id: id ?? call.id, name: name ?? call.name, arguments: call.arguments + (text ?? "") };
  }
  return {
    ...answer, calls,
    text: answer.text + (delta.content ?? ""),
    reasoning: answer.reasoning + (delta.reasoning_content ?? ""),
    finish: chunk.choices[0]?.finish_reason ?? answer.finish,
    timings: chunk.timings ?? answer.timings,
    usage: chunk.usage ?? answer.usage,
  };
}

function buildRequest(history) {
  const { system, effort, tools, extra } = settings.value;
  const body = { model: model.value?.id, stream: true, stream_options: { include_usage: true } };
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...history.flatMap(toWire)];
  for (const name of NUMBERS) {
    if (settings.value[name] !== "") body[name] = Number(settings.value[name]);
  }
  if (effort) body.reasoning_effort = effort;
  if (tools.trim()) body.tools = parseJson(tools, "Tools");
  if (extra.trim()) Object.assign(body, parseJson(extra, "Other fields"));
  return body;
}

function toWire(message) {
  if (message.role === "user") {
    const parts = message.attachments.map(each => each.part);
    const content = parts.length ? [...parts, { type: "text", text: message.text }] : message.text;
    return [{ role: "user", content }];
  }
  if (!message.calls.length) return [{ role: "assistant", content: message.text }];
  const calls = message.calls.map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  const outputs = message.calls.map(call => ({ role: "tool", tool_call_id: call.id, content: call.output }));
  return [{ role: "assistant", content: message.text || null, tool_calls: calls }, ...outputs];
}
