/** Requests of the chat, and what their events add to an answer: chat completions, or responses where the server searches. */

import { toItems } from "./chat_items.js";
import { parseJson } from "./ui.js";

export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** The request that continues messages: `{path, body, add}`, where `add(answer, data)` is the answer with an event's data. */
export function makeRequest(model, settings, history) {
  const { effort, extra, search } = settings;
  const common = { model, stream: true };
  for (const name of NUMBERS) {
    if (settings[name] !== "") common[name] = Number(settings[name]);
  }
  const more = extra.trim() ? parseJson(extra, "Other fields") : {};
  return search
    ? { path: "v1/responses", body: { ...toResponse(common, settings, history), ...(effort && { reasoning: { effort } }), ...more }, add: addEvent }
    : { path: "v1/chat/completions", body: { ...toChat(common, settings, history), ...(effort && { reasoning_effort: effort }), ...more }, add: addChunk };
}

function toChat(common, { system, tools, schema }, history) {
  const body = { ...common, stream_options: { include_usage: true } };
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...history.flatMap(toWire)];
  if (tools.trim()) body.tools = parseJson(tools, "Tools");
  if (schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parseJson(schema, "JSON schema") } };
  return body;
}

function toResponse({ max_tokens: max_output_tokens, ...common }, { system, tools, schema, search }, history) {
  const functions = tools.trim() ? parseJson(tools, "Tools").map(tool => ({ type: tool.type, ...tool.function })) : [];
  return {
    ...common, max_output_tokens, store: false, instructions: system || undefined, input: toItems(history),
    tools: [{ type: "file_search", vector_store_ids: [search] }, ...functions],
    text: schema.trim() ? { format: { type: "json_schema", name: "answer", schema: parseJson(schema, "JSON schema") } } : undefined,
  };
}

/** An answer with an event of a response. Throws an Error if the response has failed. */
function addEvent(answer, { type, delta, item, response }) {
  if (type === "response.failed") throw new Error(response.error.message);
  if (type === "response.output_text.delta") return { ...answer, text: answer.text + delta };
  if (type.startsWith("response.reasoning") && type.endsWith(".delta")) return { ...answer, reasoning: answer.reasoning + delta };
  if (type === "response.output_item.done" && item.type === "function_call") {
    return { ...answer, calls: [...answer.calls, { id: item.call_id, name: item.name, arguments: item.arguments, output: "" }] };
  }
  if (type === "response.output_item.done" && item.type === "file_search_call") return { ...answer, searches: [...answer.searches, ...item.queries] };
  if (!response?.usage) return answer;
  const { input_tokens, output_tokens, input_tokens_details: details } = response.usage;
  return {
    ...answer, finish: response.incomplete_details ? "length" : "stop",
    usage: { prompt_tokens: input_tokens, completion_tokens: output_tokens, prompt_tokens_details: details },
  };
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
