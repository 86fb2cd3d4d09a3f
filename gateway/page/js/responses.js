/** Stored responses: list, input and output, new ones in the background, cancellation. */

import { useEffect, useState } from "preact/hooks";
import { followEvents, get, post, remove } from "./api.js";
import { areModelsLoading } from "./chat_state.js";
import { addResponseEvent, ItemList, ItemLog, liveItems, NO_EVENTS, PICTURES } from "./items.js";
import { ModelField } from "./model_field.js";
import { Action, Broken, ErrorBox, Field, Form, formatNumber, html, Json, notify, Status, Table, Time, useList, useLoad, usePolling } from "./ui.js";

const isActive = response => ["queued", "in_progress"].includes(response?.status);

export function ResponsesView({ id }) {
  return id ? html`<${StoredResponse} key=${id} id=${id} />` : html`<${ResponseList} />`;
}

function ResponseList() {
  const list = useList("v1/responses");
  usePolling(list.reload, 2, list.rows?.some(isActive) ?? false);
  const create = async ({ model, input, previous }) => {
    const body = { model, input, background: true, ...(previous && { previous_response_id: previous }) };
    location.hash = `#/responses/${(await post("v1/responses", body)).id}`;
  };
  return html`<details class="panel"><summary>New response</summary>
      <${Form} label="New response" submit="Start in the background" isLoading=${areModelsLoading.value} onSubmit=${create}>
        <${Field} label="Input"><textarea name="input" rows="3" required /><//><${ModelField} />
        <${Field} label="Previous response" name="previous" hint="The id of a response to continue; may be empty" /><//></details>
    <${Table} caption="Responses" ...${list} columns=${[
      ["Response", row => html`<a href=${`#/responses/${row.id}`}><code>${row.id}</code></a>`],
      ["Status", row => html`<${Status} value=${row.status} />`],
      ["Model", row => row.model],
      ["Tokens", row => row.usage ? formatNumber(row.usage.total_tokens) : "–", true],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the response ${row.id} with its input and output?`} run=${async () => { await remove(`v1/responses/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

/** What the events of a response have brought so far, from its first one, and whether it waits for the network; null once it has ended. */
function useEvents(path, isRunning, reload) {
  const [live, setLive] = useState(null);
  useEffect(() => {
    if (!isRunning) return undefined;
    const leaving = new AbortController();
    const follow = async () => {
      let state = NO_EVENTS;
      for await (const { event, data } of followEvents("GET", path, { query: { stream: true }, signal: leaving.signal })) {
        if (data) state = addResponseEvent(state, data);
        setLive({ ...state, isBroken: event === "broken" });
      }
      await reload();
    };
    follow().catch(() => {}).finally(() => setLive(null)); // what is polled is shown
    return () => leaving.abort();
  }, [path, isRunning]);
  return live;
}

function StoredResponse({ id }) {
  const path = `v1/responses/${id}`;
  const { data, error, reload } = useLoad(() => get(path), [id]);
  const input = useList(`${path}/input_items`, { order: "desc", include: PICTURES });
  const live = useEvents(path, isActive(data), reload);
  usePolling(reload, 2, isActive(data) && !live);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<p class="muted" role="status">Loading…</p>`;
  return html`<p><a href="#/responses">All responses</a></p>
    <div class="row"><h2><code>${id}</code></h2><${Status} value=${live?.status ?? data.status} />
      ${isActive(data) && html`<${Action} run=${async () => { await post(`${path}/cancel`); notify("Cancelled."); await reload(); }}>Cancel<//>`}</div>
    <${Broken} isShown=${live?.isBroken} /><${ErrorBox} error=${data.error} />
    <dl><dt>Model</dt><dd>${data.model}</dd>
      ${data.previous_response_id && html`<dt>Continues</dt><dd><a href=${`#/responses/${data.previous_response_id}`}>${data.previous_response_id}</a></dd>`}
      ${data.conversation && html`<dt>Conversation</dt><dd><a href=${`#/conversations/${data.conversation.id}`}>${data.conversation.id}</a></dd>`}
      ${data.usage && html`<dt>Tokens</dt><dd>${formatNumber(data.usage.input_tokens)} in, ${formatNumber(data.usage.output_tokens)} out</dd>`}</dl>
    ${input.rows && html`<${ItemLog} items=${input.rows.toReversed()} label="Input" hasOlder=${input.hasMore} loadOlder=${input.more} />`}
    <${ItemList} items=${live ? liveItems(live) : data.output} label="Output" />
    <details class="panel"><summary>The whole object</summary><${Json} value=${data} label="Response" /></details>`;
}
