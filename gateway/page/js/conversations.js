/** Conversations that the server stores: list, items, and answers that continue one. */

import { useEffect, useRef, useState } from "preact/hooks";
import { followEvents, get, getAll, postWhole, remove, saveFile } from "./api.js";
import { fromItems, toItems, toMarkdown } from "./chat_items.js";
import { areModelsLoading, startChat } from "./chat_state.js";
import { addResponseEvent, ItemLog, liveItems, NO_EVENTS, PICTURES } from "./items.js";
import { ModelField } from "./model_field.js";
import { Action, Broken, ErrorBox, Field, Form, html, readArray, Table, Time, useList, useLoad } from "./ui.js";

export function ConversationsView({ id }) {
  return id ? html`<${Conversation} key=${id} id=${id} />` : html`<${ConversationList} />`;
}

function ConversationList() {
  const list = useList("v1/conversations");
  const create = async ({ title, file }) => {
    location.hash = `#/conversations/${await storeItems(await readArray(file, "Items"), title)}`;
  };
  return html`<details class="panel"><summary>New conversation</summary>
      <${Form} label="New conversation" submit="Create" onSubmit=${create}><${Field} label="Title" name="title" maxlength="512" />
        <${Field} label="Items" name="file" type="file" accept=".json" hint="A JSON array of items, as a conversation is saved; may be empty" /><//></details>
    <${Table} caption="Conversations" ...${list} columns=${[
      ["Conversation", row => html`<a href=${`#/conversations/${row.id}`}>${row.metadata.title ?? row.id}</a>`],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the conversation "${row.metadata.title ?? row.id}" with all its items?`} run=${async () => { await remove(`v1/conversations/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

function Conversation({ id }) {
  const path = `v1/conversations/${id}`;
  const conversation = useLoad(() => get(path), [id]);
  const items = useList(`${path}/items`, { order: "desc", include: PICTURES });
  const [live, setLive] = useState(null);
  const [isBroken, setBroken] = useState(false);
  const leaving = useRef(new AbortController());
  useEffect(() => () => leaving.current.abort(), []); // the server goes on
  const send = async ({ model, text }) => {
    const body = { model, input: text, conversation: id, stream: true };
    const question = { id: "live-user", type: "message", role: "user", content: [{ type: "input_text", text }] };
    let state = NO_EVENTS;
    setLive([question]);
    try {
      const keptAt = ({ data: { response } }) => response && `v1/responses/${response.id}?stream=true`;
      for await (const { event, data } of followEvents("POST", "v1/responses", { body, signal: leaving.current.signal }, keptAt)) {
        setBroken(event === "broken");
        if (!data) continue;
        if (data.type === "response.failed") throw new Error(data.response.error.message);
        state = addResponseEvent(state, data);
        setLive([question, ...liveItems(state)]);
      }
    } finally {
      await items.reload();
      setLive(null);
    }
  };
  const error = conversation.error ?? items.error;
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!items.rows) return html`<p class="muted" role="status">Loading…</p>`;
  const title = conversation.data?.metadata.title ?? id;
  const shown = [...items.rows.toReversed(), ...(live ?? [])];
  return html`<p><a href="#/conversations">All conversations</a></p>
    <div class="row"><h2>${title}</h2>
      <${Action} run=${async () => openInChat(title, await getAll(`${path}/items`, { include: PICTURES }))}>Open a copy in the chat<//>
      <${Action} run=${async () => saveFile(`${id}.json`, JSON.stringify(await getAll(`${path}/items`, { include: PICTURES }), null, 2))}>Save as JSON<//>
      <${Action} run=${async () => saveFile(`${id}.md`, toMarkdown(fromItems(await getAll(`${path}/items`, { include: PICTURES }))))}>Save as Markdown<//></div>
    ${shown.length > 0 && html`<${ItemLog} items=${shown} label="Items" isBusy=${live !== null} hasOlder=${items.hasMore} loadOlder=${items.more} />`}
    <${Broken} isShown=${isBroken} />
    ${!shown.length && html`<p class="muted">It has no items yet.</p>`}
    <div class="card narrow"><${Form} label="Continue" submit="Send" isLoading=${areModelsLoading.value} onSubmit=${send}>
      <${Field} label="Message"><textarea name="text" rows="2" required /><//><${ModelField} /><//></div>`;
}

function openInChat(title, items) {
  startChat(title, fromItems(items));
  location.hash = "#/chat";
}

/** Store the messages of the chat as a conversation; returns its id. */
export const storeChat = (messages, title) => storeItems(toItems(messages), title);

/** Store a conversation with items; returns its id. */
function storeItems(items, title) {
  const made = items.filter(({ type = "message" }) => !type.startsWith("mcp_approval_")) // an approval counts once
    .map(({ id, status, approval_request_id, ...item }) => item); // they get new ids
  const metadata = title ? { title: title.slice(0, 512) } : {};
  const [first = [], ...rest] = Array.from({ length: Math.ceil(made.length / 20) }, (_, at) => made.slice(20 * at, 20 * at + 20));
  return postWhole("v1/conversations", { metadata, items: first }, "items", rest.map(each => ({ items: each })));
}
