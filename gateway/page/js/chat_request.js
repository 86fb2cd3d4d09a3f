/** Requests of the chat, and what their events add to an answer: chat completions, or responses where the server runs tools. */

import { isMade, toCall, toItems } from "./chat_items.js";
import { parseJson } from "./ui.js";

export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/**
 * The request that continues messages: `{path, body, add}`, where `add(answer, data)` is the answer with an event's data.
 * `approved` are the tools of MCP servers that need no approval, by server: `{label: [name]}`.
 */
export function makeRequest(model, settings, history, approved = {}) {
  const { effort, extra } = settings;
  const hosted = hostedTools(settings, approved);
  const common = { model, stream: true };
  for (const name of NUMBERS) {
    if (settings[name] !== "") common[name] = Number(settings[name]);
  }
  const more = extra.trim() ? parseJson(extra, "Other fields") : {};
  return hosted.length
    ? { path: "v1/responses", body: { ...toResponse(common, settings, hosted, history), ...(effort && { reasoning: { effort } }), ...more }, add: addEvent }
    : { path: "v1/chat/completions", body: { ...toChat(common, settings, history), ...(effort && { reasoning_effort: effort }), ...more }, add: addChunk };
}

/** Whether the settings choose tools that the server runs by itself. */
export const isHosted = ({ search, servers }) => search !== "" || servers.length > 0;

function hostedTools({ search, servers }, approved) {
  return [
    ...(search ? [{ type: "file_search", vector_store_ids: [search] }] : []),
    ...servers.map(label => ({ type: "mcp", server_label: label, require_approval: { never: { tool_names: approved[label] ?? [] } } })),
  ];
}

function toChat(common, { system, tools, schema }, history) {
  const body = { ...common, stream_options: { include_usage: true } };
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...history.flatMap(toWire)];
  if (tools.trim()) body.tools = parseJson(tools, "Tools");
  if (schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parseJson(schema, "JSON schema") } };
  return body;
}

function toResponse({ max_tokens: max_output_tokens, ...common }, { system, tools, schema }, hosted, history) {
  const functions = tools.trim() ? parseJson(tools, "Tools").map(tool => ({ type: tool.type, ...tool.function })) : [];
  return {
    ...common, max_output_tokens, store: false, instructions: system || undefined, input: toItems(history),
    tools: [...hosted, ...functions],
    text: schema.trim() ? { format: { type: "json_schema", name: "answer", schema: parseJson(schema, "JSON schema") } } : undefined,
  };
}

/** An answer with an event of a response. Throws an Error if the response has failed. */
function addEvent(answer, { type, delta, item, item_id: id, arguments: text, response }) {
  if (type === "response.failed") throw new Error(response.error.message);
  if (type === "response.output_text.delta") return { ...answer, text: answer.text + delta };
  if (type.startsWith("response.reasoning") && type.endsWith(".delta")) return { ...answer, reasoning: answer.reasoning + delta };
  if (type === "response.mcp_call_arguments.done") return putCall(answer, { ...answer.calls.find(call => call.id === id), arguments: text });
  if (type === "response.output_item.added") {
    if (item.type === "mcp_call") return putCall(answer, toCall(item)); // it may have an effect from now on
    return item.type === "message" && answer.text ? { ...answer, text: `${answer.text}\n\n` } : answer;
  }
  if (type === "response.output_item.done") {
    if (item.type === "file_search_call") return { ...answer, searches: [...answer.searches, ...item.queries] };
    if (item.type === "mcp_list_tools") return item.error ? { ...answer, problems: [...answer.problems, item.error] } : answer;
    const call = toCall(item);
    return call ? putCall(answer, call) : answer;
  }
  if (!response?.usage) return answer;
  const { input_tokens, output_tokens, input_tokens_details: details } = response.usage;
  return {
    ...answer, finish: response.incomplete_details ? "length" : "stop",
    usage: { prompt_tokens: input_tokens, completion_tokens: output_tokens, prompt_tokens_details: details },
  };
}

/** An answer with a call that is new, or replaces the one with its id. */
function putCall(answer, call) {
  const at = answer.calls.findIndex(({ id }) => id === call.id);
  return { ...answer, calls: at < 0 ? [...answer.calls, call] : answer.calls.with(at, call) };
}

/** An answer with a chunk of the first choice; "Other fields" may ask for more. */
function addChunk(answer, chunk) {
  const choice = chunk.choices.find(({ index }) => !index);
  const delta = choice?.delta ?? {};
  const calls = [...answer.calls];
  for (const { index, id, function: { name, arguments: text } } of delta.tool_calls ?? []) {
    const call = calls[index] ?? { id: "", name: "", arguments: "", output: "" };
    calls[index] = { ...call, id: id ?? call.id, name: name ?? call.name, arguments: call.arguments + (text ?? "") };
  }
  return {
    ...answer, calls,
    text: answer.text + (delta.content ?? ""),
    reasoning: answer.reasoning + (delta.reasoning_content ?? ""),
    finish: choice?.finish_reason ?? answer.finish,
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
  const made = message.calls.filter(isMade);
  const own = message.calls.filter(call => !call.server);
  return [
    ...(made.length ? withOutputs(null, made) : []),
    ...(own.length ? withOutputs(message.text || null, own) : [{ role: "assistant", content: message.text }]),
  ];
}

function withOutputs(content, calls) {
  const named = calls.map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  const outputs = calls.map(call => ({ role: "tool", tool_call_id: call.id, content: call.output ?? call.error ?? "" }));
  return [{ role: "assistant", content, tool_calls: named }, ...outputs];
}
