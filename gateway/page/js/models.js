/** Models: state, memory, progress; load and unload; what the server does with one. */

import { useState } from "preact/hooks";
import { enumName, listAll } from "./admin.js";
import { get, post } from "./api.js";
import { Action, ErrorBox, formatBytes, formatNumber, html, Meter, Status, Table, useLoad, usePolling } from "./ui.js";

const DOWNLOADS = ["downloading", "verifying"];
const SECTIONS = ["model", "upstream", "memory", "vocabulary", "sampling", "template", "verification", "beside", "unsure"];
const state = model => enumName(model.state, "STATE_");

export function ModelsView() {
  const [explained, setExplained] = useState("");
  const { data, error, reload } = useLoad(() => listAll("admin/models", "models", { pending: true }), []);
  const isChanging = data?.some(model => ["loading", "unloading", ...DOWNLOADS].includes(state(model))) ?? false;
  usePolling(reload, isChanging ? 0.5 : 5);
  const load = async name => { await post("admin/models/load", { model: name }); await reload(); };
  const unload = async name => { await post("admin/models/unload", { model: name, wait: false }); await reload(); };
  return html`<${Table} caption="Models" rows=${data?.map(model => ({ id: model.name, ...model }))} error=${error} columns=${[
    ["Model", row => html`<strong>${row.name}</strong>${row.aliases.length > 0 && html`<br /><small>also ${row.aliases.join(", ")}</small>`}${row.parent && html`<br /><small>adapter of ${row.parent}</small>`}`],
    ["State", row => html`<${Status} value=${state(row)} />${row.problem && html`<p class="error">${row.problem}</p>`}<${Upstream} upstream=${row.upstream} /><${Progress} progress=${row.load_progress} /><${Download} download=${row.download} />`],
    ["Parameters", row => formatNumber(row.num_parameters), true],
    ["File", row => formatBytes(Number(row.size_bytes)), true],
    ["Memory", row => Number(row.memory_bytes) ? formatBytes(Number(row.memory_bytes)) : "–", true],
    ["Slots and context", row => row.resolved_limits?.slots ? `${row.resolved_limits.slots} × ${formatNumber(row.resolved_limits.context_tokens)}` : "–", true],
    ["Reads", row => row.input_modalities.map(each => enumName(each, "MODALITY_")).join(", ")],
    ["Uses", row => row.num_uses, true],
    ["", row => row.parent ? null : html`<button type="button" disabled=${DOWNLOADS.includes(state(row))} aria-label=${`Explain ${row.name}`} onClick=${() => setExplained(row.name)}>Explain</button>`],
    ["", row => row.parent ? null : ["ready", "loading"].includes(state(row))
      ? html`<${Action} class="danger" confirm=${`Unload ${row.name} when its requests have ended?`} run=${() => unload(row.name)}>Unload<//>`
      : html`<${Action} disabled=${["unloading", ...DOWNLOADS].includes(state(row))} run=${() => load(row.name)}>Load<//>`],
  ]} />
  ${explained && html`<${Explanation} model=${explained} />`}`;
}

/** The sections of `corral models explain`, whose reply has no order. */
function Explanation({ model }) {
  const { data, error } = useLoad(() => get("admin/models/explain", { model }), [model]);
  return html`<section class="card" aria-label=${`Explanation of ${model}`}><h2>What the server does with ${model}</h2>
    ${error ? html`<${ErrorBox} error=${error} />` : !data ? html`<p class="muted" role="status">Loading…</p>`
      : SECTIONS.filter(title => title in data.explanation).map(title => [title, data.explanation[title]]).map(([title, section]) => html`<h3>${title}</h3>
        ${Array.isArray(section) ? html`<ul>${section.length ? section.map(each => html`<li>${each}</li>`) : html`<li>nothing</li>`}</ul>`
          : html`<dl>${Object.entries(section).filter(([, value]) => !isEmpty(value)).sort().map(([name, value]) => html`<dt>${name.replace("_bytes", "").replaceAll("_", " ")}</dt><dd>${formatValue(name, value)}</dd>`)}</dl>`}`)}</section>`;
}

const isEmpty = value => value === null || value === "" || (typeof value === "object" && !Object.keys(value).length);

function formatValue(name, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return name.endsWith("_bytes") ? formatBytes(value) : formatNumber(value);
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return Object.entries(value).map(([key, each]) => `${key} ${formatValue("", each)}`).join(", ");
  return String(value);
}

/** The engine of others that serves a model, at each of its URLs. */
function Upstream({ upstream }) {
  if (!upstream) return null;
  return html`<p class="muted">by ${upstream.engine || "an engine that was not reached yet"}</p>
    ${upstream.problem && html`<p class="error">${upstream.problem}</p>`}
    <ul class="plain" aria-label="Engines">${upstream.endpoints.map(each => html`<li key=${each.url}><code>${each.url}</code> <${Status} value=${each.is_up ? "up" : "down"} />
      ${" "}${each.problem || `${each.num_running} running`}</li>`)}</ul>`;
}

function Download({ download }) {
  if (!download?.file) return null;
  const [done, total] = [Number(download.completed_bytes), Number(download.total_bytes)];
  return html`<${Meter} label=${download.file} value=${done} max=${total} text=${`${formatBytes(done)} of ${formatBytes(total)}`} />`;
}

function Progress({ progress }) {
  if (!progress) return null;
  const phase = enumName(progress.phase, "PHASE_").replace("_", " ");
  return html`<${Meter} label="Progress" value=${progress.fraction} max=${1} text=${`${phase}, ${Math.round(progress.fraction * 100)} %`} />`;
}
