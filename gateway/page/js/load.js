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
  const [modelRates, setModelRates] = useState(new Map());
  const before = useRef(null);
  const { data, error, reload } = useLoad(async () => {
    const [{ load: next, replicas }, running] = await Promise.all([get("admin/load"), listAll("admin/requests", "requests")]);
    const at = performance.now();
    const sample = { all: count(next, at), models: new Map(next.models.map(each => [each.model, count(each, at)])) };
    if (before.current) {
      const from = before.current;
      setRates(all => [...all, perSecond(from.all, sample.all)].slice(-SAMPLES));
      setModelRates(new Map([...sample.models].map(([model, to]) => [model, perSecond(from.models.get(model) ?? to, to)])));
    }
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
    <h2>Models</h2>
    <${Table} caption="Models" rows=${load.models.map(each => ({ id: each.model, ...each }))} empty="No model is loaded." columns=${[
      ["Model", row => html`<strong>${row.id}</strong>`],
      ["Running", row => `${row.num_running} of ${row.num_slots}`, true],
      ["Waiting", row => row.num_waiting, true],
      ["KV cache, tokens", row => `${formatNumber(row.num_used_cells)} of ${formatNumber(row.num_cells)}`, true],
      ["Prompt tokens/s", row => formatNumber(Math.round(modelRates.get(row.id)?.prompt ?? 0)), true],
      ["Generated tokens/s", row => formatNumber(Math.round(modelRates.get(row.id)?.completion ?? 0)), true],
    ]} />
    ${replicas.length > 0 && html`<h2>Replicas</h2>
    <${Table} caption="Replicas" rows=${replicas.map(each => ({ id: each.replica, ...each }))} columns=${[
      ["Address", row => html`<code>${row.id}</code>`],
      ["State", row => row.problem || (row.load.draining ? "draining" : row.load.models.length ? "serving" : "no model is loaded")],
      ["Running", row => row.load ? `${row.load.num_running} of ${row.load.num_slots}` : "–", true],
      ["Waiting", row => row.load ? row.load.queues.reduce((sum, queue) => sum + queue.num_requests, 0) : "–", true],
      ["KV cache, tokens", row => row.load ? `${formatNumber(row.load.num_used_cells)} of ${formatNumber(row.load.num_cells)}` : "–", true],
    ]} />`}
    <h2>Requests</h2>
    <${Table} caption="Requests" rows=${requests.map(each => ({ id: each.request_id, ...each }))} empty="Nothing runs or waits." columns=${[
      ["Request", row => html`<code>${row.id}</code>`],
      ["Project", row => row.project], ["Model", row => row.model],
      ...(replicas.length ? [["Replica", row => html`<code>${row.replica}</code>`]] : []),
      ["State", row => row.choices.map(choice => html`<${Status} value=${enumName(choice.state, "STATE_")} /> `)],
      ["Slot", row => row.choices.map(choice => choice.slot ?? "–").join(", "), true],
      ["Prompt", row => promptText(row), true],
      ["Reused", row => row.cached_tokens === undefined ? "–" : formatNumber(row.cached_tokens), true],
      ["Diverges in", row => row.divergence ? html`<code>${row.divergence.field || `token ${row.divergence.token_index}`}</code>` : ""],
      ["Generated", row => formatNumber(row.choices.reduce((sum, choice) => sum + choice.completion_tokens, 0)), true],
      ["Age", row => `${parseFloat(row.age).toFixed(1)} s`, true],
      ["", row => html`<${Action} class="danger" confirm=${`Abort the request ${row.id} of the project ${row.project}?`} run=${async () => { await post("admin/requests/abort", { request_ids: [row.id] }); await reload(); }}>Abort<//>`],
    ]} />`;
}

/** The length of a prompt, and how much of it is computed while it is. */
function promptText({ choices, prompt_tokens: length }) {
  const computed = choices.find(choice => choice.computed_tokens !== undefined)?.computed_tokens;
  return computed === undefined ? formatNumber(length) : `${formatNumber(computed)} of ${formatNumber(length)}`;
}

/** The tokens so far, at a time in milliseconds. */
const count = ({ prompt_tokens_total: prompt, completion_tokens_total: completion }, at) => ({ at, prompt: Number(prompt), completion: Number(completion) });

function perSecond(from, to) {
  const seconds = Math.max(to.at - from.at, 1) / 1000;
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
