/** Messages of the chat as items of conversations, and back. */

const INTERRUPTED = "The call was interrupted: what it did is not known.";

/** Whether a call is one that a server has made, or makes. */
export const isMade = call => Boolean(call.server) && !call.approval;

/**
 * The items of messages: texts, pictures, files, reasoning, calls and their outputs. A call that was approved is made
 * only if the approval is in the last message: a later answer was interrupted before, or has made it.
 */
export function toItems(messages) {
  const made = new Set(messages.flatMap(({ calls = [] }) => calls.map(call => call.request)));
  return messages.flatMap((message, at) => message.role === "user" ? [userItem(message)]
    : modelItems(message, call => !made.has(call.id), at === messages.length - 1));
}

function userItem({ text, attachments }) {
  const content = attachments.map(({ part }) => toContent(part));
  if (text || !content.length) content.push({ type: "input_text", text });
  return { type: "message", role: "user", content };
}

function toContent(part) {
  if (part.type === "image_url") return { type: "input_image", image_url: part.image_url.url, detail: "auto" };
  if (part.type === "file") return { type: "input_file", ...part.file };
  return part; // input_audio
}

function modelItems({ text, reasoning, calls }, isUnmade, isLast) {
  const items = [];
  if (reasoning) items.push({ type: "reasoning", summary: [{ type: "summary_text", text: reasoning }] });
  for (const { server, name, arguments: text, output, error } of calls.filter(isMade)) {
    items.push({ type: "mcp_call", server_label: server, name, arguments: text, output, error: error ?? (output === null ? INTERRUPTED : null) });
  }
  const own = calls.filter(call => !call.server);
  const asked = calls.filter(call => call.approval && isUnmade(call));
  if (text || !calls.length) items.push({ type: "message", role: "assistant", content: [{ type: "output_text", text }] });
  for (const { id, name, arguments: text } of own) items.push({ type: "function_call", call_id: id, name, arguments: text });
  for (const { id, server, name, arguments: text } of asked) items.push({ type: "mcp_approval_request", id, server_label: server, name, arguments: text });
  for (const { id, output } of own) items.push({ type: "function_call_output", call_id: id, output });
  for (const { id, approval } of asked) items.push({ type: "mcp_approval_response", approval_request_id: id, approve: isLast && approval === "approved" });
  return items;
}

/** The call of an item: `{id, name, arguments, output}`, with `server` and `error` if a server makes it; else undefined. */
export function toCall({ type, id, call_id, server_label: server, name, arguments: text, output, error, approval_request_id: request }) {
  if (type === "function_call") return { id: call_id, name, arguments: text, output: "" };
  if (type === "mcp_call") return { id, server, name, arguments: text, output, error, request };
  if (type === "mcp_approval_request") return { id, server, name, arguments: text, approval: "asked" };
  return undefined;
}

/** The messages of items. What a chat cannot hold, such as a search of the server, is left out. */
export function fromItems(items) {
  const messages = [];
  const answer = () => {
    if (messages.at(-1)?.role !== "assistant" || messages.at(-1).calls.some(call => !call.server && call.output)) {
      messages.push({ role: "assistant", text: "", reasoning: "", calls: [], state: "done", error: null });
    }
    return messages.at(-1);
  };
  for (const item of items) {
    if (item.type === "message" && item.role === "user") messages.push(userMessage(item.content));
    else if (item.type === "message" && item.role === "assistant") addText(answer(), item.content.map(part => part.text ?? "").join(""));
    else if (item.type === "reasoning") answer().reasoning += item.summary.map(part => part.text).join("\n\n");
    else if (item.type === "function_call" || item.type === "mcp_call") answer().calls.push(toCall(item));
    else if (item.type === "function_call_output") {
      const call = messages.flatMap(message => message.calls ?? []).findLast(({ id }) => id === item.call_id);
      if (call) call.output = typeof item.output === "string" ? item.output : JSON.stringify(item.output);
    }
  }
  return messages;
}

function addText(message, text) {
  message.text += message.text ? `\n\n${text}` : text;
}

function userMessage(content) {
  const attachments = content.filter(part => part.image_url?.startsWith("data:") || part.file_data || part.input_audio).map(toAttachment);
  return { role: "user", text: content.map(part => part.text ?? "").join(""), attachments };
}

function toAttachment(part) {
  if (part.type === "input_image") {
    return { name: "picture", kind: "image", url: part.image_url, part: { type: "image_url", image_url: { url: part.image_url } } };
  }
  if (part.type === "input_file") {
    const file = { filename: part.filename, file_data: part.file_data };
    return { name: part.filename ?? "file", kind: "document", url: part.file_data, part: { type: "file", file } };
  }
  const { data, format } = part.input_audio;
  return { name: "sound", kind: "audio", url: `data:audio/${format};base64,${data}`, part };
}

/** Messages as Markdown, with the calls of tools and their outputs as code. */
export function toMarkdown(messages) {
  return messages.map(({ role, text, attachments = [], calls = [] }) => [
    `## ${role === "user" ? "User" : "Assistant"}`,
    ...attachments.map(({ name }) => `*Attached: ${name}*`),
    text,
    ...calls.filter(call => !call.approval).map(call => `Call of \`${call.name}\`:\n\n${fence(call.arguments)}\n\nOutput:\n\n${fence(call.output ?? call.error ?? "")}`),
  ].filter(Boolean).join("\n\n")).join("\n\n") + "\n";
}

/** A text as a block of code, which no backticks in it end. */
function fence(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(each => each.length));
  const marks = "`".repeat(longest + 1);
  return `${marks}\n${text}\n${marks}`;
}
