/** Conversations that the server stores: list, items, and answers that continue one. */

import { useState } from "preact/hooks";
import { get, post, remove, streamEvents } from "./api.js";
import { replaceChat } from "./chat_state.js";
import { addResponseEvent, ItemList } from "./items.js";
import { ModelField } from "./model_field.js";
import { Action, ErrorBox, Field, Form, html, Table, Time, useList, useLoad } from "./ui.js";

export function ConversationsView({ id }) {
  return id ? html`<${Conversation} id=${id} />` : html`<${ConversationList} />`;
}

function ConversationList() {
  const list = useList("v1/conversations");
  const create = async ({ title }) => {
    const { id } = await post("v1/conversations", title ? { metadata: { title } } : {});
    location.hash = `#/conversations/${id}`;
  };
  return html`<details class="panel"><summary>New conversation</summary>
      <${Form} label="New conversation" submit="Create" onSubmit=${create}><${Field} label="Title" name="title" maxlength="512" /><//></details>
    <${Table} caption="Conversations" ...${list} columns=${[
      ["Conversation", row => html`<a href=${`#/conversations/${row.id}`}>${row.metadata.title ?? row.id}</a>`],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm="Delete this conversation?" run=${async () => { await remove(`v1/conversations/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

function Conversation({ id }) {
  const path = `v1/conversations/${id}`;
  const conversation = useLoad(() => get(path), [id]);
  const items = useLoad(() => readAll(`${path}/items`), [id]);
  const [live, setLive] = useState(null);
  const send = async ({ model, text }) => {
    const body = { model, input: text, conversation: id, stream: true };
    let state = { question: text, text: "", reasoning: "", calls: [] };
    setLive(state);
    try {
      for await (const { data } of streamEvents("POST", "v1/responses", { body })) {
        if (data.type === "response.failed") throw new Error(data.response.error.message);
        state = addResponseEvent(state, data);
        setLive(state);
      }
    } finally {
      await items.reload();
      setLive(null);
    }
  };
  const error = conversation.error ?? items.error;
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!items.data) return html`<p class="muted" role="status">Loading…</p>`;
  const shown = live ? [...items.data, ...liveItems(live)] : items.data;
  return html`<p><a href="#/conversations">All conversations</a></p>
    <div class="row"><h2>${conversation.data?.metadata.title ?? id}</h2>
      <${Action} run=${() => openInChat(items.data)}>Open a copy in the chat<//></div>
    <${ItemList} items=${shown} label="Items" />
    ${!shown.length && html`<p class="muted">It has no items yet.</p>`}
    <div class="card narrow"><${Form} label="Continue" submit="Send" onSubmit=${send}>
      <${Field} label="Message"><textarea name="text" rows="2" required /><//><${ModelField} /><//></div>`;
}

function liveItems({ question, text, reasoning, calls }) {
  const items = [{ id: "live-user", type: "message", role: "user", content: [{ type: "input_text", text: question }] }];
  if (reasoning) items.push({ id: "live-reasoning", type: "reasoning", summary: [{ text: reasoning }] });
  items.push(...calls);
  if (text) items.push({ id: "live-model", type: "message", role: "assistant", content: [{ type: "output_text", text }] });
  return items;
}

async function readAll(path) {
  const items = [];
  for (let after = ""; ;) {
    const page = await get(path, { limit: 100, order: "asc", after });
    items.push(...page.data);
    if (!page.has_more) return items;
    after = page.last_id;
  }
}

function openInChat(items) {
  const messages = items.filter(item => item.type === "message" && ["user", "assistant"].includes(item.role));
  replaceChat(messages.map(item => {
    const text = item.content.map(part => part.text ?? "").join("");
    return item.role === "user"
      ? { id: item.id, role: "user", text, attachments: [] }
      : { id: item.id, role: "assistant", text, reasoning: "", calls: [], state: "done", error: null };
  }));
  location.hash = "#/chat";
}

/** Store the messages of the chat as a conversation; returns its id. Files are not stored. */
export async function storeChat(messages, title) {
  const items = messages.filter(message => message.text).map(({ role, text }) => ({
    type: "message", role, content: [{ type: role === "user" ? "input_text" : "output_text", text }],
  }));
  const { id } = await post("v1/conversations", { metadata: { title }, items: items.slice(0, 20) });
  for (let at = 20; at < items.length; at += 20) {
    await post(`v1/conversations/${id}/items`, { items: items.slice(at, at + 20) });
  }
  return id;
}
