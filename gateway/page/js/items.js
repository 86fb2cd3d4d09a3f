/** Items of responses and conversations: messages, reasoning, tool calls and their outputs. */

import { Markdown } from "./markdown.js";
import { Transcript } from "./transcript.js";
import { html, Json } from "./ui.js";

/** What `include` asks for, so that items have their pictures. */
export const PICTURES = "message.input_image.image_url";

/** Show items in their order. */
export function ItemList({ items, label }) {
  return html`<div class="items" role="group" aria-label=${label}>${items.map(item => html`<${Item} key=${item.id} item=${item} />`)}</div>`;
}

/** Show items that may have older ones, which `loadOlder` adds, with the newest at the end. */
export function ItemLog({ items, ...more }) {
  return html`<div class="items"><${Transcript} first=${items[0]?.id} ...${more}>
    ${items.map(item => html`<${Item} key=${item.id} item=${item} />`)}<//></div>`;
}

function Item({ item }) {
  if (item.type === "message") {
    const isUser = item.role === "user";
    return html`<article class=${`message ${isUser ? "user" : "model"}`} aria-label=${isUser ? "You" : item.role === "assistant" ? "Model" : item.role}>
      ${item.content.map(part => html`<${Part} part=${part} isUser=${isUser} />`)}</article>`;
  }
  if (item.type === "reasoning") {
    const text = item.summary.map(part => part.text).join("\n\n");
    return html`<details class="reasoning message"><summary>Reasoning</summary><p class="text">${text}</p></details>`;
  }
  if (item.type === "function_call") return html`<${Call} title="Tool call" name=${item.name} value=${item.arguments} />`;
  if (item.type.endsWith("_call_output")) return html`<${Call} title="Output of the tool" name="" value=${item.output} />`;
  return html`<${Call} title=${item.type.replaceAll("_", " ")} name=${item.name ?? ""} value=${item} />`;
}

function Part({ part, isUser }) {
  if (part.type === "input_image") {
    return part.image_url?.startsWith("data:")
      ? html`<img class="picture" src=${part.image_url} alt="Attached picture" />`
      : html`<p class="muted">Picture ${part.file_id ?? part.image_url ?? ""}</p>`;
  }
  if (part.type === "input_file") return html`<p class="muted">File ${part.filename ?? part.file_id ?? ""}</p>`;
  const text = part.text ?? part.refusal ?? "";
  return isUser ? html`<p class="text">${text}</p>` : html`<${Markdown} text=${text} />`;
}

function Call({ title, name, value }) {
  return html`<section class="message call" aria-label=${`${title} ${name}`}><h3>${title} ${name && html`<code>${name}</code>`}</h3>
    <${Json} value=${value} label=${`${title} ${name}`} /></section>`;
}

/** What `addResponseEvent` begins with. */
export const NO_EVENTS = { text: "", reasoning: "", calls: [] };

/** Append the text of stream events of a response to `{text, reasoning, calls, status}`. */
export function addResponseEvent(live, { type, delta, item, response }) {
  if (response) return { ...live, status: response.status };
  if (type === "response.output_text.delta") return { ...live, text: live.text + delta };
  if (type.startsWith("response.reasoning") && type.endsWith(".delta")) return { ...live, reasoning: live.reasoning + delta };
  if (type === "response.output_item.done" && item.type.endsWith("_call")) return { ...live, calls: [...live.calls, item] };
  return live;
}

/** The items of a response that still streams. */
export function liveItems({ text, reasoning, calls }) {
  const items = [];
  if (reasoning) items.push({ id: "live-reasoning", type: "reasoning", summary: [{ text: reasoning }] });
  items.push(...calls);
  if (text) items.push({ id: "live-model", type: "message", role: "assistant", content: [{ type: "output_text", text }] });
  return items;
}
