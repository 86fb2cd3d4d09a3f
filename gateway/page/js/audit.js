/** The audit log: what operators did, newest first, read page by page. */

import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { Field, html, Json, Table, Time, useLoad } from "./ui.js";

const PAGE = 50;
const DAY_MS = 86_400_000;

export function AuditView() {
  const [actor, setActor] = useState("");
  const [target, setTarget] = useState("");
  const [days, setDays] = useState("30");
  const [older, setOlder] = useState([]);
  const start_time = new Date(Math.floor(Date.now() / DAY_MS + 1 - days) * DAY_MS).toISOString();
  const read = page_token => get("admin/audit", { page_size: PAGE, actor, target, start_time, page_token });
  const { data, error } = useLoad(() => read(""), [actor, target, days]);
  useEffect(() => setOlder([]), [data]);
  const token = (older.at(-1) ?? data)?.next_page_token;
  const rows = data && [data, ...older].flatMap(page => page.events);
  const more = async () => setOlder([...older, await read(token)]);
  return html`<div class="grid controls">
      <${Field} label="Key" value=${actor} placeholder="all" onChange=${event => setActor(event.target.value.trim())} />
      <${Field} label="Object" value=${target} placeholder="all" onChange=${event => setTarget(event.target.value.trim())} />
      <${Field} label="Time"><select value=${days} onChange=${event => setDays(event.target.value)}>
        <option value="1">today (UTC)</option><option value="7">7 days</option><option value="30">30 days</option><option value="36500">all</option></select><//></div>
    <${Table} caption="Acts of operators" rows=${rows} error=${error} hasMore=${Boolean(token)} more=${more} empty="Nothing was done in this time." columns=${[
      ["Time", row => html`<${Time} value=${row.time} />`],
      ["Key", row => html`<code>${row.actor}</code>`],
      ["From", row => row.address || "local"],
      ["Act", row => html`<strong>${row.method}</strong>${row.refusal && html` refused: <code>${row.refusal}</code>`}`],
      ["Object", row => html`<code>${row.target || "–"}</code>`],
      ["Request", row => html`<details><summary>${row.request_id}</summary><${Json} value=${JSON.parse(row.request || "{}")} label=${`Request ${row.request_id}`} /></details>`],
    ]} />`;
}
