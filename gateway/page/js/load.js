/** The load of the engines, live: slots, queues, KV cache, tokens a second, running requests. */

import { useCallback, useRef, useState } from "preact/hooks";
import { enumName, listAll } from "./admin.js";
import { get, post } from "./api.js";
import { LinePlot } from "./plot.js";
import { Action, ErrorBox, formatBytes, formatNumber, html, Meter, Status, Table, useLoad, usePolling } from "./ui.js";

const SAMPLES = 120;

export function LoadView() {
  const [requests, setRequests] = useState([]);
  const [rates, setRates] = useState([]);
  const before = useRef(null);
  const { data, error, reload } = useLoad(async () => {
    const [{ load: next, replicas }, running] = await Promise.all([get("admin/load"), listAll("admin/requests", "requests")]);
    const sample = { at: performance.now(), prompt: Number(next.prompt_tokens_total), completion: Number(next.completion_tokens_total) };
    if (before.current) setRates(all => [...all, perSecond(before.current, sample)].slice(-SAMPLES));
    before.current = sample;
    setRequests(running);
    return { load: next, replicas };
  }, []);
  const server = useLoad(() => get("admin/server"), []);
  usePolling(useCallback(reload, [reload]), 1);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<p class="muted" role="status">Loading…</p>`;
  const { load, replicas } = data;
  const now = rates.at(-1) ?? { prompt: 0, completion: 0 };
  return html`<div class="panels">
      <section class="card" aria-label="Engine"><h2>Engine</h2>
        <${Meter} label="Slots" value=${load.num_running} max=${load.num_slots} />
        <${Meter} label="KV cache, tokens" value=${Number(load.num_used_cells)} max=${Number(load.num_cells)} />
        <dl><dt>Of these idle</dt><dd>${formatNumber(load.num_idle_cells)} tokens, kept for reuse</dd>
          <dt>Preempted</dt><dd>${load.num_preempted}</dd>
          <dt>Saved prefixes</dt><dd>${load.num_snapshots}, ${formatBytes(Number(load.snapshot_bytes))}</dd>
          <dt>Reused prompt tokens</dt><dd>${share(load)}</dd>
          ${server.data && html`<dt>Version</dt><dd>${server.data.version}, up ${formatUptime(server.data.uptime)}, ${server.data.engine_restarts} restarts</dd>`}</dl></section>
      <section class="card" aria-label="Queue"><h2>Queue</h2>
        ${load.queues.map(queue => html`<${Meter} label=${enumName(queue.priority, "PRIORITY_")} value=${queue.num_requests} max=${Math.max(load.num_slots, queue.num_requests)} text=${`${queue.num_requests} waiting`} />`)}
        ${!load.queues.length && html`<p class="muted">Nothing waits.</p>`}
        <dl><dt>Waiting for a prefix</dt><dd>${load.num_followers}</dd><dt>Embedding inputs</dt><dd>${formatNumber(load.embedding?.num_inputs)}</dd></dl></section>
    </div>
    <div class="panels plots">
      <figure><figcaption>Generated tokens a second: <strong>${formatNumber(Math.round(now.completion))}</strong></figcaption>
        <${LinePlot} title="Generated tokens a second" values=${rates.map(each => each.completion)} capacity=${SAMPLES} /></figure>
      <figure><figcaption>Prompt tokens a second: <strong>${formatNumber(Math.round(now.prompt))}</strong></figcaption>
        <${LinePlot} title="Prompt tokens a second" values=${rates.map(each => each.prompt)} capacity=${SAMPLES} /></figure>
    </div>
    ${replicas.length > 0 && html`<h2>Replicas</h2>
    <${Table} caption="Replicas" rows=${replicas.map(each => ({ id: each.replica, ...each }))} columns=${[
      ["Address", row => html`<code>${row.id}</code>`],
      ["State", row => row.problem || (row.load.draining ? "draining" : "serving")],
      ["Running", row => row.load ? `${row.load.num_running} of ${row.load.num_slots}` : "–", true],
      ["Waiting", row => row.load ? row.load.queues.reduce((sum, queue) => sum + queue.num_requests, 0) : "–", true],
      ["KV cache, tokens", row => row.load ? `${formatNumber(row.load.num_used_cells)} of ${formatNumber(row.load.num_cells)}` : "–", true],
    ]} />`}
    <h2>Requests</h2>
    <${Table} caption="Requests" rows=${requests.map(each => ({ id: each.request_id, ...each }))} empty="Nothing runs or waits." columns=${[
      ["Request", row => html`<code>${row.id}</code>`],
      ["Project", row => row.project], ["Model", row => row.model],
      ["State", row => row.choices.map(choice => html`<${Status} value=${enumName(choice.state, "STATE_")} /> `)],
      ["Slot", row => row.choices.map(choice => choice.slot ?? "–").join(", "), true],
      ["Prompt", row => formatNumber(row.prompt_tokens), true],
      ["Generated", row => formatNumber(row.choices.reduce((sum, choice) => sum + choice.completion_tokens, 0)), true],
      ["Age", row => `${parseFloat(row.age).toFixed(1)} s`, true],
      ["", row => html`<${Action} class="danger" confirm="Abort this request?" run=${async () => { await post("admin/requests/abort", { request_ids: [row.id] }); await reload(); }}>Abort<//>`],
    ]} />`;
}

function perSecond(from, to) {
  const seconds = (to.at - from.at) / 1000;
  const rate = name => Math.max(0, (to[name] - from[name]) / seconds); // a new engine counts from 0
  return { prompt: rate("prompt"), completion: rate("completion") };
}

function share({ cached_tokens_total: cached, prompt_tokens_total: computed }) {
  const all = Number(cached) + Number(computed);
  return all ? `${(100 * Number(cached) / all).toFixed(1)} %` : "–";
}

function formatUptime(text) {
  const minutes = Math.floor(parseFloat(text) / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
