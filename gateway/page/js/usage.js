/** Usage by project and model, with plots by day or hour. */

import { useState } from "preact/hooks";
import { enumName, listAll } from "./admin.js";
import { BarPlot } from "./plot.js";
import { ErrorBox, Field, formatNumber, html, Table, useLoad } from "./ui.js";

const COUNTS = [["requests", "Requests"], ["prompt_tokens", "Prompt tokens"], ["cached_tokens", "Cached tokens"], ["completion_tokens", "Completion tokens"]];
const DAY_MS = 86_400_000;

export function UsageView() {
  const [days, setDays] = useState("7");
  const [project, setProject] = useState("");
  const period = days === "1" ? "PERIOD_HOUR" : "PERIOD_DAY";
  const step = days === "1" ? DAY_MS / 24 : DAY_MS;
  const start = new Date((Math.floor(Date.now() / step) + 1) * step - days * DAY_MS);
  const query = { period, start_time: start.toISOString().replace(/\.\d+/, ""), project };
  const { data, error } = useLoad(() => listAll("admin/usage", "sums", query), [days, project]);
  if (error) return html`<${ErrorBox} error=${error} />`;
  const sums = data ?? [];
  return html`<div class="grid controls">
      <${Field} label="Time"><select value=${days} onChange=${event => setDays(event.target.value)}>
        <option value="1">the last day, by hour</option><option value="7">7 days</option><option value="30">30 days</option><option value="90">90 days</option></select><//>
      <${Field} label="Project" value=${project} placeholder="all" onChange=${event => setProject(event.target.value.trim())} /></div>
    <div class="panels plots">${COUNTS.map(([name, title]) => html`<figure key=${name}><figcaption>${title}: <strong>${formatNumber(total(sums, name))}</strong></figcaption>
      <${BarPlot} title=${title} bars=${byTime(sums, name, start, step)} /></figure>`)}</div>
    <h2>By project and model</h2>
    <${Table} caption="Usage by project and model" rows=${data && bySubject(sums)} empty="Nothing was used in this time." columns=${[
      ["Project", row => row.project], ["Model", row => row.model],
      ...COUNTS.map(([name, title]) => [title, row => formatNumber(row.counts[name]), true]),
    ]} />
    <p class="muted">${enumName(period, "PERIOD_") === "day" ? "Days" : "Hours"} are in UTC. Usage is reported every few seconds.</p>`;
}

const total = (sums, name) => sums.reduce((sum, each) => sum + Number(each.counts[name]), 0);

/** One bar for each day or hour, also for those without usage. */
function byTime(sums, name, start, step) {
  const bars = new Map();
  const label = time => step === DAY_MS ? new Date(time).toISOString().slice(5, 10) : new Date(time).toISOString().slice(11, 16);
  for (let time = Math.ceil(start / step) * step; time <= Date.now(); time += step) bars.set(time, [label(time), 0]);
  for (const sum of sums) {
    const bar = bars.get(Date.parse(sum.start_time));
    if (bar) bar[1] += Number(sum.counts[name]);
  }
  return [...bars.values()];
}

function bySubject(sums) {
  const rows = new Map();
  for (const { project, model, counts } of sums) {
    const id = JSON.stringify([project, model]);
    const row = rows.get(id) ?? { id, project, model, counts: Object.fromEntries(COUNTS.map(([name]) => [name, 0])) };
    for (const [name] of COUNTS) row.counts[name] += Number(counts[name]);
    rows.set(id, row);
  }
  return [...rows.values()];
}
